"""Training a draft for a target from its GGUF alone: train_eagle3() and train_dflash().

train_from_use() goes on with one from its owner's use. All of them check the files, the target and
the packages before anything is computed. What needs PyTorch, which is optional, is imported after
that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.engine.checks import instance
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import why_no_output
from pyllama_spec.llama.loading import check_target
from pyllama_spec.train.config import RunConfig
from pyllama_spec.train.corpus.tasks import read_prompts
from pyllama_spec.train.dflash.config import DFlashTrainConfig
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig
from pyllama_spec.train.errors import TrainError, need
from pyllama_spec.train.files import locked
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.target_weights import block_layers, default_layers

if TYPE_CHECKING:
    from pyllama_spec.train.run.from_use import UseReport
    from pyllama_spec.train.run.head import DraftShape
    from pyllama_spec.train.run.init_draft import InitDraft, Keys
    from pyllama_spec.train.run.kind import Kind
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

    return _train(config, reporter, layers, partial(_load_eagle3, config))


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

    return _train(config, reporter, layers, partial(_load_dflash, config))


def train_from_use(
    config: Eagle3TrainConfig | DFlashTrainConfig, reporter: Reporter | None = None
) -> UseReport:
    """Goes on with a draft from what its owner's requests said, and where it was wrong.

    The draft is config.init, or else what lies at config.out, of the kind of the configuration. The
    new one is written to config.out if it is better on conversations that it did not learn from;
    what was there stays as NAME.bak. Nothing else is left of a run. After an error and after Ctrl-C
    the file is as it was.

    Args:
        config: of the run, with `use`. Of its text n_ctx, the longest part that is learned from at
            once, and what says how other text is made count; its type is the draft's.
        reporter: is told how it goes; None for silence.

    Returns:
        What came out: whether the file was replaced, and how both drafts fare.

    Raises:
        ModelLoadError: the target, the draft or the store cannot be read.
        ArgumentError: the store is of another tokenizer, a setting is out of range, or the output
            cannot be written there.
        UnsupportedError: the target gives no layer inputs, or does not generate text.
        DivergedError: the loss is no number any more.
        TrainError: the draft was made for another target, the store has too few conversations, a
            package is missing, the disk is full, ...
        KeyboardInterrupt: after Ctrl-C.

    """
    instance(config, (Eagle3TrainConfig, DFlashTrainConfig), "config")
    if config.use is None:
        raise ArgumentError("config.use is None: it says which store to learn from")
    _check_files(config)
    if not config.begun_with.exists():
        raise TrainError(
            f"{config.begun_with}: there is no such draft to go on with; train one first, or name "
            "one with --init"
        )
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        need("torch", "gguf")
        from pyllama_spec.train.run.from_use import UseRun
        from pyllama_spec.train.run.init_draft import read_init_draft

        if isinstance(config, Eagle3TrainConfig):
            loaded = _load_eagle3(config)
        else:
            loaded = _load_dflash(config)

        def read_draft(path: Path) -> InitDraft:
            return read_init_draft(path, model.info, loaded.kind.arch, loaded.shape_of)

        return UseRun(loaded.kind, config, model, read_draft, reporter or SilentReporter()).run()


def _load_eagle3(config: Eagle3TrainConfig) -> _LoadedKind:
    from pyllama_spec.train.eagle3.kind import Eagle3Kind, shape_of

    return _LoadedKind(Eagle3Kind(config), shape_of)


def _load_dflash(config: DFlashTrainConfig) -> _LoadedKind:
    from pyllama_spec.train.dflash.kind import DFlashKind, shape_of

    return _LoadedKind(DFlashKind(config), shape_of)


@dataclass(frozen=True, slots=True)
class _LoadedKind:
    """A kind of draft, imported once PyTorch is known to be there.

    Attributes:
        kind: what trains and writes it.
        shape_of: reads the shape of an earlier draft; see read_init_draft().

    """

    kind: Kind[Any]
    shape_of: Callable[[Keys, int], DraftShape]


def _train(
    config: RunConfig,
    reporter: Reporter | None,
    layers_of: Callable[[ModelInfo], tuple[int, ...]],
    load_kind: Callable[[], _LoadedKind],
) -> TrainReport:
    """Trains a draft of any kind; train_eagle3() says what it does and raises.

    Args:
        config: of the run.
        reporter: is told how it goes; None for silence.
        layers_of: layer inputs to read where the configuration names none.
        load_kind: imports what needs PyTorch.

    """
    if config.use is not None:
        raise ArgumentError("config.use is for train_from_use()")
    _check_files(config)
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        layers = config.head.target_layers or layers_of(model.info)
        if config.init is None:
            model.check_layer_inputs(layers)
        need("torch", "gguf")
        # With PyTorch, which is optional.
        from pyllama_spec.train.run.init_draft import read_init_draft
        from pyllama_spec.train.run.pipeline import Pipeline

        loaded, init_draft = load_kind(), None
        kind = loaded.kind
        if config.init is not None:
            init_draft = read_init_draft(config.init, model.info, kind.arch, loaded.shape_of)
            layers = init_draft.shape.target_layers
            model.check_layer_inputs(layers)
        with locked(config.work_dir):
            reporter = reporter or SilentReporter()
            return Pipeline(kind, config, model, layers, reporter, init_draft).run()


def _check_files(config: RunConfig) -> None:
    if (why_not := why_no_output(config.out)) is not None:
        raise ArgumentError(why_not)
    if config.out.exists() and config.out.samefile(config.target):
        raise ArgumentError(f"{config.out} is the target itself; give another output")
    if config.corpus.prompts is not None:
        read_prompts(config.corpus.prompts)
