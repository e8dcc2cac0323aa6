"""serve: serves OpenAI's API over HTTP, with drafts."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyllama_spec.cli.options import add_model_options, names, open_llama
from pyllama_spec.drafters.registry import AUTO
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.speculative.stats import plural
from pyllama_spec.terminal import dim

if TYPE_CHECKING:
    from pyllama_spec.llama import Llama
    from pyllama_spec.server import ServerSettings
    from pyllama_spec.server.prefix_folder import PrefixFolder
    from pyllama_spec.server.process import Listening

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_EPILOG = (
    "API keys are in a file, one per line, or in the environment variable PYLLAMA_SPEC_API_KEY: "
    "everyone who lists processes sees a command line. SIGHUP has the file and the certificate "
    "read again. SIGTERM and Ctrl-C stop the server: it finishes the requests that it has, and "
    "cuts them after --stop-timeout or at a second signal."
)

_CACHE_MIB = 2048
# With --config: options of the server, and options that a model's own lines set.
_OF_SERVER = ("help", "config", "model_path", "quiet")
_OF_MODELS = ("aliases", "n_parallel", "embedding", "pooling_type", "lora_path", "max_waiting")
_HELP = {
    "n_ctx": "context length of each request; the KV cache has --parallel times as much",
    "quiet": "no line for each request",
}
_SETTINGS = (
    "max_tokens", "max_time_s", "send_timeout_s", "stop_timeout_s", "has_slots", "has_metrics",
    "has_page", "logs_clients", "logs_checks",
)  # fmt: skip
# What the log names in the place of settings of the server, and of keywords of Llama().
_OF_SETTINGS = {
    "allowed_hosts": "--allowed-hosts", "cors_origins": "--cors-origin", "has_slots": "--slots",
    "has_metrics": "--metrics", "has_page": "--page",
    "max_body_bytes": "--max-body",
}  # fmt: skip
FLAGS = {
    **_OF_SETTINGS, "embedding": "--embeddings", "n_ctx": "--n-ctx",
    "max_waiting": "--max-waiting", "pooling_type": "--pooling",
}  # fmt: skip
# With --config keywords are keys of the file.
_KEYS = {**_OF_SETTINGS, "embedding": "embedding"}


def add_serve(commands: _Commands) -> None:
    """Adds the command `serve`."""
    parser = commands.add_parser(
        "serve", help="serve a model over HTTP with OpenAI's API", epilog=_EPILOG
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--config", type=Path, metavar="TOML",
        help="a file of several models, each loaded when a request asks for it; instead of -m",
    )  # fmt: skip
    add_model_options(parser, models)
    for action in parser._actions:  # of a server they say something else
        action.help = _HELP.get(action.dest, action.help)
    parser.set_defaults(of_unknown=_of_unknown)
    of_models = {one.dest: one.default for one in parser._actions if one.dest not in _OF_SERVER}
    _add_address(parser)
    _add_bounds(parser)
    add = parser.add_argument
    add("--parallel", dest="n_parallel", type=int, default=4, metavar="N",
        help="requests computed in parallel; the KV cache grows in proportion")  # fmt: skip
    add("--alias", dest="aliases", type=names, metavar="NAME,...",
        help="names of the model, the first one for answers [its file]")  # fmt: skip
    add("--embeddings", dest="embedding", action="store_true",
        help="serve embeddings and reranking too")  # fmt: skip
    add("--pooling", dest="pooling_type", choices=[one for one in POOLING if one],
        help="how to pool token embeddings into a text's [the model's own]")  # fmt: skip
    add("--lora", dest="lora_path", type=Path, metavar="GGUF", help="a LoRA adapter")
    add("--cache-dir", type=Path, metavar="DIR",
        help="store the KV cache of long prompts in DIR for the next start [memory]")  # fmt: skip
    add("--cache-size", type=int, metavar="MIB",
        help=f"maximum MiB of --cache-dir [{_CACHE_MIB}]")  # fmt: skip
    add(
        "--slots",
        dest="has_slots",
        action="store_true",
        help="serve the running requests at /slots",
    )
    add("--metrics", dest="has_metrics", action=argparse.BooleanOptionalAction, default=True,
        help="serve Prometheus metrics at /metrics")  # fmt: skip
    add("--page", dest="has_page", action=argparse.BooleanOptionalAction, default=True,
        help="serve the page at /")  # fmt: skip
    add("--log-checks", dest="logs_checks", action=argparse.BooleanOptionalAction, default=True,
        help="log successful /health, /ready and /metrics requests too")  # fmt: skip
    add("--log-clients", dest="logs_clients", action="store_true",
        help="log the clients' addresses, or those that a proxy on this machine "
        "forwards")  # fmt: skip
    of_models |= {name: parser.get_default(name) for name in _OF_MODELS}
    parser.set_defaults(run=run_serve, of_models=of_models)


def _no_key(_text: str) -> None:
    """Refuses --api-key, which argparse would take for an abbreviation of --api-key-file."""
    raise argparse.ArgumentTypeError(
        "other users can read the command line: put keys into a file for --api-key-file, or one "
        "into the variable PYLLAMA_SPEC_API_KEY"
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0: all of them")
    add("--port", type=int, default=8080, help="the port; 0: any free one")
    add("--api-key-file", type=Path, metavar="F", help="API keys, one per line [no key]")
    add("--api-key", type=_no_key, help=argparse.SUPPRESS)
    add("--cors-origin", dest="cors_origins", action="append", default=[], metavar="ORIGIN",
        help="an origin whose pages may call; may be repeated [none]")  # fmt: skip
    add("--allowed-hosts", type=names, metavar="NAME,...",
        help="accepted names in the Host header beside 127.0.0.1, localhost and ::1, such as a "
        "proxy's [on a loopback address none, else any]")  # fmt: skip
    add("--tls-cert", type=Path, metavar="PEM", help="certificate for HTTPS")
    add("--tls-key", type=Path, metavar="PEM", help="the key of --tls-cert")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-waiting", type=int, default=64, metavar="N",
        help="maximum queued requests; a further one gets a 429")  # fmt: skip
    add("--max-tokens", type=int, metavar="N",
        help="maximum tokens of an answer; a cut answer says so [the context length]")  # fmt: skip
    add("--max-time", dest="max_time_s", type=float, default=3600.0, metavar="S",
        help="timeout of a request in seconds, its time in the queue included")  # fmt: skip
    add("--max-body", type=int, default=8, metavar="MIB", help="maximum MiB of a request body")
    add("--send-timeout", dest="send_timeout_s", type=float, default=60.0, metavar="S",
        help="timeout of a client for one event of a stream, in seconds")  # fmt: skip
    add("--stop-timeout", dest="stop_timeout_s", type=float, default=30.0, metavar="S",
        help="timeout of running requests when the server stops, in seconds")  # fmt: skip


def run_serve(args: argparse.Namespace) -> int:
    """Serves until a signal ends it."""
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs
    from pyllama_spec.server.process import Hangup
    from pyllama_spec.server.serving import stopped_in_words

    with Hangup():
        n, n_cut = _serve(args)
    print(stopped_in_words(n, n_cut))
    return 0


def _serve(args: argparse.Namespace) -> tuple[int, int]:
    """Serves one model; returns what serve() returns."""
    from pyllama_spec.server import serve
    from pyllama_spec.server.process import Listening

    if (args.tls_cert is None) != (args.tls_key is None):
        raise ArgumentError("--tls-cert and --tls-key belong together: give both")
    settings = _settings(args)
    listening = Listening(
        host=args.host, port=args.port, certificate=args.tls_cert, key=args.tls_key
    )
    level = logging.WARNING if args.quiet else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("pyllama_spec.server").setLevel(level)
    if args.config is not None:
        return _serve_several(args, settings, listening)
    count(args.n_parallel, "n_parallel", 1)
    count(args.max_waiting, "max_waiting", 0)
    with open_llama(args) as llama:
        _warn(args, settings)
        with _prefixes(args) as llama.cache:
            return serve(llama, settings, listening, on_start=lambda url: _say(url, args, llama))


def _serve_several(
    args: argparse.Namespace, settings: ServerSettings, listening: Listening
) -> tuple[int, int]:
    """Serves the models of a file; returns what serve() returns."""
    from pyllama_spec.server import read_models, serve

    args.names_keys = True
    misplaced = [name for name, default in args.of_models.items() if getattr(args, name) != default]
    if misplaced:
        keys = " and ".join(misplaced)
        flags = " and ".join(args.options[one] for one in misplaced)
        do = "does" if len(misplaced) == 1 else "do"
        raise ArgumentError(
            f"put {keys} into {args.config.name}: {flags} {do} not go with --config"
        )
    models = read_models(args.config)
    _warn(args, settings)

    def say(url: str) -> None:
        n = len(models.specs)
        answer = "answers" if n == 1 else "answer"
        print(f"{plural(n, 'model')} of {args.config.name} {answer} at {url}", flush=True)

    with _prefixes(args) as cache:
        return serve(replace(models, cache=cache), settings, listening, on_start=say)


@contextlib.contextmanager
def _prefixes(args: argparse.Namespace) -> Iterator[PrefixFolder | None]:
    """Opens the folder of stored states; finishes pending writes at the end."""
    if args.cache_dir is None:
        yield None
        return
    from pyllama_spec.server.prefix_folder import PrefixFolder

    mib = _CACHE_MIB if args.cache_size is None else count(args.cache_size, "cache_size", 1)
    folder = PrefixFolder(args.cache_dir, mib << 20)
    try:
        yield folder
    finally:
        folder.close()


def _settings(args: argparse.Namespace) -> ServerSettings:
    from pyllama_spec.server import ServerSettings
    from pyllama_spec.server.keys import keys_of, reader_of
    from pyllama_spec.server.settings import hosts_for

    key_file = args.api_key_file
    alias, *aliases = dict.fromkeys(args.aliases or (None,))
    return ServerSettings(
        alias=alias, aliases=tuple(aliases), api_keys=keys_of(key_file),
        read_keys=reader_of(key_file),
        allowed_hosts=hosts_for(args.host, args.allowed_hosts or ()),
        max_body_bytes=count(args.max_body, "max_body", 1, 2047) << 20,
        cors_origins=tuple(args.cors_origins),
        flags=FLAGS if args.config is None else _KEYS,
        **{name: getattr(args, name) for name in _SETTINGS},
    )  # fmt: skip


def _of_unknown(words: Sequence[str]) -> str:
    """The remedy for unknown arguments that are llama-server's flags; "" for others."""
    from pyllama_spec.server.llama_server_flags import is_flag

    if not any(is_flag(word) for word in words):
        return ""
    return (
        "; pyllama-spec-llama-server takes llama-server's flags as they are; there -c is shared: "
        "-c 8192 -np 4 is -c 2048 --parallel 4 here"
    )


def _warn(args: argparse.Namespace, settings: ServerSettings) -> None:
    from pyllama_spec.server.keys import notes_of
    from pyllama_spec.server.settings import LOOPBACK

    notes = notes_of(args.api_key_file)
    if args.host not in LOOPBACK and not settings.api_keys:
        notes.append(
            f"any client that reaches {args.host} may use the model: --api-key-file asks for a key"
        )
    if args.host not in LOOPBACK and args.tls_cert is None:
        notes.append("keys and texts go over the network as they are: --tls-cert, or a proxy")
    for note in notes:
        print(dim(f"[{note}]", sys.stderr), file=sys.stderr)


def _say(url: str, args: argparse.Namespace, llama: Llama) -> None:
    name = Path(args.model_path).name
    at_once = (
        "one request at a time" if args.n_parallel == 1 else f"{args.n_parallel} requests at once"
    )
    draft = args.draft
    # Which one auto took. A model that only embeds has none to ask for.
    if draft == AUTO:
        with contextlib.suppress(UnsupportedError):
            draft = f"{AUTO} ({llama.drafter_name})"
    what = f"{at_once}, draft {draft}"
    print(f"{name} answers at {url}, {what}", flush=True)
