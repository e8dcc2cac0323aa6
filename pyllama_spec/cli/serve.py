"""serve: OpenAI's API over HTTP, with drafts."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pyllama_spec.cli.device_options import names
from pyllama_spec.cli.generate import add_model_options, open_llama
from pyllama_spec.drafters.registry import AUTO
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context_params import POOLING
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.terminal import dim

if TYPE_CHECKING:
    from pyllama_spec.llama import Llama
    from pyllama_spec.server import ServerSettings
    from pyllama_spec.server.prefix_folder import PrefixFolder
    from pyllama_spec.server.process import Listening

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_EPILOG = (
    "API keys are in a file, one per line, or in the environment variable PYLLAMA_SPEC_API_KEY: "
    "everyone who lists processes sees a command line. SIGTERM and Ctrl-C stop the server: running "
    "requests are finished, or cut after --stop-timeout."
)

# With --config: options of the server, and options that a model's own lines set.
_OF_SERVER = ("help", "config", "model", "quiet")
_OF_MODELS = ("alias", "parallel", "embeddings", "pooling", "lora", "max_waiting")
# The command's options in messages to clients, for keywords of Llama().
FLAGS = {
    "embedding=True": "--embeddings", "n_ctx": "--n-ctx", "max_waiting": "--max-waiting",
    "pooling_type": "--pooling",
}  # fmt: skip
# With --config keywords are keys of the file.
_KEYS = {"embedding=True": '"embedding = true" in --config'}


def add_serve(commands: _Commands) -> None:
    """Adds the command `serve`."""
    parser = commands.add_parser(
        "serve", help="serve a model over HTTP with OpenAI's API", epilog=_EPILOG
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--config", type=Path, default=None, metavar="TOML",
        help="a file of several models, each loaded when a request asks for it; instead of -m",
    )  # fmt: skip
    add_model_options(parser, models)
    of_models = {one.dest: one.default for one in parser._actions if one.dest not in _OF_SERVER}
    _add_address(parser)
    _add_bounds(parser)
    add = parser.add_argument
    add("--parallel", type=int, default=4, metavar="N",
        help="requests computed at once; the KV cache is that many times as large")  # fmt: skip
    add("--alias", default=None, help="the model's name in answers [its file]")
    add("--embeddings", action="store_true", help="serve embeddings and reranking too")
    add("--pooling", choices=[one for one in POOLING if one], default=None,
        help="how a text's embedding is made of those of its tokens [the model's own]")  # fmt: skip
    add("--lora", type=Path, default=None, metavar="GGUF", help="a LoRA adapter")
    add("--cache-dir", type=Path, default=None, metavar="DIR",
        help="keep the KV cache of long prompts there for the next start [in memory]")  # fmt: skip
    add("--cache-size", type=int, default=2048, metavar="MIB", help="the most MiB of --cache-dir")
    add("--slots", action="store_true", help="show what is computed now, at /slots")
    add("--metrics", action=argparse.BooleanOptionalAction, default=True,
        help="figures for Prometheus, at /metrics")  # fmt: skip
    of_models |= {name: parser.get_default(name) for name in _OF_MODELS}
    parser.set_defaults(run=run_serve, of_models=of_models)


def _no_key(_text: str) -> None:
    """Refuses a key, which argparse would take for the beginning of --api-key-file."""
    raise argparse.ArgumentTypeError(
        "all who list processes see a command line: --api-key-file names a file of keys, or "
        "PYLLAMA_SPEC_API_KEY holds one"
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0: all of them")
    add("--port", type=int, default=8080, help="the port; 0: any free one")
    add(
        "--api-key-file",
        type=Path,
        default=None,
        metavar="F",
        help="API keys, one per line [no key]",
    )
    add("--api-key", type=_no_key, default=None, help=argparse.SUPPRESS)
    add("--cors-origin", action="append", default=[], metavar="ORIGIN",
        help="an origin whose pages may call; may be repeated [none]")  # fmt: skip
    add("--allowed-hosts", type=names, default=None, metavar="NAME,...",
        help="host names by which clients reach the server [those of this machine on a loopback "
        "address, else any]")  # fmt: skip
    add("--tls-cert", type=Path, default=None, metavar="PEM", help="with --tls-key: HTTPS")
    add("--tls-key", type=Path, default=None, metavar="PEM", help="the key of --tls-cert")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-waiting", type=int, default=64, metavar="N",
        help="requests that may wait; one more is a 429")  # fmt: skip
    add("--max-tokens", type=int, default=None, metavar="N",
        help="the most tokens of an answer [what the context holds]")  # fmt: skip
    add("--max-time", type=float, default=3600.0, metavar="S",
        help="seconds that a request may take, in the queue too")  # fmt: skip
    add("--max-body", type=int, default=8, metavar="MIB", help="the most MiB of a request")
    add("--send-timeout", type=float, default=60.0, metavar="S",
        help="seconds that a client may take for one event of a stream")  # fmt: skip
    add("--stop-timeout", type=float, default=30.0, metavar="S",
        help="seconds that running requests have when the server stops")  # fmt: skip


def run_serve(args: argparse.Namespace) -> int:
    """Serves until a signal ends it."""
    from pyllama_spec.server import serve  # says how to install what it needs
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
        n, n_cut = _serve_several(args, settings, listening)
    else:
        more = {"lora_path": args.lora, "pooling_type": args.pooling}
        with open_llama(
            args, n_parallel=args.parallel, max_waiting=args.max_waiting,
            embedding=args.embeddings, **{k: v for k, v in more.items() if v is not None},
        ) as llama:  # fmt: skip
            _warn(args, settings)
            with _prefixes(args) as llama.cache:
                n, n_cut = serve(
                    llama, settings, listening, on_start=lambda url: _say(url, args, llama)
                )
    print(f"stopped: {n - n_cut} running requests came to their end, {n_cut} were cut")
    return 0


def _serve_several(
    args: argparse.Namespace, settings: ServerSettings, listening: Listening
) -> tuple[int, int]:
    """Serves the models of a file; what serve() returns."""
    from pyllama_spec.server import read_models, serve

    for name, default in args.of_models.items():
        if getattr(args, name) != default:
            raise ArgumentError(
                f"--{name.replace('_', '-')} applies to one model: with --config, set it in the "
                "file, under the name of Llama()'s keyword"
            )
    models = read_models(args.config)
    _warn(args, settings)

    def say(url: str) -> None:
        n = len(models.specs)
        print(f"{n} model{'s' * (n != 1)} of {args.config.name} answer at {url}", flush=True)

    with _prefixes(args) as cache:
        return serve(replace(models, cache=cache), settings, listening, on_start=say)


@contextlib.contextmanager
def _prefixes(args: argparse.Namespace) -> Iterator[PrefixFolder | None]:
    """The folder of kept states; pending writes are finished at the end."""
    if args.cache_dir is None:
        yield None
        return
    from pyllama_spec.server.prefix_folder import PrefixFolder

    folder = PrefixFolder(args.cache_dir, count(args.cache_size, "--cache-size", 1) << 20)
    try:
        yield folder
    finally:
        folder.close()


def _settings(args: argparse.Namespace) -> ServerSettings:
    from pyllama_spec.server import ServerSettings
    from pyllama_spec.server.settings import LOOPBACK, keys_of

    hosts = args.allowed_hosts
    if hosts is None:
        hosts = LOOPBACK if args.host in LOOPBACK else ()
    return ServerSettings(
        alias=args.alias,
        api_keys=keys_of(args.api_key_file),
        allowed_hosts=tuple(hosts),
        cors_origins=tuple(args.cors_origin),
        max_body_bytes=args.max_body << 20,
        max_tokens=args.max_tokens,
        max_time_s=args.max_time,
        send_timeout_s=args.send_timeout,
        stop_timeout_s=args.stop_timeout,
        has_slots=args.slots,
        has_metrics=args.metrics,
        flags=FLAGS if args.config is None else _KEYS,
    )


def _warn(args: argparse.Namespace, settings: ServerSettings) -> None:
    from pyllama_spec.server.settings import LOOPBACK

    notes = []
    if args.host not in LOOPBACK and not settings.api_keys:
        notes.append(
            f"whoever reaches {args.host} may use the model: --api-key-file asks for a key"
        )
    if args.host not in LOOPBACK and args.tls_cert is None:
        notes.append("keys and texts go over the network as they are: --tls-cert, or a proxy")
    for note in notes:
        print(dim(f"[{note}]", sys.stderr), file=sys.stderr)


def _say(url: str, args: argparse.Namespace, llama: Llama) -> None:
    name = Path(args.model).name
    at_once = "one request at a time" if args.parallel == 1 else f"{args.parallel} requests at once"
    draft = args.draft
    # Which one auto took. A model that only embeds has none to ask for.
    if draft == AUTO:
        with contextlib.suppress(UnsupportedError):
            draft = f"{AUTO} ({llama.drafter_name})"
    what = f"{at_once}, draft {draft}"
    print(f"{name} answers at {url}, {what}", flush=True)
