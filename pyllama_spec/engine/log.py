"""What the engine prints to stderr."""

from __future__ import annotations

from typing import Literal

from pyllama_spec.engine.binding import lib

LogLevel = Literal["debug", "info", "warning", "error", "none"]

# ggml's numbers; the engine logs nothing above "error".
_LEVELS: dict[str, int] = {"debug": 1, "info": 2, "warning": 3, "error": 4, "none": 5}


def set_log_level(level: LogLevel) -> None:
    """Lets the engine print lines at or above a level; "none", the default, is silence.

    The setting is the process's: every model and context shares it. Errors reach Python as
    exceptions at any level.
    """
    lib.llama_spec_set_log_level(_LEVELS[level])
