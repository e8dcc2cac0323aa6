"""Programs that serve under another server's options: how they read them, and how they run."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.errors import ArgumentError, Face, PyllamaSpecError, UnsupportedError
from pyllama_spec.llama import Llama
from pyllama_spec.options import Option, options_of
from pyllama_spec.server.settings import (
    LOOPBACK,
    ServerSettings,
    hosts_for,
    keys_of,
    reader_of,
)
from pyllama_spec.speculative.stats import plural
from pyllama_spec.terminal import dim

if TYPE_CHECKING:
    from pyllama_spec.llama.caches import BaseLlamaCache
    from pyllama_spec.server.model_list import ModelList
    from pyllama_spec.server.process import Listening

EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of another server, with its spellings, and an option that it sets.

    `variable` sets it where no flag does; `value` is that of a flag without one; with `takes_many`
    all words up to the next flag are its values.
    """

    names: tuple[str, ...]
    option: Option
    variable: str = ""
    value: bool | None = None
    takes_many: bool = False


def flags_of(*tables: type) -> list[Flag]:
    """llama-server's flags of the options of some tables."""
    found = []
    for one in (one for table in tables for one in options_of(table).values()):
        on = True if one.kind == "bool" and not one.words else None
        for names, variable, value in (
            (one.server, one.variable, on), (one.server_off, one.variable_off, False),
        ):  # fmt: skip
            if names:
                named = f"LLAMA_{variable}" if variable else ""
                found.append(Flag(tuple(names.split()), one, named, value))
    return found


@dataclass(slots=True)
class Given:
    """What a command line and the environment set: values by option, and where each is from."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


def read(
    words: Sequence[str],
    environment: Mapping[str, str],
    flags: Sequence[Flag],
    is_idle: Callable[[str], bool] = lambda _: False,
) -> tuple[Given, Given]:
    """Reads a command line and the environment; refuses what is neither known nor idle."""
    known = {spelt(name): flag for flag in flags for name in flag.names}
    given, refused = Given(), list[str]()
    left = list(words)[::-1]
    while left:
        word, is_, text = left.pop().partition("=")
        if (flag := known.get(spelt(word))) is not None:
            _take(word, flag, [text] if is_ else left, given)
            continue
        (given.idle if is_idle(spelt(word)) else refused).append(word)
        while left and (not left[-1].startswith("-") or left[-1][1:2].isdigit()):
            left.pop()  # its values
    if refused:
        raise ArgumentError(
            problem=f"not supported here: {' '.join(refused)}",
            remedy="--help lists the flags that are",
        )
    return given, _variables(environment, flags)


def spelt(word: str) -> str:
    """A flag in one spelling: --ctx_size is --ctx-size too."""
    return word.replace("_", "-") if word.startswith("--") else word


def _take(word: str, flag: Flag, left: list[str], given: Given) -> None:
    """Reads one flag, whose values are the next of the remaining words."""
    name = flag.option.name
    value: Any = flag.value
    given.names[name] = word
    if value is None:
        texts = [left.pop()] if left else []
        while flag.takes_many and left and not left[-1].startswith("--"):
            texts.append(left.pop())
        if not texts:
            raise ArgumentError(problem=f"{word} has no value")
        value = _parse(flag.option, ",".join(texts), word)
    before = given.values.get(name)
    if flag.option.is_repeated:
        value = value if isinstance(value, (dict, list)) else [value]
        if before is not None:
            value = {**before, **value} if isinstance(value, dict) else [*before, *value]
    given.values[name] = value


def _variables(environment: Mapping[str, str], flags: Sequence[Flag]) -> Given:
    around = Given()
    # The order of llama-server: the variable that switches something off is read first.
    for flag in sorted(flags, key=lambda one: one.value is not False):
        text = environment.get(flag.variable)
        if flag.option.name not in around.values and (text or (text == "" and flag.value is False)):
            value = None if flag.value else flag.value
            _take(flag.variable, replace(flag, value=value, takes_many=False), [text], around)
    return around


def _parse(one: Option, text: str, place: str) -> Any:
    """The value of a text; an error begins with its place, such as a flag."""
    try:
        return one.parse(text)
    except ArgumentError as error:
        raise ArgumentError(problem=f"{place}: {error}") from None
    except ValueError as error:  # of int(), float() and JSON
        raise ArgumentError(problem=f"{place}: {text!r:.60} cannot be read: {error}") from None


def settings_of(
    values: Mapping[str, Any], names: Mapping[str, str], own: Iterable[str], **more: Any
) -> tuple[ServerSettings, Listening, list[str]]:
    """The settings of a server and of its socket, and notes for the user.

    `own` are the attributes of ServerSettings in `values`; `names` are what the program calls them.
    """
    from pyllama_spec.server.process import Listening

    certificate, key = values.get("tls_cert"), values.get("tls_key")
    if (certificate is None) != (key is None):
        raise ArgumentError(
            "tls_cert", problem="and `tls_key` belong together", remedy="give both"
        )  # fmt: skip
    listening = Listening(
        host=values["host"], port=values["port"], certificate=certificate, key=key
    )
    key_file, given_keys = values.get("api_key_file"), tuple(values.get("api_keys") or ())
    keys = (*given_keys, *keys_of(key_file))
    notes, host = list[str](), listening.host
    if host not in LOOPBACK and not keys:
        option = names.get("api_key_file") or names["api_keys"]
        notes.append(f"any client that reaches {host} may use the model: {option} asks for a key")
    if host not in LOOPBACK and certificate is None:
        option = names["tls_cert"]
        notes.append(f"keys and texts go over the network as they are: {option}, or a proxy")
    alias, *aliases = dict.fromkeys(values.get("aliases") or (None,))
    settings = ServerSettings(
        alias=alias, aliases=tuple(aliases), api_keys=keys,
        read_keys=reader_of(key_file, given_keys), flags=names,
        allowed_hosts=hosts_for(host, values.get("allowed_hosts") or ()),
        cors_origins=tuple(values.get("cors_origins") or ()),
        **{**more, **{name: values[name] for name in own if name in values}},
    )  # fmt: skip
    return settings, listening, notes


@contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Around the reading of a command line: an error has the program's names of options."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(problem=error.rendered(Face(names, pair="{} {}"))) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command line asks for; `names` are what it calls each option."""

    keywords: dict[str, Any]
    settings: ServerSettings
    listening: Listening
    models: ModelList | None = None
    cache: BaseLlamaCache | None = None
    adapters: Sequence[str] = ()
    notes: Sequence[str] = ()
    log_level: int = logging.INFO
    log_file: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def run(
    program: str,
    arguments: Sequence[str] | None,
    plan: Callable[[Sequence[str]], Plan],
    help_lines: Callable[[], Sequence[str]],
) -> int:
    """Serves what a command line asks for until a signal ends it; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help", "--usage"} & {*given}:
        print("\n".join(help_lines()))  # noqa: T201 - a program's help
        return EXIT_OK
    if "--version" in given:
        print(f"pyllama-spec {__version__} (llama.cpp {engine_version()})")  # noqa: T201
        return EXIT_OK
    try:
        meant = plan(given)
        set_up_log(meant.log_level, is_json=meant.settings.logs_json, file=meant.log_file)
    except PyllamaSpecError as error:
        _say(program, f"error: {error}")
        return EXIT_USAGE
    say = partial(_say, program)
    for line in (f"version {__version__}, llama.cpp {engine_version()}", *meant.notes):
        say(line)
    try:
        serve_plan(meant, say)
    except PyllamaSpecError as error:
        _say(program, f"error: {error.rendered(Face(meant.names, pair='{} {}'))}")
        return EXIT_FAILURE
    return EXIT_OK


class _JsonLines(logging.Formatter):
    """Each record as a JSON object: the fields of a request, or a message."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "request", None) or {"message": record.getMessage()}
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat()
        return json.dumps({"time": at, "level": record.levelname, **fields})


def set_up_log(level: int, *, is_json: bool, file: Path | None = None) -> None:
    """Sends the log to stderr, and to a file that is opened anew after logrotate."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    try:
        handlers += [] if file is None else [WatchedFileHandler(file)]
    except OSError as error:
        raise ArgumentError(problem=f"{file} cannot be written: {error.strerror}") from None
    form = _JsonLines() if is_json else logging.Formatter("%(asctime)s %(message)s")
    for handler in handlers:
        handler.setFormatter(form)
    logging.basicConfig(handlers=handlers, level=logging.WARNING)
    logging.getLogger("pyllama_spec.server").setLevel(level)


def serve_plan(meant: Plan, say: Callable[[str], None]) -> tuple[int, int]:
    """Serves what is planned until a signal ends it; returns what serve() returns."""
    from pyllama_spec.server import serve

    if meant.models is not None:
        models = replace(meant.models, cache=meant.cache)
        served = plural(len(models.specs), "model")
        return serve(
            models, meant.settings, meant.listening,
            on_start=lambda url: say(f"{served} at {url}"),
        )  # fmt: skip
    with Llama(**meant.keywords) as llm:
        if meant.adapters:
            llm.set_adapters([(path, 1.0) for path in meant.adapters])
        llm.cache, more = meant.cache, ""
        with suppress(UnsupportedError):  # of a model that only embeds
            more = f", {plural(llm.n_parallel, 'request')} at once, draft {llm.drafter_name}"
        if llm.mmproj_path is not None:
            more += f", projector {llm.mmproj_path.name}"
        name = Path(meant.keywords["model_path"]).name
        return serve(
            llm, meant.settings, meant.listening,
            on_start=lambda url: say(f"{name} answers at {url}{more}"),
        )  # fmt: skip


def _say(program: str, line: str) -> None:
    text = f"{program}: {' '.join(line.split())}"
    print(dim(text, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201
