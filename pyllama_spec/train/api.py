"""Trains a draft for a target from its GGUF: train_eagle3(), train_dflash(), train_mtp().

train_mtp() trains the MTP head of the file further, and train_from_use() any draft, from its
owner's use. All of them check the files, the target and the packages before anything is
computed. What needs PyTorch, which is optional, is imported after that.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import why_no_output
from pyllama_spec.llama.open_model import check_target
from pyllama_spec.train.config import (
    DFlashTrainConfig,
    Eagle3TrainConfig,
    MtpTrainConfig,
    RunConfig,
)
from pyllama_spec.train.corpus.tasks import read_prompts
from pyllama_spec.train.errors import TrainError, need
from pyllama_spec.train.progress import Reporter

AnyConfig: TypeAlias = Eagle3TrainConfig | DFlashTrainConfig | MtpTrainConfig

if TYPE_CHECKING:
    from pyllama_spec.train.run.from_use import UseReport
    from pyllama_spec.train.run.kind import Kind
    from pyllama_spec.train.run.pipeline import TrainReport


def train_eagle3(config: Eagle3TrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains an EAGLE-3 head and writes it as GGUF.

    Text, features, checkpoints and curves are in config.work_dir. A call with the same
    configuration resumes a run that was interrupted, and gives the same file.

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
    return _train(config, reporter)


def train_dflash(config: DFlashTrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains a DFlash draft and writes it as GGUF: see train_eagle3(), which can share its text."""
    return _train(config, reporter)


def train_mtp(config: MtpTrainConfig, reporter: Reporter | None = None) -> TrainReport:
    """Trains the MTP head of a target further, and writes a GGUF of the head alone.

    See train_eagle3(). The file is written only if it is better than the initial head on held-out
    text; otherwise report.why_not gives the reason.

    Raises:
        UnsupportedError: the file has no MTP head, several of them, or one without a graph for
            training. This is raised before any computation.
        TrainError: the head lacks a tensor or a key, or is damaged; see also train_eagle3().
    """
    return _train(config, reporter)


def train_from_use(config: AnyConfig, reporter: Reporter | None = None) -> UseReport:
    """Trains a draft further on its owner's requests.

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
        ArgumentError: the store has another tokenizer, a setting is out of range, or the output
            cannot be written there.
        TrainError: the draft was made for another target, the store has too few conversations, ...;
            see also train_eagle3().
    """
    if config.use is None:
        raise ArgumentError("use", None, "the store to learn from")
    _check_before_opening(config)
    if not config.begun_with.exists():
        raise TrainError(
            f"{config.begun_with}: the draft to train further does not exist; train one first, or "
            "name one with --init"
        )
    from pyllama_spec.train.run.from_use import UseRun

    with _opened(config) as model:
        return UseRun(_load_kind(config, model), reporter or Reporter()).run()


def _train(config: AnyConfig, reporter: Reporter | None) -> TrainReport:
    """Trains a draft of any kind; see train_eagle3() for its steps and errors."""
    reporter = reporter or Reporter()
    if config.use is not None:
        raise ArgumentError("use", config.use, remedy="call train_from_use(), or omit it")
    _check_before_opening(config)
    from pyllama_spec.train.kinds.mtp_facts import head_note
    from pyllama_spec.train.run.pipeline import Pipeline

    with _opened(config) as model:
        note = head_note(model.info, config.target.name)
        if note is not None and not isinstance(config, MtpTrainConfig):
            reporter.line(note)
        return Pipeline(_load_kind(config, model), reporter).run()


def _load_kind(config: AnyConfig, model: Model) -> Kind[Any, Any]:
    """The kind of a run's draft, imported after the check that PyTorch is installed."""
    module = importlib.import_module(f"pyllama_spec.train.kinds.{config.kind}")
    kind: Kind[Any, Any] = module.KIND(config, model)
    return kind


@contextmanager
def _opened(config: RunConfig) -> Iterator[Model]:
    """The target, which generates text."""
    with Model(config.target, n_gpu_layers=config.n_gpu_layers, devices=config.devices) as model:
        check_target(model)
        yield model


def _check_before_opening(config: RunConfig) -> None:
    """Raises for faults that show before the target is loaded, which may take minutes."""
    if (why_not := why_no_output(config.out)) is not None:
        raise ArgumentError("out", problem=f"cannot be written: {why_not}")
    if config.out.exists() and config.out.samefile(config.target):
        raise ArgumentError(
            "out", config.out, problem="is the target itself", remedy="give another output"
        )
    if config.corpus.prompts is not None:
        read_prompts(config.corpus.prompts)
    need("torch", "gguf")
    from pyllama_spec.train.run.pipeline import device_of

    device_of(config)
