"""The options for devices."""

from __future__ import annotations

import argparse
from typing import Any

from pyllama_spec.cli.option_pairs import Once, OnceSwitch

_AUTO = {"auto": None, "on": True, "off": False}


def names(text: str) -> tuple[str, ...]:
    """A type of arguments: names with commas between them."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between them")
    return words


class _Servers(Once):
    """With servers -ngl is -1 by default, since they are given to be used."""

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
    """Adds which devices take which layers of a target and its draft."""
    add_target_options(parser)
    parser.add_argument(
        "-ngld", "--draft-gpu-layers", type=int, default=None, metavar="N",
        help="the same for the draft [that of the target; 0 with --rpc-servers]",
    )  # fmt: skip
    parser.add_argument(
        "--rpc-servers", type=names, default=None, action=_Servers, metavar="HOST:PORT,...",
        help="pyllama-spec rpc-server of other machines: they take the target's layers, all of "
        "them unless -ngl follows; the draft stays here unless -ngld says otherwise",
    )  # fmt: skip
    parser.add_argument(
        "--rpc-timeout", type=float, default=None, metavar="S",
        help="seconds that one answer of a server may take [300]",
    )  # fmt: skip


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds which devices take which layers of a target."""
    parser.add_argument(
        "-ngl", "--n-gpu-layers", type=int, default=0, metavar="N",
        help="layers on devices; -1: all [none]",
    )  # fmt: skip
    parser.add_argument(
        "-dev", "--devices", type=names, default=None, metavar="NAME,...",
        help="devices that take layers, by their names in doctor [all]",
    )  # fmt: skip


def add_context_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the parts of a context on the devices of its layers."""
    parser.add_argument(
        "--offload-kqv", action=OnceSwitch, default=True,
        help="keep the KV cache with its layers, or in the host's memory [with them]",
    )  # fmt: skip
    parser.add_argument(
        "--op-offload", action="store_true",
        help="a device computes wide batches of layers in the host's memory too: rows of a prompt "
        "and of a draft are rounded differently",
    )  # fmt: skip
    parser.add_argument(
        "--flash-attn", choices=tuple(_AUTO), default="auto",
        help="fused attention [off on the CPU, the engine's choice on a device]",
    )  # fmt: skip


def layer_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of add_layer_options() are as keywords of Llama()."""
    keywords = ("n_gpu_layers", "draft_gpu_layers", "devices", "rpc_servers", "rpc_timeout")
    return {name: getattr(args, name) for name in keywords}


def context_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of add_context_options() are as keywords of Llama()."""
    return {
        "offload_kqv": args.offload_kqv,
        "op_offload": args.op_offload,
        "flash_attn": _AUTO[args.flash_attn],
    }
