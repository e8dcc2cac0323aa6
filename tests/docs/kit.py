"""What stands in for model.gguf and the other files that the documents name."""

from __future__ import annotations

import json
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


def _link(folder: Path, name: str, source: Path) -> None:
    (folder / name).symlink_to(source)


def tiny(folder: Path) -> Path:
    """A toy whose every token follows from the one before it, and drafts that know it."""
    _link(folder, "model.gguf", model_path("perm"))
    _link(folder, "draft.gguf", model_path("perm_eagle3"))
    _link(folder, "dflash.gguf", model_path("perm_dflash"))
    write_head(folder / "DRAFT_DIR", "specforge", perm_head(reduced=True), "F32")
    return _rest(folder)


def real(folder: Path, model: Path) -> Path:
    """SmolLM2, and the drafts of examples/drafts."""
    _link(folder, "model.gguf", model)
    _link(folder, "draft.gguf", DRAFTS / "smollm2-135m-eagle3.gguf")
    _link(folder, "dflash.gguf", DRAFTS / "smollm2-135m-dflash.gguf")
    return _rest(folder)


def _rest(folder: Path) -> Path:
    lines = "".join(json.dumps(line) + "\n" for line in _PROMPTS)
    (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
    _link(folder, "examples", ROOT / "examples")
    return folder
