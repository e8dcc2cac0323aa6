"""The server under llama-server's flags: `python -m pyllama_spec.server.llama_server -m ...`.

Command lines run as they stand: a flag without effect here is noted on stderr, one that asks
for an unsupported feature is refused with the reason, and an unknown one is an error.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllama_spec._version import __version__
from pyllama_spec.engine import engine_version
from pyllama_spec.engine.checks import instance, one_of, real
from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.files import check_no_pipe
from pyllama_spec.llama import Llama
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.keys import keys_of, notes_of, reader_of
from pyllama_spec.server.llama_server_flags import FLAGS, REFUSED, Wanted, read, unescaped
from pyllama_spec.server.settings import LOOPBACK, ServerSettings, hosts_for
from pyllama_spec.terminal import dim

if TYPE_CHECKING:
    from pyllama_spec.server.process import Listening

_PROGRAM = "pyllama-spec-llama-server"
EXIT_OK, EXIT_FAILURE, EXIT_USAGE = 0, 1, 2
_N_PARALLEL, _N_CTX, _MAX_WAITING = 4, 4096, 64
# The defaults of requests, which differ from the library's chats.
_DEFAULTS = {"temperature": 0.8, "max_tokens": -1}
OF_REQUESTS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "penalty_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "mirostat_mode", "mirostat_eta", "mirostat_tau", "ignore_eos", "stop", "grammar",
    "context_shift", "n_keep",
)  # fmt: skip
_OF_CHATS = ("chat_template_kwargs", "reasoning", "reasoning_effort")
OF_LLAMA = (
    "n_draft", "p_min", "draft_gpu_layers", "n_gpu_layers", "devices", "split_mode",
    "tensor_split", "main_gpu", "rpc_servers", "n_threads", "n_threads_batch", "n_batch",
    "n_ubatch", "flash_attn", "type_k", "type_v", "offload_kqv", "op_offload", "swa_full",
    "use_mlock", "use_mmap", "rope_scaling_type", "rope_freq_base", "rope_freq_scale",
    "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast",
    "embedding", "pooling_type", "spm_infill", "verbose",
)  # fmt: skip
_OF_SETTINGS = ("send_timeout_s", "ping_s", "has_slots", "has_metrics", "has_page")
# What the log names in the place of keywords of Llama(), and of settings of the server.
_TOLD = {"embedding=True": "--embeddings", "n_ctx": "-c", "n_batch": "-b",
         "pooling_type": "--pooling", "allowed_hosts": "--allowed-hosts",
         "cors_origins": "--cors-origins", "has_slots": "--slots",
         "has_metrics": "--metrics", "has_page": "--ui", "max_body_bytes": "",
         "max_waiting": "-np"}  # fmt: skip
_LOAD_MODES = {
    "auto": (True, False), "none": (False, False), "mmap": (True, False), "mlock": (False, True),
    "mmap+mlock": (True, True),
}  # fmt: skip
_TEMPLATES = {"llama2": "llama-2", "llama3": "llama-3"}
_FIRST_NAMES = {flag.field: flag.names[0] for flag in reversed(FLAGS)}
_DRAFTS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


class Plan(NamedTuple):
    """The parsed command line.

    Attributes:
        keywords: the keywords of Llama().
        adapters: LoRA files with their scales.
        settings: the settings of the server.
        listening: the server's address and its limits.
        notes: remarks for the user, one line each.
        log_level: a level of `logging`.
        log_file: a file that also receives the log, or None.
        given_by: for each keyword, the flag or the environment variable that set it.

    """

    keywords: dict[str, Any]
    adapters: list[tuple[str, float]]
    settings: ServerSettings
    listening: Listening
    notes: list[str]
    log_level: int
    log_file: Path | None
    given_by: Mapping[str, str]


def plan(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plan:
    """Converts a llama-server command line to settings.

    Args:
        arguments: the arguments after the program's name.
        environment: the environment, whose LLAMA_... variables apply too.

    Raises:
        PyllamaSpecError: see read(); or two flags contradict each other.

    """
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs

    wanted = read(arguments, environment)
    with _named_as_given(wanted.given_by):
        return _planned(wanted, is_key_seen="--api-key" in arguments)


def _planned(wanted: Wanted, *, is_key_seen: bool) -> Plan:
    from pyllama_spec.server.process import Listening

    values, notes = wanted.values, list(wanted.notes)
    if "model" not in values:
        raise ArgumentError("no model is given: -m FILE.gguf")
    keywords = {name: values[name] for name in OF_LLAMA if name in values}
    keywords |= {"model_path": values["model"], "max_waiting": _MAX_WAITING}
    keywords |= {"draft": _draft(values)}
    keywords |= _room(values, notes)
    keywords |= _held(values)
    keywords |= _template(values)
    listening = Listening(
        host=values.get("host", "127.0.0.1"), port=values.get("port", 8080),
        certificate=values.get("tls_cert"), key=values.get("tls_key"),
    )  # fmt: skip
    if (listening.certificate is None) != (listening.key is None):
        raise ArgumentError("--ssl-cert-file and --ssl-key-file belong together: give both")
    if is_key_seen:
        notes.append("--api-key is seen by all who list processes; --api-key-file is not")
    settings = _settings(values, listening, notes)
    for name, value in settings.defaults.items():
        _check_request("json_schema" if name == "response_format" else name, value, wanted.given_by)
    for name in _OF_CHATS:
        _check_request(name, values.get(name), wanted.given_by)
    return Plan(
        keywords, _adapters(values), settings, listening, notes, _log_level(values),
        values.get("log_file"), wanted.given_by,
    )  # fmt: skip


def _check_request(name: str, value: Any, given_by: Mapping[str, str]) -> None:
    """Refuses a default that each request would be refused for."""
    # With context_shift a request says where its text ends.
    if name not in given_by or name == "context_shift":
        return
    try:
        if name == "chat_template_kwargs":
            instance(value, dict, name)
        elif name == "reasoning":
            one_of(value, ("on", "off", "auto"), name)
        elif name == "json_schema":
            RequestOptions(response_format=value)
        else:
            RequestOptions(**{name: value})
    except PyllamaSpecError as error:
        # One that begins with the keyword is named as it was given: see plan().
        is_named = str(error).startswith(f"{name}=")
        raise ArgumentError(str(error) if is_named else f"{given_by[name]}: {error}") from None


@contextmanager
def _named_as_given(given_by: Mapping[str, str]) -> Iterator[None]:
    """Around what reads values: its errors name the flag, or the variable, and no keyword."""

    def given(match: re.Match[str]) -> str:
        by = given_by.get(match[1])
        if by is None:
            return match[0]
        return f"{by} " if by.startswith("-") else f"{by}="

    try:
        yield
    except PyllamaSpecError as error:
        # The value of a keyword, as in "n_threads=0 is below 1".
        error.args = (re.sub(r"\b([a-z][a-z_]*[a-z])=(?=\S)", given, str(error)),)
        raise


def _log_level(values: Mapping[str, Any]) -> int:
    """The log level: llama-server's 1 is errors, 2 warnings, 3 requests, the default."""
    verbosity = 2 if values.get("is_silent") else values.get("verbosity", 3)
    if verbosity <= 1:
        return logging.ERROR
    return logging.WARNING if verbosity == 2 else logging.INFO


def _draft(values: Mapping[str, Any]) -> str | None:
    """The `draft` keyword of Llama(): a file tells its own kind."""
    types = values.get("spec_types", [])
    for one in types:
        if one not in (*_DRAFTS, *_LOOKUPS, "none"):
            known = ", ".join(("none", *_DRAFTS, *_LOOKUPS))
            raise ArgumentError(f"--spec-type {one!r:.60} is not one of {known}")
    if types == ["none"]:
        return None
    draft: str | None = values.get("draft")
    kinds = [one for one in types if one in _DRAFTS]
    if draft is not None and (kinds or not types):
        return draft
    if "draft-mtp" in kinds:
        return "mtp"
    if kinds:
        raise ArgumentError(f"--spec-type {kinds[0]} needs the file of a draft: -md FILE.gguf")
    return "prompt-lookup" if types else None


def _room(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The context lengths: llama-server divides a context among its slots, unless shared."""
    n_ctx, n_parallel = values.get("n_ctx"), values.get("n_parallel", -1)
    if n_parallel < -1 or n_parallel == 0:
        raise ArgumentError(f"-np {n_parallel}: at least one request is computed at once")
    n = _N_PARALLEL if n_parallel == -1 else n_parallel
    if n_ctx is None:
        n_ctx = _N_CTX
        notes.append(f"each request may have {n_ctx} tokens; -c says otherwise")
    elif n_ctx and n_parallel > 1 and not values.get("kv_unified"):
        n_ctx = max(1, n_ctx // n)
    room: dict[str, Any] = {"n_ctx": n_ctx, "n_parallel": n}
    mib = values.get("cache_mib", -1)
    if mib >= 0:
        room["prefix_cache_bytes"] = mib << 20
    return room


def _held(values: Mapping[str, Any]) -> dict[str, Any]:
    held: dict[str, Any] = {}
    mode = values.get("load_mode")
    if mode is not None:
        if mode not in _LOAD_MODES:
            raise ArgumentError(f"-lm {mode!r:.60} is not one of {', '.join(_LOAD_MODES)}")
        held["use_mmap"], held["use_mlock"] = _LOAD_MODES[mode]
    scale = values.get("rope_scale")
    if scale is not None:
        if scale <= 0:
            raise ArgumentError(f"--rope-scale {scale}: a factor above 0 is expected")
        held["rope_freq_scale"] = 1 / scale
    if "kv_overrides" in values:
        held["kv_overrides"] = dict(_override(one) for one in values["kv_overrides"])
    if values.get("rerank"):
        held |= {"embedding": True, "pooling_type": "rank"}
    return held


def _override(text: str) -> tuple[str, Any]:
    """Parses KEY=TYPE:VALUE of --override-kv."""
    key, is_, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    try:
        if is_ and colon and kind == "int":
            return key, int(value)
        if is_ and colon and kind == "float":
            return key, float(value)
        if is_ and colon and kind == "bool" and value in ("true", "false"):
            return key, value == "true"
        if is_ and colon and kind == "str":
            return key, value
    except ValueError:
        pass
    raise ArgumentError(
        f"{text!r:.80}: KEY=TYPE:VALUE is expected, of type int, float, bool or str"
    )


def _template(values: Mapping[str, Any]) -> dict[str, Any]:
    text, name = values.get("chat_template_text"), values.get("chat_template")
    if text is not None:
        return {"chat_template": text}
    if not name:
        return {}
    is_name = re.fullmatch(r"[\w.-]+", name) is not None
    return {"chat_format": _TEMPLATES.get(name, name)} if is_name else {"chat_template": name}


def _adapters(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    adapters = [(path, 1.0) for path in values.get("lora", ())]
    for one in values.get("lora_scaled", ()):
        path, _, scale = one.rpartition(":")
        try:
            adapters.append((path, real(float(scale), "the scale")))
        except ValueError:
            raise ArgumentError(f"--lora-scaled {one!r:.80}: FILE:SCALE is expected") from None
    return adapters


def _settings(values: Mapping[str, Any], listening: Listening, notes: list[str]) -> ServerSettings:
    defaults = {**_DEFAULTS, **{name: values[name] for name in OF_REQUESTS if name in values}}
    if values.get("seed", -1) != -1:
        defaults["seed"] = values["seed"]
    if "stop" in values and values.get("escape", True):
        defaults["stop"] = [unescaped(one) for one in values["stop"]]
    if "json_schema" in values:
        defaults["response_format"] = {"type": "json_object", "schema": values["json_schema"]}
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
        cors_origins=tuple(values.get("cors_origins", ())), defaults=defaults,
        chat_defaults=_of_chats(values), is_greedy_below_0=True, flags=_TOLD,
        **{"has_slots": True, "has_metrics": False, **given},
    )  # fmt: skip


def _of_chats(values: Mapping[str, Any]) -> dict[str, Any]:
    form = values.get("reasoning_format", "auto")
    if form not in ("auto", "none", "deepseek"):
        raise ArgumentError(f"--reasoning-format {form!r:.60} is not one of auto, none, deepseek")
    chats: dict[str, Any] = {"reasoning_format": form}
    for name in ("chat_template_kwargs", "reasoning_effort"):
        if name in values:
            chats[name] = values[name]
    budget = values.get("reasoning_budget", -1)
    if values.get("reasoning") == "off" or budget == 0:
        chats["reasoning_effort"] = "none"
    elif budget > 0:
        chats["thinking_token_budget"] = budget
    return chats


def help_text() -> str:
    """The flags, one line each."""
    lines = ["Flags of llama-server that are taken, and --allowed-hosts:", ""]
    lines += [
        f"  {', '.join(flag.names)}{'' if flag.read is None else ' VALUE'}"
        + (f"  [{flag.variable}]" if flag.variable else "")
        for flag in FLAGS
    ]
    lines += ["", "Refused:", *(f"  {name}: {why}" for name, why in REFUSED.items())]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it.

    Returns:
        0 if a signal stopped it, 1 after a failure, 2 for bad usage; stderr says why.

    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help", "--usage"} & {*given}:
        return _print_help()
    if "--version" in given:
        print(f"pyllama-spec {__version__} (llama.cpp {engine_version()})")  # noqa: T201
        return EXIT_OK
    try:
        meant = plan(given)
    except PyllamaSpecError as error:
        _say(f"error: {error}")
        return EXIT_USAGE
    from pyllama_spec.server.hangup import Hangup

    log = _StartLog()
    try:
        with Hangup(), _named_as_given(meant.given_by):
            _run(meant, log)
    except PyllamaSpecError as error:
        log.say(f"error: {with_flags(str(error))}")
        return EXIT_FAILURE
    return EXIT_OK


def with_flags(message: str) -> str:
    """A message about keywords of Llama(), with the flags that set them.

    "n_batch=0 is below 1" becomes "-b 0 is below 1".
    """
    for name in (*OF_LLAMA, "n_ctx", "n_parallel"):
        # Those of several words: "embedding" is a word of messages too.
        flag = _FIRST_NAMES.get(name, "") if "_" in name else ""
        if flag:
            message = re.sub(rf"(?<![\w-]){name}=", f"{flag} ", message)
            message = re.sub(rf"(?<![\w-]){name}(?!\w)", flag, message)
    return message


def _print_help() -> int:
    """Prints the help; ignores a reader that has closed the pipe, such as head."""
    try:
        print(help_text(), flush=True)  # noqa: T201 - a program's help
    except BrokenPipeError:
        # Python flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _run(meant: Plan, log: _StartLog) -> None:
    from pyllama_spec.server import serve

    log.open(meant)
    log.say(f"version {__version__}, llama.cpp {engine_version()}")
    for note in meant.notes:
        log.say(note)
    with Llama(**meant.keywords) as llm:
        if meant.adapters:
            llm.set_adapters(meant.adapters)
        served = Path(meant.keywords["model_path"]).name
        with suppress(UnsupportedError):  # a model that only embeds has no draft
            served += f", draft {llm.drafter_name}"
        serve(
            llm, meant.settings, meant.listening,
            on_start=lambda url: log.say(f"server is listening on {url}, with {served}"),
        )  # fmt: skip


class LogFile(WatchedFileHandler):
    """The file of --log-file. After logrotate renames it, a new one is opened.

    A failed write, as on a full disk, is reported once until a write succeeds: the server
    continues, and stderr has the log too.

    Args:
        path: the path of the file.

    Raises:
        ArgumentError: the file cannot be opened.

    """

    def __init__(self, path: Path) -> None:
        self._path, self._is_said, self._has_failed = path, False, False
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise ArgumentError(f"--log-file {path} cannot be written: {error.strerror}") from None

    def _open(self) -> TextIOWrapper:
        """Opens the file, also the one after logrotate's."""
        check_no_pipe(self._path)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        self._has_failed = False
        try:
            super().emit(record)
        except OSError:  # opening it anew
            self.handleError(record)
        self._is_said = self._has_failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Says it on stderr, where logging itself has a traceback for each line."""
        error = sys.exc_info()[1]
        self._has_failed = True
        if not self._is_said:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            with suppress(OSError, ValueError):
                _say(f"--log-file {self._path} cannot be written: {why}; the server goes on")

    def close(self) -> None:
        """Closes it, whether the last lines can be written or not."""
        with suppress(OSError):
            super().close()


class _StartLog:
    """The lines of the program itself, such as its address, at any log level."""

    def __init__(self) -> None:
        self._file: LogFile | None = None

    def open(self, meant: Plan) -> None:
        """Starts the log.

        Raises:
            ArgumentError: the file of --log-file cannot be opened.

        """
        handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
        if meant.log_file is not None:
            self._file = LogFile(meant.log_file)
            handlers.append(self._file)
        form = "%(asctime)s %(message)s"
        logging.basicConfig(handlers=handlers, level=logging.WARNING, format=form)
        logging.getLogger("pyllama_spec.server").setLevel(meant.log_level)

    def say(self, line: str) -> None:
        """Writes a line to stderr, and to the log's file."""
        _say(line)
        if self._file is not None:
            self._file.handle(logging.makeLogRecord({"msg": " ".join(line.split())}))


def _say(line: str) -> None:
    said = f"{_PROGRAM}: {' '.join(line.split())}"
    print(dim(said, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
