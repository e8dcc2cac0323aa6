"""The commands of `pyllama-spec`, and how each ends: its exit code, its line on stderr."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from pyllama_spec._version import __version__
from pyllama_spec.cli.bench import add_bench
from pyllama_spec.cli.chat import add_chat
from pyllama_spec.cli.convert import add_convert
from pyllama_spec.cli.doctor import add_doctor
from pyllama_spec.cli.generate import add_generate
from pyllama_spec.cli.memory import add_memory
from pyllama_spec.cli.options import check_pairs, own_drafts_closed
from pyllama_spec.cli.rpc_server import add_rpc_server
from pyllama_spec.cli.serve import add_serve
from pyllama_spec.cli.train import add_train
from pyllama_spec.cli.wording import Parser, face_of, notes_on_stderr
from pyllama_spec.engine import engine_version, quantize, quantize_types, set_log_level, windows
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.gguf.sizes import shares_by_type
from pyllama_spec.terminal import clear_bar, fitted

# The minimum share of a file's bytes of weights: F32 norms and biases have less.
_LEAST_SHARE = 0.005
EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command."""
    _open_streams()
    args = argparse.Namespace()
    try:
        code = _run(argv, args)
        sys.stdout.flush()
    except PyllamaSpecError as error:
        clear_bar()
        message = " ".join(error.rendered(face_of(args)).split()) or type(error).__name__
        print(f"pyllama-spec: {message}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        clear_bar()  # and the ^C that the terminal wrote after it
        hint = getattr(args, "if_interrupted", "")
        print(f"pyllama-spec: interrupted{hint}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; say nothing, not even at exit.
        _silence(sys.stdout)
        return EXIT_FAILURE
    except UnicodeDecodeError as error:
        print(f"pyllama-spec: the input is not text: {_one_line(error)}", file=sys.stderr)
        return EXIT_FAILURE
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"pyllama-spec: {_one_line(error)}", file=sys.stderr)
        _silence(sys.stdout)  # such as a full disk: it would fail again at exit
        return EXIT_FAILURE
    return code


def _run(argv: Sequence[str] | None, args: argparse.Namespace) -> int:
    """Reads the command into `args` and runs it."""
    try:
        command_parser().parse_args(argv, args)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return EXIT_OK if not stop.code else EXIT_USAGE
    args.command_line = shlex.join(["pyllama-spec", *(sys.argv[1:] if argv is None else argv)])
    check_pairs(args)
    if getattr(args, "verbose", False):
        set_log_level("info")
    with notes_on_stderr(args), own_drafts_closed():
        code: int = args.run(args)
    return code


def _open_streams() -> None:
    """Prepares the standard streams so that any generated text can be printed."""
    if sys.platform == "win32":
        windows.show_colours()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Closed before the program began: no other file may get its number. Nobody reads what
            # goes to a closed stdout, so that writing there fails.
            number = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            # A terminal of another encoding shows "?" for what it lacks; the text continues.
            stream.reconfigure(
                encoding="utf-8" if sys.platform == "win32" else None,
                errors="replace" if mode == "w" else None,
            )


def _silence(stream: TextIO) -> None:
    """Discards a stream's buffer, so that nothing is printed at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Not Python's own message, which begins with a number.
        if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return "standard output is closed" if error.errno == errno.EBADF else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser: argparse.ArgumentParser = Parser(
        prog="pyllama-spec",
        description="Speculative decoding for GGUF models: the same text, faster.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"pyllama-spec {__version__} (llama.cpp {engine_version()})",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_generate(commands)
    add_chat(commands)
    add_convert(commands)
    add_train(commands)
    _add_quantize(commands)
    add_doctor(commands)
    add_bench(commands)
    add_serve(commands)
    add_memory(commands)
    add_rpc_server(commands)
    return parser


def _add_quantize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("quantize", help="write a GGUF in another type")
    parser.add_argument("input", type=Path, metavar="IN.gguf", help="the model")
    parser.add_argument("output", type=Path, metavar="OUT.gguf", help="the file to write")
    parser.add_argument("type", metavar="TYPE", help=", ".join(quantize_types()))
    parser.add_argument("--pure", action="store_true", help="write all tensors in TYPE")
    parser.add_argument("--threads", dest="n_threads", type=int, default=0, metavar="THREADS",
        help="CPU threads; 0: all cores")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show the engine's messages")
    parser.set_defaults(run=_run_quantize)


def _run_quantize(args: argparse.Namespace) -> int:
    quantize(args.input, args.output, args.type, n_threads=args.n_threads, pure=args.pure)
    before, after = args.input.stat().st_size, args.output.stat().st_size
    sizes = f"{after / 1e6:.1f} MB (was {before / 1e6:.1f} MB)"
    by_type = shares_by_type(args.output).items()
    shares = ", ".join(f"{share:.0%} {name}" for name, share in by_type if share > _LEAST_SHARE)
    print(fitted(f"{args.output}: {args.type.upper()}, {sizes}; {shares}", sys.stdout, 2))
    return EXIT_OK
