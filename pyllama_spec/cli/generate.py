"""generate: prints generated text, with the drafted tokens in another colour."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pyllama_spec.chat.media_urls import MAX_BYTES
from pyllama_spec.cli.options import add_model_options, add_sampling_options, open_llama
from pyllama_spec.cli.wording import notes_held
from pyllama_spec.errors import ArgumentError, PyllamaSpecError
from pyllama_spec.files import MAX_TEXT_BYTES, read_text
from pyllama_spec.options import options_of
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.run import Piece
from pyllama_spec.requests.stream import Stream
from pyllama_spec.speculative import SpeculationStats, Timing
from pyllama_spec.speculative.stats import sources_as_dict, sources_in_words
from pyllama_spec.terminal import SOURCE_COLOURS, dim, fitted, has_colour, paint

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Messages = list[dict[str, Any]]
_OF_REQUESTS = [one.name for one in options_of(RequestOptions).values() if one.cli]
DEFAULTS_APART = (
    "These defaults suit a first look at a model. Llama in Python has those of llama-cpp-python: a "
    "shorter context (512), 16 tokens for a text and no limit for a chat, a temperature of 0.8 for "
    "a text and 0.2 for a chat."
)


def add_generate(commands: _Commands) -> None:
    """Adds the command `generate`."""
    parser = commands.add_parser(
        "generate", help="continue a prompt, or answer it with --chat",
        epilog=DEFAULTS_APART,
    )  # fmt: skip
    add_model_options(parser)
    add_sampling_options(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-p", "--prompt", help="the prompt")
    source.add_argument("-f", "--file", type=Path, help="a file that holds the prompt; - for stdin")
    parser.add_argument("--chat", action="store_true", help="use the model's chat template")
    parser.add_argument("--system", default=None, help="a system message, with --chat")
    parser.add_argument("--image", type=Path, action="append", default=[], metavar="F",
        help="a picture before the prompt, with --chat; may be repeated")  # fmt: skip
    parser.add_argument("--audio", type=Path, action="append", default=[], metavar="F",
        help="a sound before the prompt, likewise")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_generate)


def request_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as keywords of a request."""
    grammar = read_text(args.grammar, "the grammar") if args.grammar is not None else None
    return {**{name: getattr(args, name) for name in _OF_REQUESTS}, "grammar": grammar}


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return str(args.prompt)
    if str(args.file) == "-":
        return _read_stdin()
    return read_text(args.file, "the prompt")


def part_of_file(path: Path, name: str) -> dict[str, Any]:
    """A file, of the option "image" or "audio", as a part of a message."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ArgumentError(
            name, os.fspath(path), problem=f"cannot be read: {error.strerror or error}"
        ) from None
    data = base64.b64encode(content).decode()
    if name == "audio":
        return {"type": "input_audio", "input_audio": {"data": data}}
    return {"type": "image_url", "image_url": {"url": f"data:image/any;base64,{data}"}}


def _read_stdin() -> str:
    text = sys.stdin.read(MAX_TEXT_BYTES + 1)
    if not text:
        raise ArgumentError(
            "prompt", problem="is missing: there is nothing on stdin",
            remedy="give the prompt with -p, or a file with -f",
        )  # fmt: skip
    if len(text) > MAX_TEXT_BYTES:
        raise ArgumentError("prompt", problem=f"on stdin has more than {MAX_TEXT_BYTES >> 20} MiB")
    return text


def run_generate(args: argparse.Namespace) -> int:
    """Generates once and prints the text and its figures, or one JSON object."""
    if args.system is not None and not args.chat:
        raise ArgumentError("system", problem="is a part of a chat", remedy="add --chat")
    for name in ("image", "audio"):
        if getattr(args, name) and not args.chat:
            raise ArgumentError(name, problem="is a part of a chat", remedy="add --chat")
    prompt = _prompt(args)
    media = [part_of_file(path, kind) for kind in ("image", "audio") for path in vars(args)[kind]]
    if not media:
        args.mmproj_path = None  # it would be loaded for nothing
    with open_llama(args) as llama:
        if args.chat:
            content = [*media, {"type": "text", "text": prompt}] if media else prompt
            messages: _Messages = [{"role": "user", "content": content}]
            if args.system is not None:
                messages.insert(0, {"role": "system", "content": args.system})
            generation = llama.generate_chat_steps(messages, **request_options(args))
        else:
            generation = llama.generate_steps(prompt, **request_options(args))
        try:
            with generation:
                print_pieces(generation, silent=args.json)
        except (PyllamaSpecError, KeyboardInterrupt):
            # What there is stays on the screen, or is the object; the reason follows on stderr.
            if args.json:
                print(json.dumps(_as_json(generation)))
            raise
    if args.json:
        print(json.dumps(_as_json(generation)))
    else:
        print_notes(end_lines(generation, args.max_tokens))
        if not args.quiet:
            record = generation.record
            colours = colour_lines(record.token_sources)
            print_notes(colours + figure_lines(record.stats, record.timing))
    return 0


def print_pieces(generation: Stream[Piece], *, silent: bool) -> None:
    """Runs a generation and prints its text as it arrives, coloured by who drafted each token.

    The line is ended, and notes follow, however the generation ends.
    """
    if silent:
        for _ in generation:
            pass
        return
    colour, sources = has_colour(sys.stdout), generation.record.token_sources
    n = 0
    with notes_held():
        try:
            for piece in generation:
                new = sources[n:] if colour else [(piece.text, "")]
                print("".join(paint(text, who) for text, who in new), end="", flush=True)
                n = len(sources)
        finally:
            print(flush=True)


def colour_lines(sources: Sequence[tuple[str, str]]) -> list[str]:
    """The legend of a text's colours, if it has any."""
    if not has_colour(sys.stdout):
        return []
    there = {who for text, who in sources if text}
    named = [
        f"{colour}: {words}" for who, (colour, _, words) in SOURCE_COLOURS.items() if who in there
    ]
    return [", ".join(named)] if named else []


def _as_json(generation: Stream[Piece]) -> dict[str, Any]:
    record = generation.record
    return {
        "text": record.text,
        "tokens": list(record.tokens),
        "token_sources": [{"text": text, "source": who} for text, who in record.stretches],
        "finish_reason": record.finish_reason,
        "speculation": record.stats.as_dict(),
        "timing": record.timing.as_dict(),
    }


def print_notes(lines: Sequence[str]) -> None:
    """Prints the command's own remarks on stderr."""
    for line in lines:
        print(dim(fitted(f"[{line}]", sys.stderr, 1), sys.stderr), file=sys.stderr)


def state_lines(stats: SpeculationStats) -> list[str]:
    """The reason why the drafter was not used, if it was not."""
    if stats.state == "idle":
        return [f"{stats.drafter} was idle: {stats.idle_because}"]
    if stats.state != "disabled":
        return []
    return [f"{stats.drafter} was disabled: {stats.reason_off}"]


def end_lines(generation: Stream[Piece], max_tokens: int) -> list[str]:
    """The reason why the text ends, if the model did not end it."""
    record = generation.record
    if record.finish_reason != "length":
        return []
    if len(record.tokens) == max_tokens:
        return [f"cut at {max_tokens} tokens: -n takes another number; 0: up to the context"]
    return ["cut where the context ends: -c takes a longer one"]


def figure_lines(stats: SpeculationStats, timing: Timing, *, has_load: bool = True) -> list[str]:
    """The speed, and the drafter's share of it."""
    speed = (
        f"{timing.n_decoded} tokens in {timing.decode_s:.2f} s: {timing.decode_tps:.1f} tokens/s"
    )
    load = f"load {timing.load_s:.2f} s, " if has_load else ""
    if has_load and stats.drafter != "none":
        load = f"load {timing.load_s:.2f} s ({timing.draft_load_s:.2f} s of it the draft), "
    lines = [f"{speed}; {load}prompt {timing.prompt_s:.2f} s"]
    if stats.drafter != "none":
        sources = sources_in_words(sources_as_dict(stats.by_source))
        sources = sources and f"; {sources}"
        lines.append(
            f"{stats.drafter}: {stats.rounds} rounds of {stats.tokens_per_round:.2f} tokens, "
            f"{stats.accepted} of {stats.drafted} drafted tokens accepted "
            f"({100 * stats.acceptance_rate:.0f}%{sources}); draft {timing.draft_s:.2f} s, "
            f"verify {timing.verify_s:.2f} s, rest {timing.overhead_s:.3f} s"
        )
        if stats.saved_s is not None:
            lines.append(f"saved over plain decoding: {stats.saved_in_words}")
    if stats.why_exact:
        lines.append(f"drafts were accepted exactly: {stats.why_exact}")
    if stats.note:
        lines.append(stats.note)
    return lines + state_lines(stats)
