"""train: trains a draft for a target from its GGUF alone."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pyllama_spec.cli.options import add_target_options, add_threads, given
from pyllama_spec.cli.wording import file_name
from pyllama_spec.errors import ArgumentError
from pyllama_spec.gguf.writer import KINDS
from pyllama_spec.terminal import fitted
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
from pyllama_spec.train.config import N_NGRAMS, PRECISIONS, WEIGHTS, FitSettings, RunConfig
from pyllama_spec.train.progress import TerminalReporter

if TYPE_CHECKING:
    from pyllama_spec.train.run.from_use import UseReport
    from pyllama_spec.train.run.pipeline import TrainReport

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Group: TypeAlias = "argparse._ArgumentGroup"
_Config = TypeVar("_Config")
_Run = TypeVar("_Run", bound=RunConfig)
_GB = 1_000_000_000
_GOES_ON = "; what was made so far is kept, and the same command resumes the run"
_STAYS = "; the draft is as it was"


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
    _add_eagle3(kinds)
    _add_dflash(kinds)
    _add_mtp(kinds)


def _add_eagle3(kinds: _Commands) -> None:
    parser = kinds.add_parser("eagle3", help="train an EAGLE-3 head, which drafts a token per step")
    default = FitConfig()
    _add_files(parser, Eagle3TrainConfig(Path(), Path("x")))
    parser.add_argument("--ngrams", dest="n_ngrams", type=int, metavar="N",
        help=f"contexts of the n-gram table in the file [{N_NGRAMS}; 0 with --plain]")  # fmt: skip
    _add_corpus(parser)
    head = _add_head(parser, "as many", "six from the first to the last one's output")
    head.add_argument("--plain", action="store_true",
        help="without the norms of EAGLE-3.1, so that stock llama.cpp loads it")  # fmt: skip
    fit = _add_fit(parser, default, copied="0.1; 1 with --plain")
    fit.add_argument("--steps", dest="n_steps", type=int, default=default.n_steps, metavar="N",
        help="depth to which it learns to draft [%(default)s]")  # fmt: skip
    parser.set_defaults(run=run_eagle3, if_interrupted=_GOES_ON)


def _add_dflash(kinds: _Commands) -> None:
    parser = kinds.add_parser(
        "dflash", help="train a DFlash draft, which drafts a block in one pass"
    )
    default, sizes = DFlashFitConfig(), DFlashHeadConfig()
    _add_files(parser, DFlashTrainConfig(Path(), Path("x")))
    parser.add_argument("--ngrams", dest="n_ngrams", type=int, metavar="N",
        help=f"contexts of the n-gram table; 0 for stock llama.cpp [{N_NGRAMS}]")  # fmt: skip
    _add_corpus(parser)
    sizes_group = _add_head(
        parser, "the target's, all of them from the anchor", "six from the first to the last"
    )
    head = sizes_group.add_argument
    head("--layers", dest="n_layer", type=int, default=sizes.n_layer, metavar="N",
        help="layers [%(default)s]")  # fmt: skip
    head("--block", dest="block_size", type=int, default=sizes.block_size, metavar="N",
        help="slots of a block, the known token's included [%(default)s]")  # fmt: skip
    head("--causal", action="store_true", help="use causal attention within a block")
    head("--markov", dest="markov_rank", type=int, default=sizes.markov_rank, metavar="RANK",
        help="rank of the Markov head, which reads the token before; 0: none "
        "[%(default)s]")  # fmt: skip
    head("--confidence", action="store_true",
        help="add a head that predicts each token's acceptance; needs --markov")  # fmt: skip
    first = sizes_group.add_mutually_exclusive_group().add_argument
    first("--from-mask", dest="sample_from_anchor", action="store_false", default=None,
        help="draft no token at the known token's slot [without --markov]")  # fmt: skip
    first("--from-anchor", dest="sample_from_anchor", action="store_true", default=None,
        help="draft a token at the known token's slot too [with --markov]")  # fmt: skip
    fit = _add_fit(parser, default, copied="0.1").add_argument
    fit("--anchor-share", type=float, default=default.anchor_share, metavar="SHARE",
        help="share of positions at which training starts a block [%(default)g]")  # fmt: skip
    fit("--weights", choices=WEIGHTS, default=default.weights,
        help="loss weights of depths: fixed, or by each depth's share in accepted tokens "
        "[%(default)s]")  # fmt: skip
    fit("--dpace-alpha", type=float, default=default.dpace_alpha, metavar="A",
        help="smoothing of the weights of dpace [%(default)g]")  # fmt: skip
    fit("--hard-share", type=float, default=default.hard_share, metavar="SHARE",
        help="share of the loss for the text's token instead of the target's distribution "
        "[%(default)g]")  # fmt: skip
    parser.set_defaults(run=run_dflash, if_interrupted=_GOES_ON)


def _add_mtp(kinds: _Commands) -> None:
    parser = kinds.add_parser("mtp", help="train the MTP head of the model's file further")
    default = MtpFitConfig()
    _add_files(parser, MtpTrainConfig(Path(), Path("x")))
    _add_corpus(parser)
    fit = _add_fit(parser, default, copied="0.1").add_argument
    fit("--steps", dest="n_steps", type=int, default=default.n_steps, metavar="N",
        help="depth to which it learns to draft [%(default)s]")  # fmt: skip
    fit("--loss-vocab", dest="n_loss_vocab", type=int, default=default.n_loss_vocab, metavar="N",
        help="number of frequent tokens in losses and measurements [%(default)s]")  # fmt: skip
    parser.set_defaults(run=run_mtp, if_interrupted=_GOES_ON)


def _add_files(parser: argparse.ArgumentParser, default: RunConfig) -> None:
    add = parser.add_argument
    add("-m", "--model", dest="target", type=file_name, required=True, metavar="MODEL",
        help="the target's GGUF, of the type that will decode")  # fmt: skip
    add("-o", "--output", dest="out", type=Path, required=True, metavar="OUT.gguf",
        help="the file to write")  # fmt: skip
    add("--init", type=Path, metavar="DRAFT.gguf",
        help="start with this draft's weights, to train on more text or for a fine-tuned "
        "target")  # fmt: skip
    add("--from-use", type=file_name, metavar="STORE",
        help="train OUT.gguf, or the draft of --init, further on the answers in a draft memory, "
        "mostly where it was wrong; write the result only if it is better")  # fmt: skip
    add("--work", type=Path, help="folder of text, features and checkpoints [OUT.gguf.train]")
    add("--restart", action="store_true", help="train from the beginning, with the same text")
    add("--max-disk", dest="max_disk_bytes", type=float, metavar="GB",
        default=default.max_disk_bytes / _GB,
        help="maximum disk space of features; others are computed again in every epoch "
        "[%(default)g]")  # fmt: skip
    add("--type", dest="export_type", choices=KINDS,
        help=f"type of the matrices in the file [{default.export_type}; with --from-use the "
        "draft's]")  # fmt: skip
    add_target_options(parser)
    add("--device", choices=("cpu", "cuda"), help="device to train on [a GPU if there is one]")
    add_threads(parser)


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    group, default = parser.add_argument_group("text"), CorpusConfig()
    add = group.add_argument
    n_of_use = UseConfig(Path()).n_tokens
    add("--tokens", dest="n_tokens", type=int, metavar="N",
        help="answer tokens to train on "
        f"[{default.n_tokens}; with --from-use the newest {n_of_use}]")  # fmt: skip
    add("--prompts", type=Path, metavar="F.jsonl",
        help="a JSON prompt per line [the target writes prompts]")  # fmt: skip
    add("--n-ctx", type=int, default=default.n_ctx, help="maximum sequence length [%(default)s]")
    add("--parallel", dest="n_parallel", type=int, default=default.n_parallel, metavar="N",
        help="sequences generated in parallel [%(default)s]")  # fmt: skip
    add("--greedy-share", type=float, default=default.greedy_share, metavar="SHARE",
        help="share of answers at temperature 0 [%(default)s]")  # fmt: skip
    add("--temperature", type=float, default=default.temperature, metavar="T",
        help="temperature of the other answers [%(default)s]")  # fmt: skip
    add("--seed", type=int, default=default.seed, help="seed of all random draws [%(default)s]")


def _add_head(parser: argparse.ArgumentParser, n_head_kv: str, layers: str) -> _Group:
    group = parser.add_argument_group("head")
    add = group.add_argument
    add("--target-layers", type=layer_list, metavar="A,B,C",
        help=f"layer inputs of the target that the draft reads [{layers}]")  # fmt: skip
    add("--draft-vocab", dest="n_draft_vocab", type=int, metavar="N",
        help="size of the draft's vocabulary [as many as pay]")  # fmt: skip
    add("--n-head", type=int, help="attention heads [the target's]")
    add("--n-head-kv", type=int, help=f"key/value heads [{n_head_kv}]")
    add("--n-ff", type=int, help="width of its feed-forward block [the target's]")
    return group


def _add_fit(parser: argparse.ArgumentParser, default: FitSettings, copied: str) -> _Group:
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--epochs", type=float, default=default.epochs, help="passes over the text [%(default)g]")
    add("--step-decay", type=float, default=default.step_decay, metavar="D",
        help="loss weight of a depth relative to the one before [%(default)g]")  # fmt: skip
    add("--missed-share", type=float, default=default.missed_share, metavar="SHARE",
        help="share of drafts trained beyond their first wrong token [%(default)g]")  # fmt: skip
    add("--copied-share", type=float, metavar="SHARE",
        help=f"share of drafts trained where decoding would copy [{copied}]")  # fmt: skip
    if not isinstance(default, MtpFitConfig):  # whose matrix is the target's own
        add("--train-output", action="store_true",
            help="train the output matrix too, for much more text, on a GPU")  # fmt: skip
    add("--batch-tokens", type=int, default=default.batch_tokens, metavar="N",
        help="tokens of a batch, prompts included [%(default)s]")  # fmt: skip
    add("--lr", type=float, default=default.lr, help="peak learning rate [%(default)g]")
    add("--weight-decay", type=float, default=default.weight_decay,
        help="weight decay of matrices [%(default)g]")  # fmt: skip
    add("--patience", type=int, default=default.patience, metavar="N",
        help="measurements without progress before training stops [%(default)s]")  # fmt: skip
    add("--precision", choices=PRECISIONS, default=default.precision,
        help="type of matrix products; auto measures which is faster [%(default)s]")  # fmt: skip
    return group


def layer_list(text: str) -> tuple[int, ...]:
    """Parses a list of layers such as "2,15,27"."""
    return tuple(int(part) for part in text.split(","))


def _bytes_of(max_disk: float) -> int:
    """Parses --max-disk as bytes."""
    if max_disk < 0:
        raise ArgumentError(f"--max-disk {max_disk:g} is below 0")
    if not math.isfinite(max_disk * _GB):
        raise ArgumentError(f"--max-disk {max_disk:g}: give a finite number of gigabytes")
    return int(max_disk * _GB)


def _filled(kind: type[_Config], args: argparse.Namespace, **more: Any) -> _Config:
    """A part of the configuration, of the options that it has."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**given(args, known), **more})


def _config(args: argparse.Namespace, kind: type[_Run], **parts: Any) -> _Run:
    """The configuration of a run; `parts` are its head and its fit."""
    if args.from_use is not None and args.export_type is not None:
        raise ArgumentError(f"--type {args.export_type}: a draft from use keeps its type")
    parts["max_disk_bytes"] = _bytes_of(args.max_disk_bytes)
    if args.from_use is None:
        parts["corpus"] = _filled(CorpusConfig, args)
    else:
        parts["use"] = _filled(UseConfig, args, store=args.from_use)
        parts["corpus"] = _filled(CorpusConfig, args, n_tokens=CorpusConfig().n_tokens)
    return _filled(kind, args, **parts)


def run_eagle3(args: argparse.Namespace) -> int:
    """Trains a head and prints the result."""
    norms = {"fc_norm": not args.plain, "norm_output": not args.plain}
    config = _config(
        args, Eagle3TrainConfig,
        head=_filled(HeadConfig, args, **norms), fit=_filled(FitConfig, args),
    )  # fmt: skip
    if config.use is not None:
        return _go_on(config, args)
    _print_report(train_eagle3(config, TerminalReporter()), config.work_dir)
    return 0


def run_dflash(args: argparse.Namespace) -> int:
    """Trains a draft and prints the result."""
    config = _config(
        args, DFlashTrainConfig,
        head=_filled(DFlashHeadConfig, args), fit=_filled(DFlashFitConfig, args),
    )  # fmt: skip
    if config.use is not None:
        return _go_on(config, args)
    _print_report(train_dflash(config, TerminalReporter()), config.work_dir)
    return 0


def run_mtp(args: argparse.Namespace) -> int:
    """Trains an MTP head further and prints the result; returns 1 if it is no better."""
    config = _config(args, MtpTrainConfig, fit=_filled(MtpFitConfig, args))
    if config.use is not None:
        return _go_on(config, args)
    report = train_mtp(config, TerminalReporter())
    _print_report(report, config.work_dir)
    return 1 if report.why_not else 0


def _go_on(config: AnyConfig, args: argparse.Namespace) -> int:
    """Trains a draft further from use and prints the result; returns 1 if it is no better."""
    args.if_interrupted = _STAYS
    report = train_from_use(config, TerminalReporter())
    _print_use(report)
    return 0 if report.is_replaced else 1


def _print_use(report: UseReport) -> None:
    _say(
        f"learned from {report.n_answer_tokens} answer tokens of {report.n_conversations} "
        f"conversations, of which a draft had missed {report.n_missed}: "
        + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    )
    _say(f"held-out conversations: {report.before} before, {report.after} now")
    _say(f"other text: {report.others_before} before, {report.others_after} now")
    for note in report.notes:
        _say(f"note: {note}")
    if not report.is_replaced:
        _say(f"{report.path} is as it was: {report.why_not}")
    elif report.kept is None:
        _say(f"{report.path} is the new draft")
    else:
        kept = report.kept if report.path.is_symlink() else report.kept.name
        _say(f"{report.path} is the new draft; the one before is {kept}")


def _print_report(report: TrainReport, work: Path) -> None:
    before, after = report.untrained, report.trained
    by_depth = " / ".join(f"{share:.2f}" for share in after.by_depth)
    _say(f"{report.path}: {report.n_bytes / 1e6:.1f} MB" if not report.why_not
         else f"{report.path} was not written: {report.why_not}")  # fmt: skip
    if after.n_rounds:
        _say(f"held-out greedy text: accepted {by_depth}, {after} "
             f"(untrained {before.tokens_per_round:.2f})")  # fmt: skip
        if not report.why_not and after.tokens_per_round <= before.tokens_per_round:
            _say("note: training made the draft no better than it was before the first step: it is "
                 "too weak to use. Train on more text (--tokens)")  # fmt: skip
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.seconds.items())
    _say(
        f"trained on {report.n_answer_tokens} answer tokens, {report.n_tokens_seen} seen; "
        f"this run: {stages}"
    )
    left = f"text, features, checkpoints and curves are in {work}"
    _say(f"{left}; with more --tokens the same command adds to that text" if report.why_not
         else f"{left}; the draft does not need them")  # fmt: skip
    for note in report.notes:
        _say(f"note: {note}")


def _say(text: str) -> None:
    print(fitted(text, sys.stdout, 2))
