"""The options that commands share; each is stored under its name in Python."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyllama_spec.cli.own_draft import HELP, own_draft
from pyllama_spec.cli.wording import file_name
from pyllama_spec.drafters.registry import AUTO, MTP, NONE, needs_file
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama import Llama
from pyllama_spec.llama.open_options import KEYWORDS
from pyllama_spec.requests.options import ACCEPTANCE, RequestOptions
from pyllama_spec.speculative.controller.choice import NAMES

_AUTO = {"auto": None, "on": True, "off": False}
_OF_DRAFT = (
    "n_draft", "p_min", "lookup", "controller", "acceptance", "draft_gpu_layers", "draft_memory",
    "draft_n_ctx",
)  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    """An argument type: names separated by commas."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between them")
    return words


def given(args: argparse.Namespace, known: Collection[str]) -> dict[str, Any]:
    """The options with these names that have a value, as keywords."""
    keywords = {name: value for name, value in vars(args).items() if name in known}
    if "flash_attn" in keywords:
        keywords["flash_attn"] = _AUTO[keywords["flash_attn"]]
    return {name: value for name, value in keywords.items() if value is not None}


def open_llama(args: argparse.Namespace) -> Llama:
    """Opens the model and the draft that the options name."""
    draft = None if args.draft == NONE else own_draft(args.draft)
    return Llama(**{**given(args, KEYWORDS), "model_path": args.model_path, "draft": draft})


class _Servers(argparse._StoreAction):
    """Sets -ngl to -1 by default, since --rpc-servers names servers to use."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.n_gpu_layers = namespace.n_gpu_layers or -1


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Adds -t, and --verbose, which most commands end with."""
    add = parser.add_argument
    add("-t", "--threads", dest="n_threads", type=int, metavar="N",
        help="CPU threads [the physical cores]")  # fmt: skip
    add("--verbose", action="store_true", help="show the engine's messages")


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the layers of a target on devices."""
    add = parser.add_argument
    add("-ngl", "--n-gpu-layers", type=int, default=0, metavar="N",
        help="layers on devices; -1: all [none]")  # fmt: skip
    add("-dev", "--devices", type=names, metavar="NAME,...",
        help="devices that take layers, by their names in doctor [all]")  # fmt: skip


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the layers of a target and its draft on devices."""
    add_target_options(parser)
    add = parser.add_argument
    add("-ngld", "--draft-gpu-layers", type=int, metavar="N",
        help="layers of the draft on devices [as -ngl; 0 with --rpc-servers]")  # fmt: skip
    add("--rpc-servers", type=names, action=_Servers, metavar="HOST:PORT,...",
        help="pyllama-spec rpc-server of other machines, for the target's layers: for all of them "
        "unless -ngl follows; the draft stays here without -ngld")  # fmt: skip
    add("--rpc-timeout", type=float, metavar="S",
        help="timeout of one answer of a server in seconds [300]")  # fmt: skip


def add_context_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the parts of a context on devices."""
    add = parser.add_argument
    add("--offload-kqv", action=argparse.BooleanOptionalAction, default=True,
        help="keep the KV cache with its layers, or in the host's memory [with them]")  # fmt: skip
    add("--op-offload", action="store_true",
        help="compute wide batches of layers in the host's memory on a device too: rows of a "
        "prompt and of a draft then differ by rounding")  # fmt: skip
    add("--flash-attn", choices=tuple(_AUTO), default="auto",
        help="fused attention [off on the CPU, the engine's choice on a device]")  # fmt: skip


def add_draft_length_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how much is drafted."""
    add = parser.add_argument
    add("--n-draft", type=int, help="maximum number of tokens in a draft [the drafter's own]")
    add("--p-min", type=float, metavar="P",
        help="of a draft in a file: stop below this probability; the controller is off "
        "[as the controller says]")  # fmt: skip
    add("--lookup", type=int, metavar="N",
        help="of a draft in a file: copy where the last N tokens occurred before, without asking "
        "it; 0: never [5]")  # fmt: skip
    add("--controller", choices=tuple(NAMES),
        help="how many tokens are drafted: as many as pay, --n-draft in every round, or none "
        "[profit]")  # fmt: skip


def add_model_options(
    parser: argparse.ArgumentParser, instead: argparse._MutuallyExclusiveGroup | None = None
) -> None:
    """Adds the options for the model and how it is opened."""
    (instead or parser).add_argument(
        "-m", "--model", dest="model_path", type=file_name, metavar="MODEL",
        required=instead is None, help="the target's GGUF",
    )  # fmt: skip
    add = parser.add_argument
    add("-d", "--draft", default=NONE,
        help="none, prompt-lookup, suffix, grammar, mtp (the head in the model's file), auto, or "
        f"the GGUF of a draft or of a smaller model, {HELP}")  # fmt: skip
    add_draft_length_options(parser)
    add("--acceptance", choices=ACCEPTANCE,
        help="how tokens of a smaller model are accepted at a temperature: exact; noise: both "
        "models draw by the same noise, which accepts more of a similar model; a seed gives the "
        "same text with any draft, and another than exact; distribution: the text depends on the "
        "draft [exact]")  # fmt: skip
    add("--draft-memory", type=file_name, metavar="FILE",
        help="a store of texts to copy from, which this text is added to; made if "
        "missing, see the command memory")  # fmt: skip
    add("-c", "--n-ctx", type=int, default=4096, help="context length")
    add("--draft-n-ctx", type=int, metavar="N",
        help="context length of the draft model [as long as useful]")  # fmt: skip
    add_layer_options(parser)
    add_context_options(parser)
    add("-q", "--quiet", action="store_true", help="print no figures after a text")
    add_threads(parser)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a generation."""
    add, default = parser.add_argument, RequestOptions()
    add("-n", "--max-tokens", type=int, default=128,
        help="maximum new tokens; below 1: up to the context")  # fmt: skip
    add("--temp", dest="temperature", type=float, default=0.0, metavar="TEMP",
        help="sampling temperature; 0 is greedy")  # fmt: skip
    add("--seed", type=int, default=1, help="seed of sampling; -1: a random seed")
    add("--top-k", type=int, default=default.top_k,
        help="sample among this many likeliest tokens; 0: among all")  # fmt: skip
    add("--top-p", type=float, default=default.top_p,
        help="sample among the likeliest tokens with this share of probability")  # fmt: skip
    add("--min-p", type=float, default=default.min_p,
        help="sample only tokens with at least this share of the likeliest one's "
        "probability")  # fmt: skip
    add("--repeat-penalty", type=float, default=default.repeat_penalty,
        help="penalty on generated tokens, which divides their logits; 1: off")  # fmt: skip
    add("--stop", action="append", default=[], help="a string that ends the text")
    add("--grammar", type=Path,
        help="a file with GBNF rules, or with Lark rules that begin with "
        "%%llguidance {}")  # fmt: skip


# ---- options that would do nothing though their writer relies on them


def check_pairs(args: argparse.Namespace) -> None:
    """Refuses an option that has no effect beside the others."""
    is_off = getattr(args, "controller", None) == "off"
    is_plain = getattr(args, "draft", None) == NONE and not getattr(args, "config", None)
    pairs = (
        # With serve --config, the file says it of each model.
        (("pooling_type",), _lacks(args, "embedding"), "is for --embeddings: give it too"),
        (("cache_size",), _lacks(args, "cache_dir"), "is for --cache-dir: give it too"),
        (("rpc_timeout",), _lacks(args, "rpc_servers"), "is for --rpc-servers: give them too"),
        (("draft_gpu_layers", "draft_n_ctx"), _drafts_without_model(args),
         "is for a draft with a model: leave it out"),
        (("n_draft", "p_min", "lookup"), is_off,
         "does nothing beside --controller off, which drafts nothing: leave out one"),
        (_OF_DRAFT, is_plain, "is for a draft: add -d"),
    )  # fmt: skip
    for idle, is_idle, why in pairs:
        for name in idle if is_idle else ():
            value = getattr(args, name, None)
            # By shared noise a seed has another text, without a draft too.
            if value is not None and (name, value) != ("acceptance", "noise"):
                raise ArgumentError(f"{args.options[name]} {why}")


def _lacks(args: argparse.Namespace, name: str) -> bool:
    return hasattr(args, name) and not (getattr(args, name) or getattr(args, "config", None))


def _drafts_without_model(args: argparse.Namespace) -> bool:
    """Whether all drafts are of drafters that have no model, such as suffix."""
    drafts = getattr(args, "draft", None) or ()
    if isinstance(drafts, Path):  # convert's folder
        return False
    drafts = [drafts] if isinstance(drafts, str) else drafts
    return not {*drafts} <= {NONE} and not any(
        one in (AUTO, MTP) or needs_file(one) for one in drafts
    )
