"""memory: builds and edits draft memory stores."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pyllama_spec.cli.options import path_argument
from pyllama_spec.cli.wording import say
from pyllama_spec.drafters.suffix import upkeep
from pyllama_spec.drafters.suffix.store import Store, capacity_of, vocabulary_digest
from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError, escaped
from pyllama_spec.speculative.stats import plural
from pyllama_spec.terminal import ProgressBar

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_SHOWN_CHARACTERS = 200


def add_memory(commands: _Commands) -> None:
    """Adds the command `memory`."""
    parser = commands.add_parser(
        "memory", help="build, show, merge, prune or empty a store of texts to copy from",
        epilog="A store is a file that --draft-memory and Llama(draft_memory=) name. Its mode is "
        "0600, and it belongs to one tokenizer (docs/suffix.md).",
    )  # fmt: skip
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = _action(actions, "build", "add files and folders", _build)
    build.add_argument(
        "paths", type=path_argument, nargs="+", metavar="PATH",
        help="files or folders; a link in a folder is left out",
    )  # fmt: skip
    _add_model(build, is_required=True)
    _add_size(build, "to which a new one may grow [268, which is 256 MiB]")
    show = _action(actions, "show", "show what a store holds", _show)
    show.add_argument(
        "--texts", type=int, default=0, metavar="N", help="show the N newest texts too"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    _add_model(show, is_required=False)
    merge = _action(actions, "merge", "add the texts of other stores", _merge)
    merge.add_argument("others", type=path_argument, nargs="+", metavar="OTHER", help="stores")
    prune = _action(actions, "prune", "remove old texts", _prune)
    _add_size(prune, "to which it is cut, and may grow [as before]")
    prune.add_argument(
        "--days", type=float, default=None, help="remove texts that are older [none]"
    )
    forget = _action(actions, "forget", "remove all conversations that contain TEXT", _forget)
    forget.add_argument("text", nargs="?", default=None, metavar="TEXT", help="the exact text")
    forget.add_argument("--all", action="store_true", help="remove everything")
    _add_model(forget, is_required=False)


def _action(actions: _Commands, name: str, help_: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help_, description=help_)
    parser.add_argument("store", type=path_argument, metavar="STORE", help="the store's file")
    parser.set_defaults(run=run)
    return parser


def _add_model(parser: argparse.ArgumentParser, *, is_required: bool) -> None:
    parser.add_argument(
        "-m", "--model", dest="model_path", type=path_argument, required=is_required,
        metavar="MODEL",
        help="a GGUF whose tokenizer the store is for; its weights are not read",
    )  # fmt: skip


def _add_size(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--max-size", type=float, default=None, metavar="MB", help=f"the size in memory {what}"
    )


def _bytes(args: argparse.Namespace) -> int | None:
    if args.max_size is None:
        return None
    if not 0 < args.max_size <= 1e5:
        raise ArgumentError("max_size", args.max_size, "a size in MB: above 0, up to 100000")
    return int(args.max_size * 1e6)


def _opened(path: Path, digest: bytes | None = None, **options: Any) -> Store:
    """Opens an existing store; checks its vocabulary against a digest if one is given."""
    if not path.exists():
        raise ArgumentError(
            problem=f"there is no draft memory {path}", remedy="make one with `memory build`"
        )
    return Store(path, digest, **options)


def _vocabulary(args: argparse.Namespace, wanted_for: str) -> Model:
    if args.model_path is None:
        raise ArgumentError(problem=f"{wanted_for} needs the tokenizer", remedy="add -m MODEL.gguf")
    return Model(args.model_path, vocab_only=True)


def _build(args: argparse.Namespace) -> int:
    with _vocabulary(args, "build") as model:
        files, n_links = upkeep.files_below(args.paths)
        store = Store(args.store, vocabulary_digest(model.vocab), max_bytes=_bytes(args))
        bar = ProgressBar(f"reading into {args.store.name}")
        with _none_left_empty(store):
            n_files = upkeep.build(store, model.vocab, files, bar)
    say(f"{plural(n_files, 'file')} with text; {_summary(store)}")
    if n_links:
        say(f"links in the folders, left out: {n_links}; name what they lead to")
    store.close()
    return 0


def _show(args: argparse.Namespace) -> int:
    if args.texts and args.model_path is None:
        raise ArgumentError("texts", problem="needs the tokenizer", remedy="add -m MODEL.gguf")
    if args.model_path is None:
        store, texts, newest = _opened(args.store, is_read_only=True), [], []
    else:
        with _vocabulary(args, "show") as model:
            store = _opened(args.store, vocabulary_digest(model.vocab), is_read_only=True)
            texts = store.texts()[-args.texts :][::-1] if args.texts > 0 else []
            newest = [
                upkeep.bytes_of(model.vocab, one.ids).decode("utf-8", "replace") for one in texts
            ]
    facts = _facts(store)
    if args.json:
        rows = [
            {"text": text, "minute": one.minute, "tokens": len(one.ids)}
            for one, text in zip(texts, newest, strict=True)
        ]
        print(json.dumps({**facts, "newest": rows}))
        return 0
    say(_summary(store))
    for one, text in zip(texts, newest, strict=True):
        line = escaped(" ".join(text.split())[:_SHOWN_CHARACTERS])
        say(f"{_date(one.minute)}  {len(one.ids)} tokens  {line}")
    return 0


def _merge(args: argparse.Namespace) -> int:
    if args.store.exists() and any(map(args.store.samefile, filter(Path.exists, args.others))):
        raise ArgumentError(
            "store", args.store, problem="would be merged into itself", remedy="name other stores"
        )
    digest, others = None, []
    with contextlib.ExitStack() as opened:
        for path in args.others:  # before anything is made
            others.append(_opened(path, digest, is_read_only=True))
            opened.callback(others[-1].close)
            digest = others[-1].digest
        store = Store(args.store, digest)
        with _none_left_empty(store):
            n_new = store.take(one for other in others for one in other.texts())
    say(f"{plural(n_new, 'text')} came in; {_summary(store)}")
    return 0


@contextlib.contextmanager
def _none_left_empty(store: Store) -> Iterator[None]:
    """If the block fails, deletes a store that was created for it and is still empty."""
    try:
        yield
    except BaseException:
        store.delete_if_made()
        raise


def _prune(args: argparse.Namespace) -> int:
    size = _bytes(args)
    if size is None and args.days is None:
        raise ArgumentError(problem="prune needs a bound", remedy="give --max-size or --days")
    store = _opened(args.store)
    max_tokens = None if size is None else capacity_of(size)
    n = upkeep.prune(store, max_tokens=max_tokens, days=args.days)
    say(f"texts removed: {n}; {_summary(store)}")
    return 0


def _forget(args: argparse.Namespace) -> int:
    if args.all == (args.text is not None):
        raise ArgumentError(problem="give TEXT or --all, and not both")
    if args.all:
        store = _opened(args.store)
        n = f"{len(store.texts())}"
        with store.locked():
            store.keep([])
    else:
        with _vocabulary(args, "forget TEXT") as model:
            store = _opened(args.store, vocabulary_digest(model.vocab))
            n_found, n_more = upkeep.forget(store, model.vocab, args.text)
        n = f"{n_found + n_more}"
        if n_more:
            n += f" ({n_found} with TEXT, {n_more} other parts of the same conversations)"
    say(f"texts removed: {n}; {_summary(store)}")
    return 0


def _facts(store: Store) -> dict[str, Any]:
    texts = store.texts()
    return {
        "path": str(store.path), "bytes": store.size, "texts": len(texts),
        "tokens": sum(len(one.ids) for one in texts), "max_tokens": store.max_tokens,
        "vocabulary": store.digest.hex()[:12],
        "answers": sum(int(np.count_nonzero(one.origins)) for one in texts),
        "oldest_minute": min((one.minute for one in texts), default=0),
        "newest_minute": max((one.minute for one in texts), default=0),
    }  # fmt: skip


def _summary(store: Store) -> str:
    facts = _facts(store)
    line = (
        f"{store.path}: {plural(facts['texts'], 'text')} of {facts['tokens']} tokens, "
        f"{facts['bytes'] / 1e6:.1f} MB, room for {facts['max_tokens']} tokens"
    )
    if facts["answers"]:
        line += f"; {facts['answers']} tokens of answers"
    if facts["texts"]:
        line += f"; {_date(facts['oldest_minute'])} to {_date(facts['newest_minute'])}"
    return line


def _date(minute: int) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(60 * minute))
