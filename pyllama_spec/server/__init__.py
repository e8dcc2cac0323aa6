"""The server: OpenAI's API over a Llama, in an event loop that the model never blocks.

    from pyllama_spec import Llama
    from pyllama_spec.server import ServerSettings, create_app

    llm = Llama("model.gguf", draft="auto", n_ctx=4096, n_parallel=4, max_waiting=32)
    app = create_app(llm, ServerSettings(alias="model"))  # for any ASGI server

It needs the extra: pip install pyllama-spec[server]. Nothing of that is imported before one of the
names here is asked for.

A request passes exchange (its endpoint, its answer, its errors), door (page, key, body), models
(which one, and its load) and service (a call of the Llama). An endpoint is a function, and a line
in its module's ROUTES:

    class Words(Struct):
        text: str

    async def count_words(exchange: Exchange, body: Words) -> Any:
        return {"words": len(body.text.split())}

    ROUTES = (..., Route("POST", "/words", count_words, Words))

It returns what is sent: an object as JSON, Content, or Events. `async with exchange.model(name) as
service` opens the model of a request, and `await asyncio.to_thread(f, ...)` calls what takes long.
BODIES of tests/server/test_models.py has a body for each POST. A further dialect of chats has a
Struct, a function that translates it to a ChatRequest, and a Shape that its answers leave in:

    return await exchange.generate(body, WordShape(), to_asked)

A Shape is given OpenAI's chunks as dicts. Errors are raised as ApiError or any PyllamaSpecError,
and leave in the form that the route names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyllama_spec.errors import UnsupportedError
from pyllama_spec.lazy_imports import lazy_names

if TYPE_CHECKING:
    from pyllama_spec.server.app import create_app
    from pyllama_spec.server.model_list import ModelList, ModelSpec, read_models
    from pyllama_spec.server.process import serve
    from pyllama_spec.server.settings import ServerSettings
else:
    _get, __dir__ = lazy_names(
        __name__,
        {
            "ModelList": "pyllama_spec.server.model_list",
            "ModelSpec": "pyllama_spec.server.model_list",
            "ServerSettings": "pyllama_spec.server.settings",
            "create_app": "pyllama_spec.server.app",
            "read_models": "pyllama_spec.server.model_list",
            "serve": "pyllama_spec.server.process",
        },
    )

    _EXTRA = ("anyio", "h11", "msgspec", "prometheus_client", "starlette", "uvicorn")

    def __getattr__(name: str) -> Any:
        try:
            return _get(name)
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRA:
                raise
            raise UnsupportedError(
                f"the server needs {package}: pip install pyllama-spec[server]"
            ) from None


__all__ = ["ModelList", "ModelSpec", "ServerSettings", "create_app", "read_models", "serve"]
