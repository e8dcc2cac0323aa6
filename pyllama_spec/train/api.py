"""Trains a draft for a target from its GGUF: train_eagle3(), train_dflash(), train_mtp().

train_mtp() trains the MTP head of the file further, and train_from_use() any draft, from its
owner's use. All of them check the files, the target and the packages before anything is
computed. What needs PyTorch, which is optional, is imported after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyllama_spec.engine import Model, ModelInfo
from pyllama_spec.engine.checks import instance
from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import why_no_output
from pyllama_spec.llama.loading import check_target
from pyllama_spec.train.config import RunConfig
from pyllama_spec.train.corpus.tasks import read_prompts
from pyllama_spec.train.dflash.config import DFlashTrainConfig
from pyllama_spec.train.eagle3.config import Eagle3TrainConfig
from pyllama_spec.train.errors import TrainError, need
from pyllama_spec.train.files import locked
from pyllama_spec.train.mtp.config import MtpTrainConfig
from pyllama_spec.train.mtp.facts import check_window, head_note, read_facts
from pyllama_spec.train.progress import Reporter, SilentReporter
from pyllama_spec.train.run.target_weights import block_layers, default_layers

AnyConfig: TypeAlias = Eagle3TrainConfig | DFlashTrainConfig | MtpTrainConfig

if TYPE_CHECKING:
    from pyllama_spec.train.run.from_use import UseReport
    from pyllama_spec.train.run.init_draft import InitDraft
    from pyllama_spec.train.run.kind import Kind
    from pyllama_spec.train.run.pipeline import TrainReport


def train_eagle3(config: Eagle3TrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains an EAGLE-3 head and writes it as GGUF.

    Text, features, checkpoints and curves are in config.work_dir. A call
    with the same configuration resumes a run that was interrupted, and gives the same file.

    Args:
        config: the configuration of the run.
        reporter: receives the progress; None for silence.

    Returns:
        The result: the file, and the quality of its drafts.

    Raises:
        ModelLoadError: the target cannot be read.
        ArgumentError: a setting is out of range, or the output cannot be written there.
        UnsupportedError: the target exposes no layer inputs, or does not generate text.
        CheckpointError: the work folder belongs to another target, or to other settings.
        DivergedError: the loss is not finite; the last good checkpoint is kept.
        TrainError: a package is missing, the prompts file is empty, the disk is full, ...
        KeyboardInterrupt: after Ctrl-C; all work so far is kept.
    """
    instance(config, Eagle3TrainConfig, "config")

    def layers(info: ModelInfo) -> tuple[int, ...]:
        return default_layers(info.n_layer, is_plain=config.head.is_plain)

    return _train(config, reporter, layers, partial(_load_eagle3, config))


def train_dflash(config: DFlashTrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains a DFlash draft and writes it as GGUF.

    Uses the pipeline of train_eagle3(), which documents the folder and the errors. Both can use the
    same text and features in one work folder.

    Args:
        config: the configuration of the run.
        reporter: receives the progress; None for silence.
    """
    instance(config, DFlashTrainConfig, "config")

    def layers(info: ModelInfo) -> tuple[int, ...]:
        return block_layers(info.n_layer)

    return _train(config, reporter, layers, partial(_load_dflash, config))


def train_mtp(config: MtpTrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains the MTP head of a target further, and writes a GGUF of the head alone.

    Uses the pipeline of train_eagle3(), which documents the folder and the errors; both can use the
    same text in one work folder. `draft=config.out` takes the file. It is written only if it is
    better than the initial head on held-out text; otherwise report.why_not gives the reason.

    Args:
        config: the configuration of the run.
        reporter: receives the progress; None for silence.

    Raises:
        UnsupportedError: the file has no MTP head, several of them, or one without a graph for
            training. This is raised before any computation.
        TrainError: the head lacks a tensor or a key, or is damaged; see also train_eagle3().
    """
    instance(config, MtpTrainConfig, "config")
    return _train(config, reporter, lambda _: (HEAD_ROWS,), partial(_load_mtp, config))


def train_from_use(config: AnyConfig, reporter: Reporter | None = None) -> UseReport:
    """Trains a draft further on its owner's requests, mostly where the draft was wrong.

    The draft is config.init, or else the file at config.out, of the configuration's kind; without a
    file, an MTP head is the target's own. The new draft is written to config.out if it is better on
    held-out conversations; the previous file stays as NAME.bak. A run leaves nothing else. After an
    error and after Ctrl-C the file is unchanged.

    Args:
        config: the configuration of the run, with `use`. Of the options for its text, only n_ctx
            (the longest part to learn from at once) and those for generating other text apply; the
            type is the draft's.
        reporter: receives the progress; None for silence.

    Returns:
        The result: whether the file was replaced, and the quality of both drafts.

    Raises:
        ModelLoadError: the target, the draft or the store cannot be read.
        ArgumentError: the store has another tokenizer, a setting is out of range, or the output
            cannot be written there.
        UnsupportedError: the target exposes no layer inputs, or does not generate text.
        DivergedError: the loss is not finite.
        TrainError: the draft was made for another target, the store has too few conversations, a
            package is missing, the disk is full, ...
        KeyboardInterrupt: after Ctrl-C.
    """
    instance(config, (Eagle3TrainConfig, DFlashTrainConfig, MtpTrainConfig), "config")
    if config.use is None:
        raise ArgumentError("use", None, "the store to learn from")
    _check_before_opening(config)
    if not config.begun_with.exists():
        raise TrainError(
            f"{config.begun_with}: the draft to train further does not exist; train one first, or "
            "name one with --init"
        )
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        _check_own_head(config, model)
        need("torch", "gguf")
        from pyllama_spec.train.run.from_use import UseRun

        if isinstance(config, Eagle3TrainConfig):
            loaded = _load_eagle3(config, model)
        elif isinstance(config, DFlashTrainConfig):
            loaded = _load_dflash(config, model)
        else:
            loaded = _load_mtp(config, model)
        reporter = reporter or SilentReporter()
        return UseRun(loaded.kind, config, model, loaded.read_draft, reporter).run()


def _load_eagle3(config: Eagle3TrainConfig, model: Model) -> _LoadedKind:
    from pyllama_spec.train.eagle3.kind import Eagle3Kind, shape_of
    from pyllama_spec.train.run.init_draft import read_init_draft

    kind = Eagle3Kind(config)
    return _LoadedKind(kind, lambda path: read_init_draft(path, model.info, kind.arch, shape_of))


def _load_dflash(config: DFlashTrainConfig, model: Model) -> _LoadedKind:
    from pyllama_spec.train.dflash.kind import DFlashKind, shape_of
    from pyllama_spec.train.run.init_draft import read_init_draft

    kind = DFlashKind(config)
    return _LoadedKind(kind, lambda path: read_init_draft(path, model.info, kind.arch, shape_of))


def _load_mtp(config: MtpTrainConfig, model: Model) -> _LoadedKind:
    from pyllama_spec.train.mtp.file import open_head_for, read_head_draft
    from pyllama_spec.train.mtp.kind import MtpKind

    source = open_head_for(config.begun_with, model)
    check_window(source.facts, config.begun_with.name, config.corpus.n_ctx, config.fit.n_steps)
    source.check()  # before hours of text
    return _LoadedKind(MtpKind(config, source), lambda path: read_head_draft(path, model))


def _check_own_head(config: RunConfig, model: Model) -> None:
    """Raises if the target's own head is to be trained but cannot be."""
    if isinstance(config, MtpTrainConfig) and config.begun_with == config.target:
        facts = read_facts(config.target, model.info)
        check_window(facts, config.target.name, config.corpus.n_ctx, config.fit.n_steps)


@dataclass(frozen=True, slots=True)
class _LoadedKind:
    """A kind of draft, imported after the check that PyTorch is installed.

    Attributes:
        kind: the class that trains and writes the draft.
        read_draft: reads an earlier draft of the kind for this target; see read_init_draft().
    """

    kind: Kind[Any]
    read_draft: Callable[[Path], InitDraft]


def _train(
    config: RunConfig,
    reporter: Reporter | None,
    layers_of: Callable[[ModelInfo], tuple[int, ...]],
    load_kind: Callable[[Model], _LoadedKind],
) -> TrainReport:
    """Trains a draft of any kind; see train_eagle3() for its steps and errors."""
    reporter = reporter or SilentReporter()
    if config.use is not None:
        raise ArgumentError("use", config.use, remedy="call train_from_use(), or omit it")
    _check_before_opening(config)
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        _check_own_head(config, model)
        note = head_note(model.info, config.target.name)
        if note is not None and not isinstance(config, MtpTrainConfig):
            reporter.line(note)
        layers = config.head.target_layers or layers_of(model.info)
        if config.init is None:
            model.check_layer_inputs(layers)
        need("torch", "gguf")
        # With PyTorch, which is optional.
        from pyllama_spec.train.run.pipeline import Pipeline

        loaded, init_draft = load_kind(model), None
        if config.init is not None:
            init_draft = loaded.read_draft(config.init)
            layers = init_draft.shape.target_layers
            model.check_layer_inputs(layers)
        with locked(config.work_dir):
            return Pipeline(loaded.kind, config, model, layers, reporter, init_draft).run()


def _check_before_opening(config: RunConfig) -> None:
    """Raises for faults that show before the target is loaded, which may take minutes."""
    if (why_not := why_no_output(config.out)) is not None:
        raise ArgumentError("out", problem=f"cannot be written: {why_not}")
    if config.out.exists() and config.out.samefile(config.target):
        raise ArgumentError(
            "out", config.out, problem="is the target itself", remedy="give another output"
        )
    if config.use is None:
        work = config.work_dir
        above = next((path for path in (work, *work.parents) if path.exists()), work)
        if above.exists() and not above.is_dir():
            raise ArgumentError(
                "work", work, "a folder for text, features and checkpoints",
                problem=f"is under the file {above}",
            )  # fmt: skip
    if config.corpus.prompts is not None:
        read_prompts(config.corpus.prompts)
    if config.device == "cuda":
        need("torch")
        from pyllama_spec.train.run.pipeline import device_of

        device_of(config)
