"""The settings of a server: limits, keys and defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyllama_spec.engine.checks import checked
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_text
from pyllama_spec.options import option, options_of

# Where a key may stand beside a file: never among the arguments, which other users can list.
KEY_VARIABLE = "PYLLAMA_SPEC_API_KEY"
_MAX_NAME = 64
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The limits, keys and defaults of a server.

    Attributes: those without an option of the command line, which has its help.
        alias: the model's name in answers to requests without a name for it; None for the file's.
        aliases: further names of the model in the list of models.
        api_keys: the keys, one of which every request needs; none for a server without keys. "KEY #
            NAME" has a name for the log.
        read_keys: rereads the keys at SIGHUP; None if they never change.
        allowed_hosts: allowed names in the Host header; () for any. This refuses foreign pages
            whose domain resolves to this machine.
        defaults: request options for requests without them, by RequestOptions' names.
        chat_defaults: the same for chats alone, by the names of create_chat_completion().
        is_greedy_below_0: whether a temperature below 0 is greedy; otherwise as in Llama.
        continues_last: whether a last message of the assistant is the beginning of the answer.
        max_body_bytes: the most bytes of a request's body.
        max_inputs: the most texts in one request for embeddings, documents in one to rank, and
            prompts in one completion.
        body_timeout_s: seconds for a body to arrive.
        ping_s: seconds of silence after which a stream sends a comment.
        retry_after_s: the Retry-After of every 429 and 503.
        flags: the serving program's names for keywords of Llama() and for these attributes; for a
            refused request, the log names the one that would allow it; "" for none.

    Raises:
        ArgumentError: a limit is not a number or too low, or a key is empty.
    """

    alias: str | None = None
    aliases: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    read_keys: Callable[[], Sequence[str]] | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = option(
        (),
        cli="--cors-origin",
        metavar="ORIGIN",
        is_repeated=True,
        read=str,
        group="address",
        help="an origin whose pages may call, * for all, localhost for this machine's; may be "
        "repeated [none]",
    )
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chat_defaults: Mapping[str, Any] = field(default_factory=dict)
    is_greedy_below_0: bool = False
    continues_last: bool = option(
        False,
        server="--prefill-assistant",
        variable="ARG_PREFILL_ASSISTANT",
        server_off="--no-prefill-assistant",
        variable_off="ARG_NO_PREFILL_ASSISTANT",
    )
    # fmt: off
    max_body_bytes: int = option(8 << 20, low=1)
    max_inputs: int = option(2048, low=1)
    max_tokens: int | None = option(
        None, low=1, cli="--max-tokens", metavar="N", group="bounds",
        help="maximum tokens of an answer; a cut answer says so [the context length]",
    )
    max_time_s: float | None = option(
        3600.0, low=0, cli="--max-time", metavar="S", group="bounds",
        help="timeout of a request in seconds, its time in the queue included",
    )
    body_timeout_s: float = option(30.0, low=0)
    send_timeout_s: float = option(
        60.0, low=0, cli="--send-timeout", metavar="S", group="bounds",
        help="timeout of a client for one event of a stream, in seconds",
        server="-to --timeout", variable="ARG_TIMEOUT",
    )
    # Without a pause between comments a stream would hold nothing else.
    ping_s: float = option(
        15.0, low=0.01, server="--sse-ping-interval", variable="ARG_SSE_PING_INTERVAL"
    )
    retry_after_s: int = option(5, low=1)
    stop_timeout_s: float = option(
        30.0, low=0, cli="--stop-timeout", metavar="S", group="bounds",
        help="timeout of running requests when the server stops, in seconds",
    )
    has_slots: bool = option(
        False, cli="--slots", group="answers", help="serve the running requests at /slots",
        server="--slots", variable="ARG_ENDPOINT_SLOTS",
        server_off="--no-slots", variable_off="ARG_NO_ENDPOINT_SLOTS",
    )
    has_metrics: bool = option(
        True, cli="--metrics", group="answers", help="serve Prometheus metrics at /metrics",
        server="--metrics", variable="ARG_ENDPOINT_METRICS",
    )
    has_page: bool = option(
        True, cli="--page", group="answers", help="serve the page at /",
        server="--ui --webui", variable="ARG_UI",
        server_off="--no-ui --no-webui", variable_off="ARG_NO_UI",
    )
    logs_checks: bool = option(
        True, cli="--log-checks", group="answers",
        help="log successful /health, /ready and /metrics requests too",
    )
    logs_clients: bool = option(
        False, cli="--log-clients", group="answers",
        help="log the clients' addresses, or those that a proxy on this machine forwards",
    )
    logs_json: bool = option(
        False, cli="--log-json", group="answers", help="write each line of the log as JSON",
        server="--log-jsonl", server_off="--no-log-jsonl",
    )
    # fmt: on
    flags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in options_of(type(self)).values():
            checked(one, getattr(self, one.name))
        if any(not key.strip() for key in self.api_keys):
            raise ArgumentError("api_keys", problem="has an empty key", remedy="remove it")


def hosts_for(address: str, names: Sequence[str]) -> tuple[str, ...]:
    """ServerSettings.allowed_hosts of an address: any, except on loopback or for a name.

    Programs on this machine, such as a health check, use its loopback names. Another site's page
    cannot: a browser sends the name in the page's address.
    """
    if not names and address not in LOOPBACK:
        return ()
    return tuple(dict.fromkeys((*(name.lower() for name in names), *LOOPBACK)))


# ---- files of keys


def keys_of(path: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Reads the keys of a file and of the environment variable PYLLAMA_SPEC_API_KEY.

    Each line of the file is a key, optionally followed by " #" and its name: "KEY # NAME". A line
    that begins with "#" is a comment.
    """
    keys: list[str] = []
    if path is not None:
        lines = read_text(Path(path), "the file of API keys").splitlines()
        keys += [line for one in lines if (line := one.strip()) and line[0] != "#"]
        if not keys:
            raise ArgumentError(
                problem=f"{os.fspath(path)} has no API key", remedy="write one a line"
            )
    if own := os.environ.get(KEY_VARIABLE, "").strip():
        keys.append(f"{own} # environment")
    return tuple(keys)


def key_and_name(line: str) -> tuple[str, str]:
    """A key, and its name as a word of the log's line; "" for none."""
    text, _, name = line.replace("\t#", " #").partition(" #")
    name = "".join(c if c.isascii() and c.isprintable() else "?" for c in "_".join(name.split()))
    return text.strip(), name[:_MAX_NAME]


def reader_of(
    path: str | os.PathLike[str] | None, others: Sequence[str] = ()
) -> Callable[[], Sequence[str]] | None:
    """Rereads a key file, for ServerSettings.read_keys; None without a file. Refuses a pipe."""
    if path is None:
        return None

    def read() -> Sequence[str]:
        if not Path(path).is_file():
            raise ArgumentError(problem=f"{os.fspath(path)} is not a file that can be read again")
        return (*others, *keys_of(path))

    return read
