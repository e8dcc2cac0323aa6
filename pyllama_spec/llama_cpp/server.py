"""`python -m pyllama_spec.llama_cpp.server`: llama-cpp-python's server options, and ours.

An option is --name VALUE or the environment variable NAME; --config_file or CONFIG_FILE names a
JSON file of the same names, with the model's under "models". What the command line says counts
before the file, and that before the environment, but for HOST and PORT of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.files import read_plain
from pyllama_spec.llama.open_options import KEYWORDS, OpenOptions
from pyllama_spec.options import Option, json_value, option, options_of, typed_values

if TYPE_CHECKING:
    from pyllama_spec.server import ModelList
    from pyllama_spec.server.programs import Flag, Plan

# It is run as `python -m` this.
_PROGRAM = "pyllama_spec.llama_cpp.server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What their server has and Llama() has not: each is translated below."""

    model: str = ""
    model_alias: str | None = None
    host: str = "localhost"
    port: int = 8000
    api_key: str | None = None
    ssl_keyfile: Path | None = None
    ssl_certfile: Path | None = None
    config_file: str | None = None
    cache: bool = False
    cache_type: str = "ram"
    cache_size: int = 2 << 30
    clip_model_path: str | None = None
    draft_model: str | None = None
    draft_model_num_pred_tokens: int | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    # Nothing depends on them here.
    mul_mat_q: bool = True
    logits_all: bool = False
    interrupt_requests: bool = True
    disable_ping_events: bool = False
    root_path: str = ""
    # New here: theirs answers to any Host.
    allowed_hosts: Sequence[str] = option(())


# Llama()'s that their server has too. Other keywords are common words, which other programs may
# use for other things: they are no variables of the environment.
_IN_ENVIRONMENT = frozenset(
    (
        *(name for name in KEYWORDS[: KEYWORDS.index("draft")]),
        *(one for one in options_of(Own) if one != "allowed_hosts"),
        "draft", "n_draft", "n_parallel", "max_waiting", "draft_gpu_layers",
    )
)  # fmt: skip
_OPTIONS: Mapping[str, Option] = {
    **{
        name: one for name, one in options_of(OpenOptions).items()
        if one.in_files and name != "model_path"
    },
    **options_of(Own),
}  # fmt: skip
_REFUSED = {
    "hf_tokenizer_config_path": "give the template itself, as chat_template",
    "hf_pretrained_model_name_or_path": "the vocabulary of the model's file is used; leave it out",
    "hf_model_repo_id": "download the model, and give its file as model",
}
# What the log calls settings of the server, and keywords of Llama().
_NAMES = {
    "max_body_bytes": "", "embedding": "--embedding true",
    "tls_cert": "--ssl_certfile", "tls_key": "--ssl_keyfile", "api_keys": "--api_key",
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "host": "localhost", "port": 8000, "n_ctx": 2048, "cache_size": 2 << 30,
    "n_parallel": 4, "max_waiting": 64, "verbose": False,
}  # fmt: skip


def _flags() -> list[Flag]:
    from pyllama_spec.server.programs import Flag

    refused = [Option(name=name, kind="str") for name in _REFUSED]
    return [
        Flag(
            (f"--{one.name}",), one, one.name.upper() * (one.name in _IN_ENVIRONMENT),
            takes_many=one.kind.startswith(("Sequence", "Mapping[str, Override]")),
        )
        for one in (*_OPTIONS.values(), *refused)
    ]  # fmt: skip


def plan(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plan:
    """Merges the options of command line, file and environment, in this priority.

    HOST and PORT of the environment count before the file, as with llama-cpp-python.
    Of several models one is loaded at a time, as with llama-cpp-python, and the first one answers
    to names that there are not.
    """
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs
    from pyllama_spec.server.programs import Plan, named, read, settings_of

    given, around = (one.values for one in read(arguments, environment, _flags()))
    _refuse({**around, **given})
    path = given.get("config_file") or around.get("config_file")
    filed = _file(path) if path else [{}]
    address: dict[str, Any] = {name: around[name] for name in ("host", "port") if name in around}
    each = [_merged(around, one, address, given) for one in filed]
    values, keywords = each[0], [_keywords(one) for one in each]
    names = {name: f"--{name}" for name in _OPTIONS} | _NAMES
    with named(names):
        settings, listening, notes = settings_of(
            {
                "host": values["host"], "port": values["port"],
                "allowed_hosts": values.get("allowed_hosts"),
                "aliases": [one for one in (values.get("model_alias"),) if one],
                "api_keys": [one for one in (values.get("api_key"),) if one],
                "tls_cert": _path(values.get("ssl_certfile")),
                "tls_key": _path(values.get("ssl_keyfile")),
            },
            names, (), chat_defaults={} if len(each) > 1 else _chat_defaults(values),
        )  # fmt: skip
    models = _models(each, keywords) if len(each) > 1 else None
    return Plan(
        keywords=keywords[0], settings=settings, listening=listening, models=models, notes=notes,
        names=names,
    )  # fmt: skip


def _path(text: str | Path | None) -> Path | None:
    return Path(text) if text else None


def _merged(*places: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the options of a model; later sources override earlier ones."""
    values = dict(_DEFAULTS)
    for one in places:
        values |= _with_our_names(one)
    if not values.get("model"):
        raise ArgumentError(
            "model", problem="is missing", remedy="give --model FILE.gguf, or MODEL=FILE.gguf"
        )
    return values


def _keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of Llama()."""
    own = options_of(Own)
    keywords = {name: values[name] for name in KEYWORDS if name in values and name not in own}
    for name in ("n_threads", "n_threads_batch"):
        if keywords.get(name) == -1:
            keywords[name] = os.cpu_count()
    if values.get("cache"):
        if values.get("cache_type", "ram") != "ram":
            raise UnsupportedError("cache_type='disk': prompts are kept in memory; leave it out")
        keywords["prefix_cache_bytes"] = values["cache_size"]
    if isinstance(overrides := keywords.get("kv_overrides"), list):  # of a file
        keywords["kv_overrides"] = typed_values(",".join(overrides))
    return {**keywords, "model_path": values["model"]}


def _chat_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    chats = values.get("chat_template_kwargs")
    return {"chat_template_kwargs": chats} if chats else {}


def _models(each: Sequence[Mapping[str, Any]], keywords: Sequence[dict[str, Any]]) -> ModelList:
    from pyllama_spec.server import ModelList, ModelSpec

    specs = tuple(
        ModelSpec(
            name=values.get("model_alias") or values["model"], keywords=of_llama,
            chat_defaults=_chat_defaults(values), is_preloaded=values is each[0],
        )
        for values, of_llama in zip(each, keywords, strict=True)
    )  # fmt: skip
    return ModelList(specs=specs, default=specs[0].name, max_loaded=1, takes_any_name=True)


def _file(path: str) -> list[dict[str, Any]]:
    """The options of each model in a file, whose values already have types."""
    if not path.endswith(".json"):
        raise UnsupportedError(f"config_file={path!r:.200}: write it as .json")
    try:
        whole = json_value(read_plain(Path(path)))
    except (OSError, ValueError) as error:
        raise ArgumentError("config_file", Path(path), problem=f"cannot be read: {error}") from None
    models = whole.get("models") if isinstance(whole, dict) else None
    if not models or not isinstance(models, list) or not all(isinstance(m, dict) for m in models):
        raise ArgumentError("config_file", Path(path), "a list of models, of one at least")
    of_all = {name: value for name, value in whole.items() if name != "models"}
    return [_checked({**of_all, **one}, path) for one in models]


def _checked(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The options of a model that have a value, checked."""
    given = {name: value for name, value in settings.items() if value is not None}
    _refuse(given, f" in {path}")
    for name in settings:
        if name not in _OPTIONS and name not in _REFUSED:
            raise ArgumentError(
                "config_file", Path(path), problem=f"has the unknown option {name}",
                remedy="--help lists the options",
            )  # fmt: skip
    return given


def _refuse(given: Mapping[str, Any], place: str = "") -> None:
    for name, why in _REFUSED.items():
        if name in given:
            raise UnsupportedError(f"{name}{place}: {why}")


def _with_our_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one source under our names; their names have priority over other sources."""
    named = dict(given)
    if draft := named.get("draft_model"):
        named.setdefault("draft", "prompt-lookup" if draft == "prompt-lookup-decoding" else draft)
    if "draft_model_num_pred_tokens" in named:
        named.setdefault("n_draft", named["draft_model_num_pred_tokens"])
    if clip := named.get("clip_model_path"):
        from pyllama_spec.llama_cpp.llama_chat_format import PICTURE_FORMATS

        named.setdefault("mmproj_path", clip)
        name = named.get("chat_format", "")
        named["chat_format"] = PICTURE_FORMATS.get(name, name) or None
    return named


def _help() -> list[str]:
    lines = (f"  --{name}" for name in sorted(_OPTIONS))
    return ["Each as --name VALUE, or as NAME in the environment:", "", *lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it."""
    from pyllama_spec.server.programs import run

    return run(_PROGRAM, arguments, plan, _help)


if __name__ == "__main__":
    raise SystemExit(main())
