"""convert: a draft in Hugging Face layout to one GGUF, and an EAGLE-3 head back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from pyllama_spec.convert import KINDS, LAYOUTS, convert_draft, publish_eagle3
from pyllama_spec.errors import ArgumentError
from pyllama_spec.terminal import ProgressBar, dim

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_convert(commands: _Commands) -> None:
    """Adds the command `convert`."""
    parser = commands.add_parser(
        "convert", help="convert an EAGLE-3, DFlash or DSpark checkpoint to a GGUF"
    )
    parser.add_argument(
        "draft", type=Path, metavar="HF_DRAFT_DIR",
        help="the draft's folder, with config.json and .safetensors or .bin files; with --to the "
        "GGUF of an EAGLE-3 head",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=Path, metavar="TARGET.gguf",
        help="the target's GGUF; with --to the name or folder of its original",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.gguf",
        help="the file to write, or with --to the folder",
    )  # fmt: skip
    parser.add_argument(
        "--to", choices=LAYOUTS,
        help="write the head as a checkpoint for vLLM (speculators) or SGLang (eagle3)",
    )  # fmt: skip
    parser.add_argument(
        "--type",
        choices=KINDS,
        help="type of the matrices [the draft's own]",
    )
    parser.add_argument(
        "--layer-ids", choices=("input", "output"), default=None,
        help="how the draft's layer ids count, if its files do not say: id k is the "
        "input of layer k, or the output of block k",
    )  # fmt: skip
    parser.set_defaults(run=run_convert)


def run_convert(args: argparse.Namespace) -> int:
    """Converts, and prints the result in one line; notes go to stderr."""
    if args.to is not None:
        for note in publish_eagle3(args.draft, args.output, args.to, args.target):
            print(dim(f"[note: {note}]", sys.stderr), file=sys.stderr)
        print(f"{args.output}: config.json and model.safetensors in the layout {args.to}")
        return 0
    if args.target is None:
        raise ArgumentError("target", None, "the GGUF that the draft was made for")
    report = convert_draft(
        args.draft,
        args.target,
        args.output,
        kind=args.type,
        layer_ids=args.layer_ids,
        progress=ProgressBar("converting"),
    )
    for note in report.notes:
        print(dim(f"[note: {note}]", sys.stderr), file=sys.stderr)
    layers = ", ".join(map(str, report.target_layers))
    vocabulary = "" if report.n_draft_vocab is None else f", {report.n_draft_vocab} draft tokens"
    blocks = "" if report.block_size is None else f", blocks of {report.block_size}"
    print(
        f"{report.path}: {report.draft}, layer inputs {layers} of the target"
        f"{blocks}{vocabulary}, {report.n_tensors} tensors, {report.type_name}, "
        f"{report.n_bytes / 1e6:.1f} MB"
    )
    return 0
