"""A target that is quick to learn, and configurations of seconds."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pyllama_spec.train import (
    CorpusConfig,
    DFlashFitConfig,
    DFlashHeadConfig,
    DFlashTrainConfig,
    Eagle3TrainConfig,
    FitConfig,
    HeadConfig,
    MtpFitConfig,
    MtpTrainConfig,
)
from pyllama_spec.train.config import FitSettings, HeadSettings, RunConfig
from pyllama_spec.train.progress import Reporter
from tests.models import model_path

R = TypeVar("R", bound=RunConfig)

# The next token is a function of the last one, and 79 tokens from anywhere lead back there.
PERM = {"n_cycles": 4, "n_layer": 2}


def perm() -> Path:
    """The target that the quick runs learn."""
    return model_path("perm", **PERM)


def write_prompts(folder: Path, n: int = 120, seed: int = 1) -> Path:
    """A prompts file of random letters."""
    rng = random.Random(seed)
    letters = string.digits + string.ascii_letters + string.punctuation
    rows = ["".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(n)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows), encoding="utf-8")
    return path


def quick_config(folder: Path, **changes: Any) -> Eagle3TrainConfig:
    """A run of a few seconds. `changes` go to the part of the configuration that knows them."""
    head, fit = HeadConfig(n_ff=64, target_layers=(0, 1, 2)), FitConfig()
    return _quick(Eagle3TrainConfig, head, fit, folder, changes)


def quick_block_config(folder: Path, **changes: Any) -> DFlashTrainConfig:
    """The same for a draft that proposes blocks."""
    head = DFlashHeadConfig(n_ff=64, n_layer=1, block_size=4, target_layers=(0, 1, 2))
    changes = {"batch_tokens": 64, **changes}
    return _quick(DFlashTrainConfig, head, DFlashFitConfig(), folder, changes)


# The same text by the layers of an architecture, and a head behind them whose weights are random.
PERM_MTP = {"n_cycles": 4, "is_known": False}


def perm_mtp(arch: str = "qwen35", **options: Any) -> Path:
    """A target with a head that has everything to learn."""
    return model_path("perm_mtp", arch=arch, **{**PERM_MTP, **options})


def quick_mtp_config(folder: Path, **changes: Any) -> MtpTrainConfig:
    """The same for the head of a target."""
    changes = {"target": perm_mtp(), "lr": 3e-3, **changes}
    return _quick(MtpTrainConfig, HeadSettings(), MtpFitConfig(), folder, changes)


def _quick(
    kind: type[R], head: HeadSettings, fit: FitSettings, folder: Path, changes: dict[str, Any]
) -> R:
    parts: dict[str, Any] = {
        "corpus": CorpusConfig(
            prompts=write_prompts(folder), n_tokens=800, n_ctx=40, n_parallel=4, min_answer=8
        ),
        "head": head,
        "fit": replace(
            fit, epochs=14, batch_tokens=256, lr=3e-3, held_out=0.15, n_evals=6, precision="fp32"
        ),
    }
    if "init" in changes:  # a draft that one begins with has its shape
        parts["head"] = type(head)()
    top: dict[str, Any] = {"export_type": "f32", "n_threads": 1, "device": "cpu"}
    for name, value in changes.items():
        owner = next((k for k, part in parts.items() if name in part.__dataclass_fields__), None)
        if owner is None:
            top[name] = value
        else:
            parts[owner] = replace(parts[owner], **{name: value})
    target = top.pop("target", None) or perm()
    return kind(target, top.pop("out", folder / "draft.gguf"), **parts, **top)


class Interrupting(Reporter):
    """A reporter that calls `act` when a stage reports for the n-th time."""

    def __init__(self, stage: str, n: int, act: Callable[[], None]) -> None:
        self._stage, self._left, self._act = stage, n, act
        self.lines: list[str] = []
        self.last, self.n_reports = "", 0

    def line(self, text: str) -> None:
        """Keeps it."""
        self.lines.append(text)

    def progress(self, stage: str, fraction: float, note: str) -> None:
        """Counts."""
        if stage == self._stage:
            self.last, self.n_reports = note, self.n_reports + 1
            self._left -= 1
            if self._left == 0:
                self._act()
