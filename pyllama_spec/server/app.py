"""The application of a server, with the endpoints of all modules."""

from __future__ import annotations

from pyllama_spec.llama import Llama
from pyllama_spec.server import messages, native, openai, page_files, responses
from pyllama_spec.server.exchange import App
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.models import Models
from pyllama_spec.server.settings import ServerSettings

# The first route of a path counts.
ROUTES = (
    *openai.ROUTES, *native.ROUTES, *messages.ROUTES, *responses.ROUTES, *page_files.ROUTES,
)  # fmt: skip


def create_app(llm: Llama | ModelList, settings: ServerSettings | None = None) -> App:
    """Creates an ASGI application over a Llama, or over several models.

    Args:
        llm: opened with n_parallel and max_waiting for as many clients as needed; the caller closes
            it after the server has ended. A list of models loads and closes its models itself; end
            it with `await app.models.close()`.
        settings: bounds, keys and defaults.
    """
    return App(Models(llm, settings or ServerSettings()), ROUTES)
