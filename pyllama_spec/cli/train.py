"""train: trains a draft for a target from its GGUF alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from pyllama_spec.cli.options import add_options, given, path_argument
from pyllama_spec.cli.wording import say
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_options import OpenOptions
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
    UseConfig,
    train_dflash,
    train_eagle3,
    train_from_use,
    train_mtp,
)
from pyllama_spec.train.api import AnyConfig
from pyllama_spec.train.config import FitSettings, HeadSettings, RunConfig
from pyllama_spec.train.progress import TerminalReporter

if TYPE_CHECKING:
    from pyllama_spec.train.run.from_use import UseReport
    from pyllama_spec.train.run.pipeline import TrainReport

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Config = TypeVar("_Config")
_GOES_ON = "; what was made so far is kept, and the same command resumes the run"
_STAYS = "; the draft is as it was"


class _Kind(NamedTuple):
    """A kind of draft: its tables, what trains it, and help that differs from the tables'."""

    run: type[RunConfig]
    head: type[HeadSettings] | None
    fit: type[FitSettings]
    train: Callable[..., TrainReport]
    help: str
    helps: Mapping[str, str] = {}


_KINDS = {
    "eagle3": _Kind(
        Eagle3TrainConfig, HeadConfig, FitConfig, train_eagle3,
        "train an EAGLE-3 head, which drafts a token per step",
        {
            "target_layers": "layer inputs of the target that the draft reads [six from the first "
            "to the last one's output]",
        },
    ),
    "dflash": _Kind(
        DFlashTrainConfig, DFlashHeadConfig, DFlashFitConfig, train_dflash,
        "train a DFlash draft, which drafts a block in one pass",
        {
            "export_type": "type of the matrices in the file [q8_0; with --from-use the draft's]",
        },
    ),
    "mtp": _Kind(
        MtpTrainConfig, None, MtpFitConfig, train_mtp,
        "train the MTP head of the model's file further",
    ),
}  # fmt: skip


def add_train(commands: _Commands) -> None:
    """Adds the command `train`."""
    parser = commands.add_parser(
        "train",
        help="train a draft for a model from its GGUF alone",
        description="Trains a draft for a target from its GGUF alone: the target generates the "
        "text, and the draft learns to predict it. You can interrupt it at any time: the same "
        "command resumes the run.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, kind in _KINDS.items():
        command = kinds.add_parser(name, help=kind.help)
        _add_run(command, kind)
        command.set_defaults(run=run_train, if_interrupted=_GOES_ON)


def _add_run(parser: argparse.ArgumentParser, kind: _Kind) -> None:
    """Adds the options of a kind."""
    add = parser.add_argument
    add("-m", "--model", dest="target", type=path_argument, required=True, metavar="MODEL",
        help="the target's GGUF, of the type that will decode")  # fmt: skip
    add("-o", "--output", dest="out", type=Path, required=True, metavar="OUT.gguf",
        help="the file to write")  # fmt: skip
    add("--from-use", type=path_argument, metavar="STORE",
        help="train OUT.gguf, or the draft of --init, further on the answers in a draft memory; "
        "write the result only if it is better")  # fmt: skip
    helps = kind.helps
    add_options(parser, kind.run, "draft", "run", helps=helps)
    add_options(parser, OpenOptions, "target", "threads")
    add_options(parser.add_argument_group("text"), CorpusConfig, "")
    if kind.head is not None:
        add_options(parser.add_argument_group("head"), kind.head, "", helps=helps)
    add_options(parser.add_argument_group("training"), kind.fit, "", helps=helps)


def _filled(kind: type[_Config], args: argparse.Namespace, **more: Any) -> _Config:
    """A part of the configuration, of the options that it has."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**given(args, known), **more})


def _config(args: argparse.Namespace, kind: _Kind) -> AnyConfig:
    """The configuration of a run."""
    if args.from_use is not None and args.export_type is not None:
        raise ArgumentError(
            "export_type", args.export_type, problem="is for a new draft",
            remedy="leave it out: a draft from use keeps its type",
        )  # fmt: skip
    parts: dict[str, Any] = {}
    if args.from_use is None:
        parts["corpus"] = _filled(CorpusConfig, args)
    else:
        parts["use"] = _filled(UseConfig, args, store=args.from_use)
        parts["corpus"] = _filled(CorpusConfig, args, n_tokens=CorpusConfig().n_tokens)
    if kind.head is not None:
        parts["head"] = _filled(kind.head, args)
    config: Any = _filled(kind.run, args, **parts, fit=_filled(kind.fit, args))
    return config  # type: ignore[no-any-return]


def run_train(args: argparse.Namespace) -> int:
    """Trains a draft and prints the result; returns 1 if it is no better."""
    kind = _KINDS[args.kind]
    config = _config(args, kind)
    if config.use is not None:
        args.if_interrupted = _STAYS
        used = train_from_use(config, TerminalReporter())
        _print_use(used)
        return 0 if used.is_replaced else 1
    report = kind.train(config, TerminalReporter())
    _print_report(report, config.work_dir)
    return 1 if report.why_not else 0


def _print_use(report: UseReport) -> None:
    say(
        f"learned from {report.n_answer_tokens} answer tokens of {report.n_conversations} "
        "conversations: "
        + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    )
    say(f"held-out conversations: {report.before} before, {report.after} now")
    say(f"other text: {report.others_before} before, {report.others_after} now")
    for note in report.notes:
        say(f"note: {note}")
    if not report.is_replaced:
        say(f"{report.path} is as it was: {report.why_not}")
    elif report.kept is None:
        say(f"{report.path} is the new draft")
    else:
        kept = report.kept if report.path.is_symlink() else report.kept.name
        say(f"{report.path} is the new draft; the one before is {kept}")


def _print_report(report: TrainReport, work: Path) -> None:
    before, after = report.untrained, report.trained
    by_depth = " / ".join(f"{share:.2f}" for share in after.by_depth)
    say(f"{report.path}: {report.n_bytes / 1e6:.1f} MB" if not report.why_not
         else f"{report.path} was not written: {report.why_not}")  # fmt: skip
    if after.n_rounds:
        say(f"held-out greedy text: accepted {by_depth}, {after} "
             f"(untrained {before.tokens_per_round:.2f})")  # fmt: skip
        if not report.why_not and after.tokens_per_round <= before.tokens_per_round:
            say("note: training made the draft no better than it was before the first step: it is "
                 "too weak to use. Train on more text (--tokens)")  # fmt: skip
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    say(
        f"trained on {report.n_answer_tokens} answer tokens, {report.n_tokens_seen} seen; "
        f"this run: {stages}"
    )
    left = f"text, features, checkpoints and curves are in {work}"
    say(f"{left}; with more --tokens the same command adds to that text" if report.why_not
         else f"{left}; the draft does not need them")  # fmt: skip
    for note in report.notes:
        say(f"note: {note}")
