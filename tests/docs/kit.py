"""Files that replace model.gguf and others that the documents name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.convert.test_engine import perm_head
from tests.convert.tools import write_head
from tests.models import model_path

ROOT = Path(__file__).resolve().parents[2]
DRAFTS = ROOT / "examples" / "drafts"
_PROMPTS = (
    {"id": "a", "category": "b", "prompt": "1, 2, 3, 4, "},
    {"id": "c", "category": "b", "messages": [{"role": "user", "content": "Name a fruit."}]},
)


def toys() -> dict[str, Path]:
    """A toy whose every token follows from the one before it, and drafts that know it."""
    return {
        "model.gguf": model_path("perm"),
        "draft.gguf": model_path("perm_eagle3"),
        "dflash.gguf": model_path("perm_dflash"),
    }


def shipped(model: Path) -> dict[str, Path]:
    """SmolLM2, and its draft of examples/drafts."""
    return {"model.gguf": model, "draft.gguf": DRAFTS / "smollm2-135m-eagle3.gguf"}


def tiny(folder: Path) -> Path:
    """The toys, and a folder to convert."""
    write_head(folder / "DRAFT_DIR", "specforge", perm_head(reduced=True), "F32")
    return _rest(folder, toys())


def real(folder: Path, model: Path) -> Path:
    """The shipped draft and its model."""
    return _rest(folder, shipped(model))


def _rest(folder: Path, files: dict[str, Path]) -> Path:
    # Copies: the pages write over some of these, and an output goes where a link leads.
    for name, source in files.items():
        shutil.copyfile(source, folder / name)
    shutil.copytree(ROOT / "examples", folder / "examples")
    lines = "".join(json.dumps(line) + "\n" for line in _PROMPTS)
    (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
    return folder
