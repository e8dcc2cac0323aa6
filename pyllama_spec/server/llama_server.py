"""The server under llama-server's flags: `python -m pyllama_spec.server.llama_server -m ...`.

Command lines run as they stand: flags without effect here are named on stderr, and unsupported ones
are an error.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.engine.checks import instance, one_of, real
from pyllama_spec.errors import ArgumentError, Face, PyllamaSpecError, UnsupportedError
from pyllama_spec.files import check_no_pipe
from pyllama_spec.llama import Llama
from pyllama_spec.llama.open_options import KEYWORDS
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.keys import keys_of, notes_of, reader_of
from pyllama_spec.server.llama_server_flags import FLAGS, OF_CHATS, read
from pyllama_spec.server.settings import LOOPBACK, ServerSettings, hosts_for
from pyllama_spec.terminal import dim

if TYPE_CHECKING:
    from pyllama_spec.server.process import Listening

_PROGRAM = "pyllama-spec-llama-server"
EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2
_N_PARALLEL, _N_CTX, _MAX_WAITING = 4, 4096, 64
_OF_SETTINGS = ("send_timeout_s", "ping_s", "has_slots", "has_metrics", "has_page")
_TEMPLATES = {"llama2": "llama-2", "llama3": "llama-3"}
_FIRST_NAMES = {flag.field: flag.names[0] for flag in reversed(FLAGS)}
# What the log names in the place of keywords of Llama(), and of settings of the server.
_TOLD = {**_FIRST_NAMES, "embedding": "--embeddings", "max_body_bytes": "",
         "max_waiting": "-np"}  # fmt: skip
_DRAFTS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))")
_ESCAPES: Mapping[bytes, bytes] = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


class Plan(NamedTuple):
    """What a command line asks for: `notes` are for the user, one line each."""

    keywords: dict[str, Any]
    adapters: list[tuple[str, float]]
    settings: ServerSettings
    listening: Listening
    notes: list[str]
    log_level: int
    log_file: Path | None
    given_by: Mapping[str, str]


def plan(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plan:
    """Converts a command line, without the program's name, and LLAMA_... variables to settings."""
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs
    from pyllama_spec.server.process import Listening

    values, given_by, idle = read(arguments, environment)
    try:
        notes = [f"without effect here: {' '.join(idle)}"] if idle else []
        if "--api-key" in arguments:
            notes.append("--api-key is seen by all who list processes; --api-key-file is not")
        if not values.get("model_path"):
            raise ArgumentError("no model is given: -m FILE.gguf")
        listening = Listening(
            host=values.get("host", "127.0.0.1"), port=values.get("port", 8080),
            certificate=values.get("tls_cert"), key=values.get("tls_key"),
        )  # fmt: skip
        if (listening.certificate is None) != (listening.key is None):
            raise ArgumentError("--ssl-cert-file and --ssl-key-file belong together: give both")
        verbosity = 2 if values.get("is_silent") else values.get("verbosity", 3)
        quiet = logging.ERROR if verbosity < 2 else logging.WARNING
        level = logging.INFO if verbosity > 2 else quiet
        return Plan(
            _keywords(values, notes), values.get("adapters", []),
            _settings(values, listening, notes), listening, notes, level,
            values.get("log_file"), given_by,
        )  # fmt: skip
    except PyllamaSpecError as error:
        raise ArgumentError(problem=error.rendered(_face(given_by))) from None


def _face(given_by: Mapping[str, str]) -> Face:
    """The words of the command line: "n_batch=0" is "-b 0", by the flag that gave it."""
    return Face({**_FIRST_NAMES, **given_by}, pair="{} {}")


def _keywords(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The keywords of Llama()."""
    keywords = {name: values[name] for name in KEYWORDS if name in values and name != "seed"}
    keywords |= {"model_path": values["model_path"], "max_waiting": _MAX_WAITING}
    # llama-server divides a context among its slots, unless it is shared.
    n_ctx, n_parallel = values.get("n_ctx"), values.get("n_parallel", -1)
    n = _N_PARALLEL if n_parallel == -1 else n_parallel
    if n_ctx is None:
        n_ctx = _N_CTX
        notes.append(f"each request may have {n_ctx} tokens; -c says otherwise")
    elif n_ctx and n_parallel > 1 and not values.get("kv_unified"):
        n_ctx = max(1, n_ctx // n)
    keywords |= {"draft": _draft(values), "n_ctx": n_ctx, "n_parallel": n}
    if (mib := values.get("cache_mib", -1)) >= 0:
        keywords["prefix_cache_bytes"] = mib << 20
    if (mode := values.get("load_mode")) is not None:
        one_of(mode, ("auto", "none", "mmap", "mlock", "mmap+mlock"), "load_mode")
        keywords |= {"use_mmap": "mmap" in mode or mode == "auto", "use_mlock": "mlock" in mode}
    if (scale := values.get("rope_scale")) is not None:
        if scale <= 0:
            raise ArgumentError(f"rope_scale={scale}: a factor above 0 is expected")
        keywords["rope_freq_scale"] = 1 / scale
    if "kv_overrides" in values:
        keywords["kv_overrides"] = dict(values["kv_overrides"])
    if values.get("rerank"):
        keywords |= {"embedding": True, "pooling_type": "rank"}
    for _, factor in values.get("adapters", ()):
        real(factor, "adapters")
    text, name = values.get("chat_template_text"), keywords.pop("chat_template", None)
    if text is not None or (name and not re.fullmatch(r"[\w.-]+", name)):
        keywords["chat_template"] = name if text is None else text
    elif name:
        keywords["chat_format"] = _TEMPLATES.get(name, name)
    return keywords


def _draft(values: Mapping[str, Any]) -> str | None:
    """The `draft` keyword of Llama(): a file tells its own kind."""
    types = values.get("spec_types", [])
    for one in types:
        one_of(one, ("none", *_DRAFTS, *_LOOKUPS), "spec_types")
    draft: str | None = values.get("draft")
    kinds = [one for one in types if one in _DRAFTS]
    if draft is not None and (kinds or not types):
        return draft
    if "draft-mtp" in kinds:
        return "mtp"
    if kinds:
        raise ArgumentError(f"--spec-type {kinds[0]} needs the file of a draft: -md FILE.gguf")
    return "prompt-lookup" if types and types != ["none"] else None


def _settings(values: Mapping[str, Any], listening: Listening, notes: list[str]) -> ServerSettings:
    given_keys, key_file = tuple(values.get("api_keys", ())), values.get("api_key_file")
    keys = (*given_keys, *keys_of(key_file))
    notes += notes_of(key_file)
    if not (listening.host in LOOPBACK or keys):
        notes.append(
            f"any client that reaches {listening.host} may use the model; give --api-key-file"
        )
    given = {name: values[name] for name in _OF_SETTINGS if name in values}
    alias, *aliases = dict.fromkeys(values.get("aliases") or (None,))
    return ServerSettings(
        alias=alias, aliases=tuple(aliases), api_keys=keys,
        read_keys=reader_of(key_file, given_keys),
        allowed_hosts=hosts_for(listening.host, values.get("allowed_hosts", ())),
        cors_origins=tuple(values.get("cors_origins", ())), defaults=_of_requests(values),
        chat_defaults=_of_chats(values), is_greedy_below_0=True, flags=_TOLD,
        **{"has_slots": True, "has_metrics": False, **given},
    )  # fmt: skip


def _of_requests(values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of requests, each checked now, so that not every request is refused for it."""
    names = {*RequestOptions.__dataclass_fields__} - {*KEYWORDS, *OF_CHATS}
    given = {name: value for name, value in values.items() if name in names}
    if values.get("seed", -1) != -1:
        given["seed"] = values["seed"]
    if "stop" in given and values.get("escape", True):
        given["stop"] = [_unescaped(one) for one in given["stop"]]
    if "json_schema" in values:
        given["response_format"] = {"type": "json_object", "schema": values["json_schema"]}
    # With context_shift a request says where its text ends.
    RequestOptions.from_keywords({**given, "context_shift": None})
    return {"temperature": 0.8, "max_tokens": -1, **given}


def _unescaped(text: str) -> str:
    r"""A text of -r with the escapes of llama-server: \n, \r, \t, \', \", \\ and \xHH, a byte."""

    def meant(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 16)]) if match[1] else _ESCAPES.get(match[2], match[2])

    try:
        return _ESCAPE.sub(meant, text.encode()).decode()
    except UnicodeError:
        raise ArgumentError(f"-r {text!r:.60} is not UTF-8: \\xHH stands for a byte") from None


def _of_chats(values: Mapping[str, Any]) -> dict[str, Any]:
    chats: dict[str, Any] = {"reasoning_format": values.get("reasoning_format", "auto")}
    one_of(chats["reasoning_format"], ("auto", "none", "deepseek"), "reasoning_format")
    for name in ("reasoning_effort", "chat_template_kwargs"):
        if name in values:
            chats[name] = values[name]
    RequestOptions(reasoning_effort=chats.get("reasoning_effort"))
    instance(chats.get("chat_template_kwargs", {}), dict, "chat_template_kwargs")
    one_of(values.get("reasoning", "auto"), ("on", "off", "auto"), "reasoning")
    budget = values.get("reasoning_budget", -1)
    if values.get("reasoning") == "off" or budget == 0:
        chats["reasoning_effort"] = "none"
    elif budget > 0:
        chats["thinking_token_budget"] = budget
    return chats


def _help() -> str:
    lines = ["Flags of llama-server that are taken, and --allowed-hosts:", ""]
    for flag in FLAGS:
        value = "" if flag.read is None else " VALUE"
        variable = f"  [{flag.variable}]" if flag.variable else ""
        lines.append(f"  {', '.join(flag.names)}{value}{variable}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help", "--usage"} & {*given}:
        try:
            print(_help(), flush=True)  # noqa: T201 - a program's help
        except BrokenPipeError:  # a reader such as head is gone; Python flushes again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    if "--version" in given:
        print(f"pyllama-spec {__version__} (llama.cpp {engine_version()})")  # noqa: T201
        return EXIT_OK
    try:
        meant = plan(given)
        files = [] if meant.log_file is None else [LogFile(meant.log_file)]
    except PyllamaSpecError as error:
        _say(f"error: {error}")
        return EXIT_USAGE
    form = "%(asctime)s %(message)s"
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr), *files]
    logging.basicConfig(handlers=handlers, level=logging.WARNING, format=form)
    logging.getLogger("pyllama_spec.server").setLevel(meant.log_level)

    def say(line: str) -> None:
        """A line of the program itself: on stderr and in the log's file, at any log level."""
        _say(line)
        for file in files:
            file.handle(logging.makeLogRecord({"msg": " ".join(line.split())}))

    try:
        _run(meant, say)
    except PyllamaSpecError as error:
        say(f"error: {error.rendered(_face(meant.given_by))}")
        return EXIT_FAILURE
    return EXIT_OK


def _run(meant: Plan, say: Callable[[str], None]) -> None:
    from pyllama_spec.server import serve
    from pyllama_spec.server.process import Hangup

    say(f"version {__version__}, llama.cpp {engine_version()}")
    for note in meant.notes:
        say(note)
    with Hangup(), Llama(**meant.keywords) as llm:
        if meant.adapters:
            llm.set_adapters(meant.adapters)
        served = Path(meant.keywords["model_path"]).name
        with suppress(UnsupportedError):  # a model that only embeds has no draft
            served += f", draft {llm.drafter_name}"
        serve(
            llm, meant.settings, meant.listening,
            on_start=lambda url: say(f"server is listening on {url}, with {served}"),
        )  # fmt: skip


class LogFile(WatchedFileHandler):
    """The file of --log-file, opened anew after logrotate; a failed write is said once."""

    _is_said = False

    def _open(self) -> TextIOWrapper:
        try:
            check_no_pipe(Path(self.baseFilename))
            return super()._open()
        except OSError as error:
            raise ArgumentError(
                f"{self.baseFilename} cannot be written: {error.strerror}"
            ) from None

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        try:
            super().emit(record)
        except ArgumentError:  # of opening it anew
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Says it on stderr, where logging itself has a traceback for each line."""
        if not self._is_said:
            self._is_said = True
            _say(f"--log-file: {sys.exc_info()[1]}; the server continues")


def _say(line: str) -> None:
    said = f"{_PROGRAM}: {' '.join(line.split())}"
    print(dim(said, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
