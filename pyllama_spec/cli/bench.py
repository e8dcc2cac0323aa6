"""bench: measures how much faster a draft makes a target, and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyllama_spec.cli.options import (
    DRAFT_HELP,
    PLACES,
    add_options,
    given,
    own_draft,
    path_argument,
)
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.files import whole_file, why_no_output
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.terminal import ProgressBar, fitted

if TYPE_CHECKING:
    from pyllama_spec.bench.figures import BenchResult

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_EXIT_OK, _EXIT_INTERRUPTED = 0, 130


def add_bench(commands: _Commands) -> None:
    """Adds the command `bench`."""
    parser = commands.add_parser(
        "bench", help="measure plain and speculative decoding, interleaved, prompt by prompt"
    )
    add = parser.add_argument
    add("-m", "--model", dest="model_path", type=path_argument, required=True, metavar="MODEL",
        help="the target's GGUF")  # fmt: skip
    add("-d", "--draft", required=True, action="append",
        help=f"{DRAFT_HELP}; several are measured in one run")  # fmt: skip
    add("--prompts", type=Path, help="a prompts file; without it the package's own")
    add("-n", "--max-tokens", dest="n_tokens", type=int, default=128, metavar="MAX_TOKENS",
        help="maximum number of tokens per prompt")  # fmt: skip
    add("--repeat", dest="repeats", type=int, default=3, metavar="REPEAT",
        help="how often each prompt is measured")  # fmt: skip
    add_options(parser, OpenOptions, "draft length")
    add("--json", type=Path, metavar="OUT", help="write all figures to OUT, after each prompt")
    add("--plot", type=Path, metavar="OUT.png", help="plot them (needs matplotlib)")
    add("--temp", dest="temperature", type=float, default=0.0, metavar="TEMP",
        help="sampling temperature; 0 is greedy")  # fmt: skip
    add("--seed", type=int, default=1, help="seed of sampling")
    add("--chat", action=argparse.BooleanOptionalAction, default=None,
        help="render all prompts by the chat template, or none [as each line says]")  # fmt: skip
    add_options(parser, OpenOptions, *PLACES)
    add("-c", "--n-ctx", type=int, help="context length [as long as needed]")
    add_options(parser, OpenOptions, "threads")
    parser.set_defaults(run=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    """Measures, prints the table and writes the files; Ctrl-C keeps finished measurements."""
    # Here, so that the other commands do not wait for an HTTP client to be imported.
    from pyllama_spec import bench

    if args.json is not None and (why_not := why_no_output(args.json.absolute())) is not None:
        raise ArgumentError("json", problem=why_not)
    if args.plot is not None:
        bench.check_plot(args.plot)
    if {*args.draft} == {"none"}:
        raise ArgumentError(
            "drafts", "none", problem="alone compares plain decoding with itself",
            remedy="name a draft's GGUF or prompt-lookup; for the noise of this machine give both, "
            "-d DRAFT.gguf -d none",
        )  # fmt: skip
    drafts = tuple(own_draft(draft) for draft in args.draft)
    known = {field.name for field in fields(bench.BenchConfig)}
    drafting = {"draft": drafts[0], "also": drafts[1:], "command": args.command_line}
    config = bench.BenchConfig(**{**given(args, known), **drafting})
    result = bench.run(config, ProgressBar("measuring"), partial(_keep, args.json))
    print("\n".join(map(_line, bench.table(result).split("\n"))), flush=True)
    if args.json is not None:
        _write(args.json, result)
    if args.plot is not None:
        bench.plot(result, args.plot)
    if result.is_interrupted:
        print("pyllama-spec: interrupted; what was measured is kept", file=sys.stderr)
        return _EXIT_INTERRUPTED
    if result.failure is not None:
        raise PyllamaSpecError(f"{result.failure} (the measurements so far are kept)")
    return _EXIT_OK


def _line(text: str) -> str:
    """Wraps sentences on a narrow terminal, and leaves table rows whole."""
    return text if "  " in text.strip() else fitted(text, sys.stdout, 2)


def _keep(path: Path | None, result: BenchResult, prompt_id: str) -> None:
    """Writes the figures so far; prints a line where no bar is drawn.

    A failed write does not end the run.
    """
    if not sys.stderr.isatty():
        print(_progress(result, prompt_id), file=sys.stderr)
    if path is not None:
        with contextlib.suppress(PyllamaSpecError):
            _write(path, result)


def _progress(result: BenchResult, prompt_id: str) -> str:
    """The last repeat of a prompt: plain decoding, and each draft beside it."""
    parts: list[str] = []
    for one in (result, *result.others):
        prompt = next(prompt for prompt in one.prompts if prompt.id == prompt_id)
        last = prompt.pairs[-1]
        if not parts:
            said = f"{prompt_id}, repeat {len(prompt.pairs)}: "
            parts.append(f"{said}{last.plain.timing.decode_tps:.1f} tokens per second")
        parts.append(f"{last.spec.timing.decode_tps:.1f} with {one.setup.draft}")
    return ", ".join(parts)


def _write(path: Path, result: BenchResult) -> None:
    """Writes the whole file or nothing: a full disk leaves the old file."""
    from pyllama_spec import bench

    text = json.dumps(bench.to_json(result), indent=1) + "\n"
    try:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PyllamaSpecError(
            f"cannot write {path}: {error}; only the table above was written"
        ) from None
