"""The prompts of a benchmark: the package's own or the user's."""

from __future__ import annotations

import os
from pathlib import Path

from pyllama_spec.chat.prompt_file import Prompt, read_prompt_file

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


def load_prompts(path: str | os.PathLike[str] | None = None) -> tuple[Prompt, ...]:
    """Reads a prompts file; without a path the package's own: 24 in six categories and "field".

    Raises:
        ArgumentError: the file cannot be read, holds no prompt, or a line is malformed; the message
            names the line.

    """
    return read_prompt_file(OWN_PROMPTS if path is None else Path(path))
