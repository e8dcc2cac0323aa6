"""serve: serves OpenAI's API over HTTP, with drafts."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyllama_spec.cli.generate import print_notes
from pyllama_spec.cli.options import add_model_options, add_options, argument, llama_keywords
from pyllama_spec.engine.checks import count
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.options import names_of, options_of, words_of
from pyllama_spec.server.programs import Plan, serve_plan, set_up_log, settings_of
from pyllama_spec.server.settings import ServerSettings

if TYPE_CHECKING:
    from pyllama_spec.server.model_list import ModelList
    from pyllama_spec.server.prefix_folder import PrefixFolder
    from pyllama_spec.server.process import Listening

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_EPILOG = (
    "API keys are in a file, one per line, or in the environment variable PYLLAMA_SPEC_API_KEY: "
    "everyone who lists processes sees a command line. SIGHUP has the file read again. "
    " SIGTERM and Ctrl-C stop the server: it finishes the requests that it has, and "
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
_SETTINGS = [
    one.name for one in options_of(ServerSettings).values() if one.cli and not one.is_repeated
]
# What the log calls settings of the server, and keywords of Llama().
_OF_SETTINGS = {
    **names_of("cli", ServerSettings), "allowed_hosts": "--allowed-hosts",
    "max_body_bytes": "--max-body", "api_key_file": "--api-key-file", "tls_cert": "--tls-cert",
}  # fmt: skip
FLAGS = {**names_of("cli", OpenOptions), **_OF_SETTINGS}


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
    add_model_options(parser, models, _HELP)
    of_models = {one.dest: one.default for one in parser._actions if one.dest not in _OF_SERVER}
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0: all of them")
    add("--port", type=int, default=8080, help="the port; 0: any free one")
    add("--api-key-file", type=Path, metavar="F", help="API keys, one per line [no key]")
    add_options(parser, ServerSettings, "address")
    add("--allowed-hosts", type=argument(words_of), metavar="NAME,...",
        help="accepted names in the Host header beside 127.0.0.1, localhost and ::1, such as a "
        "proxy's [on a loopback address none, else any]")  # fmt: skip
    add("--tls-cert", type=Path, metavar="PEM", help="certificate for HTTPS")
    add("--tls-key", type=Path, metavar="PEM", help="the key of --tls-cert")
    add("--max-body", type=int, default=8, metavar="MIB", help="maximum MiB of a request body")
    add_options(parser, ServerSettings, "bounds")
    add_options(parser, OpenOptions, "served")
    add("--alias", dest="aliases", type=argument(words_of), metavar="NAME,...",
        help="names of the model, the first one for answers [its file]")  # fmt: skip
    add("--cache-dir", type=Path, metavar="DIR",
        help="store the KV cache of long prompts in DIR for the next start [memory]")  # fmt: skip
    add("--cache-size", type=int, metavar="MIB",
        help=f"maximum MiB of --cache-dir [{_CACHE_MIB}]")  # fmt: skip
    add_options(parser, ServerSettings, "answers")
    of_models |= {name: parser.get_default(name) for name in _OF_MODELS}
    parser.set_defaults(run=run_serve, of_models=of_models)


def run_serve(args: argparse.Namespace) -> int:
    """Serves until a signal ends it."""
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs
    from pyllama_spec.server.models import stopped_in_words

    settings, listening, notes = _settings(args)
    set_up_log(logging.WARNING if args.quiet else logging.INFO, is_json=settings.logs_json)
    models, keywords = None, dict[str, Any]()
    if args.config is None:
        count(args.n_parallel, "n_parallel", 1)
        count(args.max_waiting, "max_waiting", 0)
        keywords = llama_keywords(args)
    else:
        models = _models(args)
    print_notes(notes)
    with _prefixes(args) as cache:
        meant = Plan(
            keywords=keywords, settings=settings, listening=listening, models=models, cache=cache
        )
        n, n_cut = serve_plan(meant, partial(print, flush=True))
    print(stopped_in_words(n, n_cut))
    return 0


def _settings(args: argparse.Namespace) -> tuple[ServerSettings, Listening, list[str]]:
    names = FLAGS if args.config is None else _OF_SETTINGS  # else keywords are keys of the file
    size = count(args.max_body, "max_body", 1, 2047) << 20
    return settings_of(vars(args), names, _SETTINGS, max_body_bytes=size)


def _models(args: argparse.Namespace) -> ModelList:
    """The models of the file; options that a model's own lines set are refused."""
    from pyllama_spec.server import read_models

    args.names_keys = True  # in messages from here on
    misplaced = [name for name, default in args.of_models.items() if getattr(args, name) != default]
    if misplaced:
        flags = " and ".join(args.options[one] for one in misplaced)
        raise ArgumentError(
            problem=f"{flags} cannot stand beside --config",
            remedy=f"put {' and '.join(misplaced)} into {args.config.name}",
        )
    return read_models(args.config)


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
