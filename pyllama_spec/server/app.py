"""The application of a server: the endpoints of all modules, and the files of the page at /.

The page is served unchanged and without a key, with its CSP.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from pyllama_spec.llama import Llama
from pyllama_spec.server import messages, native, openai, responses
from pyllama_spec.server.api_errors import ApiError
from pyllama_spec.server.exchange import App, Content, Exchange, Route
from pyllama_spec.server.model_list import ModelList
from pyllama_spec.server.models import Models
from pyllama_spec.server.settings import ServerSettings

FOLDER = Path(__file__).parent / "page"
_INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Own files alone, none of them inline; no text can become markup or a script (Trusted Types), where
# a browser knows them; and no other page may show this one in a frame.
POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    )
)  # fmt: skip
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Fetched each time: after an upgrade no old script meets a new page.
    "cache-control": "no-cache",
}


@cache
def page_files() -> dict[str, Content]:
    """The files by URL path."""
    return {
        "/" if file.name == _INDEX else f"/page/{file.name}": Content(
            file.read_bytes(), _KINDS[file.suffix], 200, _HEADERS
        )
        for file in sorted(FOLDER.iterdir())
        if file.suffix in _KINDS
    }


async def send_file(file: Content, exchange: Exchange, _: None) -> Content:
    """GET of a file."""
    if not exchange.serving.settings.has_page:
        raise ApiError(
            404, f"there is no {exchange.path:.200}: the page is switched off", "unknown_path",
            option="has_page",
        )  # fmt: skip
    return file


# Each knows its file: within another application the request's path has that one's place before it.
_PAGE = tuple(
    Route("GET", path, partial(send_file, file), is_open=True)
    for path, file in page_files().items()
)
# The first route of a path counts.
ROUTES = (
    *openai.ROUTES, *native.ROUTES, *messages.ROUTES, *responses.ROUTES, *_PAGE,
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
