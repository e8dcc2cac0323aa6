"""The options for devices."""

from __future__ import annotations

import argparse
from typing import Any

_AUTO = {"auto": None, "on": True, "off": False}


def names(text: str) -> tuple[str, ...]:
    """An argument type: names separated by commas."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between them")
    return words


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


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the layers of a target and its draft on devices."""
    add_target_options(parser)
    parser.add_argument(
        "-ngld", "--draft-gpu-layers", type=int, default=None, metavar="N",
        help="layers of the draft on devices [as -ngl; 0 with --rpc-servers]",
    )  # fmt: skip
    parser.add_argument(
        "--rpc-servers", type=names, default=None, action=_Servers, metavar="HOST:PORT,...",
        help="pyllama-spec rpc-server of other machines, for the target's layers: for all of them "
        "unless -ngl follows; the draft stays here without -ngld",
    )  # fmt: skip
    parser.add_argument(
        "--rpc-timeout", type=float, default=None, metavar="S",
        help="timeout of one answer of a server in seconds [300]",
    )  # fmt: skip


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the layers of a target on devices."""
    parser.add_argument(
        "-ngl", "--n-gpu-layers", type=int, default=0, metavar="N",
        help="layers on devices; -1: all [none]",
    )  # fmt: skip
    parser.add_argument(
        "-dev", "--devices", type=names, default=None, metavar="NAME,...",
        help="devices that take layers, by their names in doctor [all]",
    )  # fmt: skip


def add_context_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that place the parts of a context on devices."""
    parser.add_argument(
        "--offload-kqv", action=argparse.BooleanOptionalAction, default=True,
        help="keep the KV cache with its layers, or in the host's memory [with them]",
    )  # fmt: skip
    parser.add_argument(
        "--op-offload", action="store_true",
        help="compute wide batches of layers in the host's memory on a device too: rows of a "
        "prompt and of a draft then differ by rounding",
    )  # fmt: skip
    parser.add_argument(
        "--flash-attn", choices=tuple(_AUTO), default="auto",
        help="fused attention [off on the CPU, the engine's choice on a device]",
    )  # fmt: skip


def layer_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """The options of add_layer_options() as keywords of Llama()."""
    keywords = ("n_gpu_layers", "draft_gpu_layers", "devices", "rpc_servers", "rpc_timeout")
    return {name: getattr(args, name) for name in keywords}


def context_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """The options of add_context_options() as keywords of Llama()."""
    return {
        "offload_kqv": args.offload_kqv,
        "op_offload": args.op_offload,
        "flash_attn": _AUTO[args.flash_attn],
    }
