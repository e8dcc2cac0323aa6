"""The door: an EAGLE-3 draft for a target, from its GGUF alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllama_spec.engine import ModelInfo
from pyllama_spec.engine.checks import instance
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig
from pyllama_spec.train.progress import Reporter
from pyllama_spec.train.api import Opening, run_training
from pyllama_spec.train.run.target_weights import default_layers

if TYPE_CHECKING:
    from pyllama_spec.train.run.pipeline import TrainReport


def train_eagle3(config: Eagle3TrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains an EAGLE-3 head and writes it as GGUF.

    All that is made on the way lies in config.work_dir: text, features, checkpoints, curves. An
    interrupted run is gone on with by calling this again with the same configuration, and gives the
    same file.

    Args:
        config: of the run.
        reporter: is told how it goes; None for silence.

    Returns:
        What came out: the file, and how its drafts fare.

    Raises:
        ModelLoadError: the target cannot be read.
        ArgumentError: a setting is out of range, or the output cannot be written there.
        UnsupportedError: the target gives no layer inputs, or does not generate text.
        CheckpointError: the work folder is of another target, or of other settings.
        DivergedError: the loss is no number any more; the last good checkpoint is kept.
        TrainError: a package is missing, the prompts file is empty, the disk is full, ...
        KeyboardInterrupt: after Ctrl-C, with everything so far kept.

    """
    instance(config, Eagle3TrainConfig, "config")

    def layers(info: ModelInfo) -> tuple[int, ...]:
        return default_layers(info.n_layer, is_plain=config.head.is_plain)

    def opening() -> Opening:
        from pyllama_spec.train.eagle3.kind import Eagle3Kind, shape_of

        return Opening(Eagle3Kind(config), shape_of)

    return run_training(config, reporter, layers, opening)
