"""convert: converts a draft in Hugging Face layout to one GGUF."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from pyllama_spec.convert import KINDS, convert_draft
from pyllama_spec.terminal import ProgressBar, dim

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_convert(commands: _Commands) -> None:
    """Adds the command `convert`."""
    parser = commands.add_parser(
        "convert", help="convert an EAGLE-3, DFlash or DSpark checkpoint to a GGUF"
    )
    parser.add_argument(
        "draft", type=Path, metavar="HF_DRAFT_DIR",
        help="the draft's folder, with config.json and .safetensors or .bin files",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=Path, required=True, metavar="TARGET.gguf", help="the target's GGUF"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.gguf", help="the file to write"
    )
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
