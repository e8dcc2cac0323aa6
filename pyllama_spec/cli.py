"""The command line: pyllama-spec generate | chat | convert | quantize | doctor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec import cli_convert, cli_generate, doctor
from pyllama_spec._version import __version__
from pyllama_spec.cli_bench import add_bench
from pyllama_spec.cli_train import add_train
from pyllama_spec.drafters import Eagle3
from pyllama_spec.engine import Model, engine_version, quantize, quantize_types, set_log_level
from pyllama_spec.engine.errors import PyllamaSpecError
from pyllama_spec.terminal import ProgressBar

EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
        0 when done, 1 after a failure (one line on stderr says why and what to do), 2 for bad
        usage, 130 after Ctrl-C.
    """
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return EXIT_OK if not stop.code else EXIT_USAGE
    if getattr(args, "verbose", False):
        set_log_level("info")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except PyllamaSpecError as error:
        print(f"pyllama-spec: {_one_line(error)}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        print("pyllama-spec: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; say nothing, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        print(f"pyllama-spec: {_one_line(error)}", file=sys.stderr)
        return EXIT_FAILURE
    return code


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyllama-spec",
        description="Speculative decoding for GGUF models: the same text, faster.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"pyllama-spec {__version__} (llama.cpp {engine_version()})",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    cli_generate.add_generate(commands)
    cli_generate.add_chat(commands)
    cli_convert.add_convert(commands)
    add_train(commands)
    _add_quantize(commands)
    _add_doctor(commands)
    add_bench(commands)
    return parser


def _add_quantize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("quantize", help="write a GGUF in another type")
    parser.add_argument("input", type=Path, metavar="IN.gguf")
    parser.add_argument("output", type=Path, metavar="OUT.gguf")
    parser.add_argument("type", metavar="TYPE", help=", ".join(quantize_types()))
    parser.add_argument("--pure", action="store_true", help="all tensors in this type")
    parser.add_argument("--threads", type=int, default=0, help="0: all of the machine's")
    parser.add_argument("--verbose", action="store_true", help="show what the engine says")
    parser.set_defaults(run=_run_quantize)


def _run_quantize(args: argparse.Namespace) -> int:
    quantize(args.input, args.output, args.type, n_threads=args.threads, pure=args.pure)
    before, after = args.input.stat().st_size, args.output.stat().st_size
    print(f"{args.output}: {args.type.upper()}, {after / 1e6:.1f} MB (was {before / 1e6:.1f} MB)")
    return EXIT_OK


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor", help="versions, devices, and what a verify batch costs for a model"
    )
    parser.add_argument("-m", "--model", type=Path, help="the target; without it, no measurement")
    parser.add_argument("-d", "--draft", type=Path, help="a draft's GGUF: does it fit, its cost")
    parser.add_argument("--max-rows", type=int, default=doctor.MAX_ROWS, choices=range(2, 65))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("-ngl", "--n-gpu-layers", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--verbose", action="store_true", help="show what the engine says")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(args: argparse.Namespace) -> int:
    result = doctor.report()
    if args.draft is not None and args.model is None:
        print("pyllama-spec doctor: -d needs -m, the target that it drafts for", file=sys.stderr)
        return EXIT_USAGE
    if args.model is not None:
        model = Model(args.model, n_gpu_layers=args.n_gpu_layers)
        result["model"] = doctor.describe_model(model)
        if args.draft is not None:
            with Eagle3(args.draft, n_gpu_layers=args.n_gpu_layers) as drafter:
                result["draft"] = doctor.describe_draft(
                    drafter, model, repeats=max(args.repeat, 1), n_threads=args.threads
                )
        costs = doctor.measure_verify_cost(
            model,
            max_rows=args.max_rows,
            repeats=max(args.repeat, 1),
            n_threads=args.threads,
            progress=ProgressBar("measuring verify batches"),
        )
        result["verify_cost"] = [
            {"n_rows": c.n_rows, "ms": round(c.ms, 4), "ratio": round(c.ratio, 4)} for c in costs
        ]
    if args.json:
        print(json.dumps(result, indent=1))
        return EXIT_OK
    for key in ("pyllama_spec", "engine", "python", "platform", "system_info"):
        print(f"{key:<13} {result[key]}")
    kernels = ", ".join(f"{kind} {name}" for kind, name in result["row_kernels"].items())
    print(f"{'row kernels':<13} {kernels or 'none: n rows cost nearly n times as much as one'}")
    for device in result["devices"]:
        total = device["total_bytes"] / 1e9
        print(f"{'device':<13} {device['name']}: {device['description']}, {total:.1f} GB")
    if args.model is not None:
        _print_model(result["model"], result["verify_cost"])
    if "draft" in result:
        _print_draft(result["draft"], result["verify_cost"])
    return EXIT_OK


def _print_model(model: dict[str, Any], costs: list[dict[str, Any]]) -> None:
    print(f"{'model':<13} {model['description']}, {model['n_params'] / 1e6:.0f} M parameters")
    print(f"{'rollback':<13} {model['rollback']}")
    print("\nA verify batch of n rows (1 pending + n-1 drafted), over one row:\n")
    print(f"{'rows':>5} {'ms':>9} {'x one row':>10}   a round pays above")
    for cost in costs:
        n, ratio = cost["n_rows"], cost["ratio"]
        pays = f"{ratio:.2f} tokens per round" if n > 1 else ""
        print(f"{n:>5} {cost['ms']:>9.2f} {ratio:>10.2f}   {pays}")


def _print_draft(draft: dict[str, Any], costs: list[dict[str, Any]]) -> None:
    size, step = draft["size_bytes"] / 1e6, draft["step_ms"]
    print(f"\n{'draft':<13} {draft['path']}: fits, {size:.1f} MB, {draft['architecture']}")
    print(f"{'reads':<13} the inputs of layers {', '.join(map(str, draft['target_layers']))}")
    share = step / costs[0]["ms"]
    print(f"{'a step':<13} {step:.2f} ms for each drafted token, {share:.3f} x one row")
    print("\n drafted   a round pays above")
    for cost in costs[1:]:
        n = cost["n_rows"] - 1
        print(f"{n:>8}   {cost['ratio'] + n * step / costs[0]['ms']:.2f} tokens per round")


if __name__ == "__main__":
    sys.exit(main())
