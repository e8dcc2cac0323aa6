"""bench: measures how much faster a draft makes a target, and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyllama_spec.cli.device_options import (
    add_context_options,
    add_layer_options,
    context_keywords,
    layer_keywords,
)
from pyllama_spec.cli.own_draft import HELP, own_draft
from pyllama_spec.cli.wording import file_name
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.files import whole_file, why_no_output
from pyllama_spec.speculative.controller.choice import NAMES
from pyllama_spec.terminal import ProgressBar, fitted

if TYPE_CHECKING:
    from pyllama_spec.bench.figures import BenchResult

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_EXIT_OK, _EXIT_FAILURE, _EXIT_INTERRUPTED = 0, 1, 130


def add_bench(commands: _Commands) -> None:
    """Adds the command `bench`."""
    parser = commands.add_parser(
        "bench", help="measure plain and speculative decoding, interleaved, prompt by prompt"
    )
    add = parser.add_argument
    add("-m", "--model", type=file_name, required=True, help="the target's GGUF")
    add(
        "-d", "--draft", required=True, action="append",
        help="none, prompt-lookup, suffix, grammar, mtp, auto, or the GGUF of a draft or of a "
        f"smaller model, {HELP}; several are measured in one run",
    )  # fmt: skip
    add("--prompts", type=Path, default=None, help="a prompts file; without it the package's own")
    add("-n", "--max-tokens", type=int, default=128, help="maximum number of tokens per prompt")
    add("--repeat", type=int, default=3, help="how often each prompt is measured")
    add("--n-draft", type=int, help="maximum number of tokens in a draft [the drafter's own]")
    add(
        "--p-min", type=float, default=None, metavar="P",
        help="of a draft in a file: stop below this probability [as the controller says]",
    )  # fmt: skip
    add(
        "--lookup", type=int, default=None, metavar="N",
        help="of a draft in a file: copy where the last N tokens occurred before, without asking "
        "it; 0: never [5]",
    )  # fmt: skip
    add(
        "--controller", default=None, choices=tuple(NAMES),
        help="how many tokens are drafted: as many as pay, --n-draft in every round, or none "
        "[profit]",
    )  # fmt: skip
    add("--json", type=Path, metavar="OUT", help="write all figures to OUT, after each prompt")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="plot them (needs matplotlib)")
    add("--temp", type=float, default=0.0, help="sampling temperature; 0 is greedy")
    add("--seed", type=int, default=1, help="seed of sampling")
    add(
        "--chat", action=argparse.BooleanOptionalAction, default=None,
        help="render all prompts by the chat template, or none [as each line says]",
    )  # fmt: skip
    add("-t", "--threads", type=int, default=None, help="CPU threads [the physical cores]")
    add_layer_options(parser)
    add_context_options(parser)
    add("-c", "--n-ctx", type=int, default=None, help="context length [as long as needed]")
    add("--verbose", action="store_true", help="show the engine's messages")
    parser.set_defaults(run=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    """Measures, prints the table and writes the files; Ctrl-C keeps finished measurements."""
    # Here, so that the other commands do not wait for an HTTP client to be imported.
    from pyllama_spec import bench

    if args.json is not None and (why_not := why_no_output(args.json.absolute())) is not None:
        raise ArgumentError(f"--json: {why_not}")
    if args.plot is not None:
        bench.check_plot(args.plot)
    if {*args.draft} == {"none"}:
        raise ArgumentError(
            "-d none alone compares plain decoding with itself: name a draft's GGUF or "
            "prompt-lookup; for the noise of this machine give both, -d DRAFT.gguf -d none"
        )
    drafts = tuple(own_draft(draft) for draft in args.draft)
    config = bench.BenchConfig(
        model_path=args.model,
        draft=drafts[0],
        also=drafts[1:],
        command=args.command_line,
        prompts=args.prompts,
        n_tokens=args.max_tokens,
        repeats=args.repeat,
        n_draft=args.n_draft,
        p_min=args.p_min,
        lookup=args.lookup,
        controller=args.controller,
        temperature=args.temp,
        seed=args.seed,
        chat=args.chat,
        n_threads=args.threads,
        **layer_keywords(args),
        **context_keywords(args),
        n_ctx=args.n_ctx,
    )
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
