"""The door: a draft for a target, from its GGUF alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllama_spec.engine import Model
from pyllama_spec.engine.checks import instance
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.loading import check_target
from pyllama_spec.train.config import Eagle3TrainConfig
from pyllama_spec.train.corpus.tasks import read_prompts
from pyllama_spec.train.eagle3.target_weights import default_layers
from pyllama_spec.train.errors import need
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.lock import locked

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
    if config.out.is_dir():
        raise ArgumentError(f"{config.out} is a folder; give the name of a file in it")
    if not config.out.parent.is_dir():
        raise ArgumentError(f"the folder {config.out.parent} does not exist")
    if config.out.exists() and config.out.samefile(config.target):
        raise ArgumentError(f"{config.out} is the target itself; give another output")
    if config.corpus.prompts is not None:
        read_prompts(config.corpus.prompts)
    with Model(config.target, n_gpu_layers=config.n_gpu_layers) as model:
        check_target(model)
        layers = config.head.target_layers or default_layers(
            model.info.n_layer, is_plain=config.head.is_plain
        )
        if config.init is None:
            model.check_layer_inputs(layers)
        need("torch", "gguf")
        # With PyTorch, which is optional.
        from pyllama_spec.train.eagle3.init_draft import read_init_draft
        from pyllama_spec.train.run.pipeline import Pipeline

        init_draft = None if config.init is None else read_init_draft(config.init, model.info)
        if init_draft is not None:
            layers = init_draft.shape.target_layers
            model.check_layer_inputs(layers)
        with locked(config.work_dir):
            return Pipeline(config, model, layers, reporter or SilentReporter(), init_draft).run()
