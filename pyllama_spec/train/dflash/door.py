"""The door: a DFlash draft for a target, from its GGUF alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllama_spec.engine import ModelInfo
from pyllama_spec.engine.checks import instance
from pyllama_spec.train.dflash.config import DFlashTrainConfig
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.api import Opening, run_training
from pyllama_spec.train.run.target_weights import block_layers

if TYPE_CHECKING:
    from pyllama_spec.train.run.pipeline import TrainReport


def train_dflash(config: DFlashTrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains a DFlash draft and writes it as GGUF.

    By the same pipeline as train_eagle3(), which says what lies where and what is raised; text and
    features of the one serve the other in the same work folder.

    Args:
        config: of the run.
        reporter: is told how it goes; None for silence.

    """
    instance(config, DFlashTrainConfig, "config")

    def layers(info: ModelInfo) -> tuple[int, ...]:
        return block_layers(info.n_layer)

    def opening() -> Opening:
        from pyllama_spec.train.dflash.kind import DFlashKind, shape_of

        return Opening(DFlashKind(config), shape_of)

    return run_training(config, reporter, layers, opening)
