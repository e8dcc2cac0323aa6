"""The server as a process: uvicorn, its signals, TLS."""

from __future__ import annotations

import uvicorn

from pyllama_spec.llama import Llama
from pyllama_spec.server.app import create_app
from pyllama_spec.server.settings import ServerSettings


def serve(llm: Llama, settings: ServerSettings, *, host: str, port: int) -> None:
    """Serves until a signal ends it."""
    uvicorn.run(create_app(llm, settings), host=host, port=port, log_config=None, access_log=False)
