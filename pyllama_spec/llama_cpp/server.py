"""`python -m pyllama_spec.llama_cpp.server`: llama-cpp-python's server options, and ours.

An option is --name VALUE or the environment variable NAME; --config_file or CONFIG_FILE names a
JSON file of the same names, with the model's under "models". What the command line says counts
before the file, and that before the environment, but for HOST and PORT of it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllama_spec.errors import ArgumentError, PyllamaSpecError, UnsupportedError
from pyllama_spec.files import check_no_pipe

if TYPE_CHECKING:
    from pyllama_spec.server import ModelList, ServerSettings
    from pyllama_spec.server.process import Listening

_TRUE, _FALSE = ("1", "on", "t", "true", "y", "yes"), ("0", "off", "f", "false", "n", "no")


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("expected true or false")


def _dict(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("expected an object of JSON")  # noqa: TRY004 - told as the others are
    return value


def _numa(text: str) -> bool | int:
    return int(text) if text.strip().isdigit() and text.strip() not in "01" else _flag(text)


def _many(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parses a list, given as JSON or separated by commas."""

    def values(text: str) -> list[Any]:
        if text.lstrip().startswith("["):
            parts: list[Any] = json.loads(text)
        else:
            parts = [one.strip() for one in text.split(",") if one.strip()]
        return [read(str(one)) for one in parts]

    return values


# Theirs, by what Llama() calls them as well.
_OF_LLAMA: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("n_gpu_layers", "split_mode", "main_gpu", "seed", "n_ctx", "n_batch",
                     "n_ubatch", "n_threads", "n_threads_batch", "rope_scaling_type",
                     "yarn_orig_ctx", "last_n_tokens_size", "type_k", "type_v"), int),
    **dict.fromkeys(("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor",
                     "yarn_beta_fast", "yarn_beta_slow"), float),
    **dict.fromkeys(("vocab_only", "use_mmap", "use_mlock", "embedding", "offload_kqv",
                     "flash_attn", "verbose"), _flag),
    **dict.fromkeys(("lora_base", "lora_path", "chat_format"), str),
    "tensor_split": _many(float), "rpc_servers": _many(str), "numa": _numa,
    # What is new here.
    **dict.fromkeys(("draft", "controller", "acceptance", "chat_template"), str),
    **dict.fromkeys(("n_draft", "lookup", "n_parallel", "max_waiting", "draft_gpu_layers"), int),
    "p_min": float, "devices": _many(str),
}  # fmt: skip
_OTHERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("model", "model_alias", "host", "api_key", "ssl_keyfile", "ssl_certfile",
                     "cache_type", "draft_model", "config_file"), str),
    **dict.fromkeys(("port", "cache_size", "draft_model_num_pred_tokens"), int),
    "cache": _flag, "kv_overrides": _many(str), "chat_template_kwargs": _dict,
    # Nothing depends on them here.
    **dict.fromkeys(("mul_mat_q", "logits_all", "interrupt_requests", "disable_ping_events"),
                    _flag),
    "root_path": str,
    # New here: theirs answers to any Host.
    "allowed_hosts": _many(str),
}  # fmt: skip
_OPTIONS = {**_OF_LLAMA, **_OTHERS}
# Each may be given as several words.
_LISTS = ("tensor_split", "rpc_servers", "devices", "kv_overrides", "allowed_hosts")
# Options that are new here, and common words: other programs may use them for other things.
_NOT_IN_ENVIRONMENT = (
    "controller", "acceptance", "chat_template", "lookup", "devices", "p_min", "allowed_hosts",
)  # fmt: skip
_REFUSED = {
    "clip_model_path": "models see no images here; leave it out",
    "hf_tokenizer_config_path": "give the template itself, as chat_template",
    "hf_pretrained_model_name_or_path": "the vocabulary of the model's file is used; leave it out",
    "hf_model_repo_id": "download the model, and give its file as model",
}
# It is run as `python -m` this.
_PROGRAM = "pyllama_spec.llama_cpp.server"
_DEFAULTS: Mapping[str, Any] = {
    "host": "localhost", "port": 8000, "n_ctx": 2048, "cache_size": 2 << 30,
    "n_parallel": 4, "max_waiting": 64, "verbose": False,
}  # fmt: skip

# The server's options in messages, for keywords of Llama().
_TOLD = {"embedding": "--embedding true", "n_ctx": "--n_ctx", "n_batch": "--n_batch",
         "max_waiting": "--max_waiting", "max_body_bytes": ""}  # fmt: skip


class Plan(NamedTuple):
    """The parsed options; the keywords are those of the first model.

    Of several models one is loaded at a time, as with llama-cpp-python, and the first one answers
    to names that there are not.
    """

    keywords: dict[str, Any]
    settings: ServerSettings
    listening: Listening
    models: ModelList | None = None


def plan(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plan:
    """Merges the options of command line, file and environment, in this priority.

    HOST and PORT of the environment count before the file, as with llama-cpp-python.
    """
    from pyllama_spec.server import (
        ServerSettings,
        serve,  # noqa: F401 - its import says which package of the extra is missing
    )
    from pyllama_spec.server.process import Listening
    from pyllama_spec.server.settings import hosts_for

    around, given = _environment(environment), _arguments(arguments)
    path = given.get("config_file") or around.get("config_file")
    filed = _file(path) if path else [{}]
    address: dict[str, Any] = {name: around[name] for name in ("host", "port") if name in around}
    each = [_merged(around, one, address, given) for one in filed]
    values, keywords = each[0], [_keywords(one) for one in each]
    certificate, key = values.get("ssl_certfile"), values.get("ssl_keyfile")
    if (certificate is None) != (key is None):
        raise ArgumentError("ssl_certfile and ssl_keyfile belong together: give both")
    host, is_one = values["host"], len(each) == 1
    settings = ServerSettings(
        alias=values.get("model_alias"),
        api_keys=(values["api_key"],) if values.get("api_key") else (),
        allowed_hosts=hosts_for(host, values.get("allowed_hosts", ())),
        chat_defaults=_chat_defaults(values) if is_one else {},
        flags=_TOLD,
    )
    listening = Listening(
        host=host, port=values["port"],
        certificate=Path(certificate) if certificate else None, key=Path(key) if key else None,
    )  # fmt: skip
    models = None if is_one else _models(each, keywords)
    return Plan(keywords[0], settings, listening, models)


def _merged(*places: Mapping[str, Any]) -> dict[str, Any]:
    """Merges the options of a model; later sources override earlier ones."""
    values = dict(_DEFAULTS)
    for one in places:
        values |= _with_our_names(one)
    if not values.get("model"):
        raise ArgumentError("no model is given: --model FILE.gguf, or MODEL=FILE.gguf")
    return values


def _keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    keywords = {name: values[name] for name in _OF_LLAMA if name in values}
    return {**keywords, "model_path": values["model"], **_translated(values)}


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


def _read(name: str, text: str, place: str) -> Any:
    if name in _REFUSED:
        raise UnsupportedError(f"{place}: {_REFUSED[name]}")
    try:
        return _OPTIONS[name](text)
    except (ValueError, AttributeError) as error:
        raise ArgumentError(f"{place}={text!r:.80}: {error}") from None


def _environment(environment: Mapping[str, str]) -> dict[str, Any]:
    settings = {}
    for name in (*_OPTIONS, *_REFUSED):
        text = environment.get(name.upper(), "")
        if text and name not in _NOT_IN_ENVIRONMENT:
            settings[name] = _read(name, text, name.upper())
    return settings


def _arguments(arguments: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    words, unknown = list(arguments), []
    while words:
        flag, is_, text = words.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or (name not in _OPTIONS and name not in _REFUSED):
            unknown.append(flag)
            continue
        texts = [text] if is_ else words[:1]
        words = words if is_ else words[1:]
        while name in _LISTS and words and not words[0].startswith("--"):
            texts.append(words.pop(0))
        if not texts:
            raise ArgumentError(f"{flag} has no value")
        settings[name] = _read(name, ",".join(texts), flag)
    if unknown:
        raise ArgumentError(f"unknown options: {' '.join(unknown)}; --help lists the options")
    return settings


def _file(path: str) -> list[dict[str, Any]]:
    """The options of each model in a file, whose values already have types."""
    if not path.endswith(".json"):
        raise UnsupportedError(f"config_file={path!r:.200}: write it as .json")
    try:
        check_no_pipe(path)
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"config_file={path!r:.200} cannot be read: {error}") from None
    models = whole.get("models") if isinstance(whole, dict) else None
    if not isinstance(models, list) or not all(isinstance(one, dict) for one in models):
        raise ArgumentError(f"config_file={path!r:.200} has no list of models")
    if not models:
        raise ArgumentError(f"config_file={path!r:.200} has no model in its list")
    of_all = {name: value for name, value in whole.items() if name != "models"}
    return [_checked({**of_all, **one}, path) for one in models]


def _checked(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The options of a model that have a value, checked."""
    for name, value in settings.items():
        if name in _REFUSED and value is not None:
            raise UnsupportedError(f"{name} in {path}: {_REFUSED[name]}")
        if name not in _OPTIONS and name not in _REFUSED:
            raise ArgumentError(f"{path}: the option {name} is unknown; --help lists the options")
    return {name: value for name, value in settings.items() if value is not None}


def _with_our_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one source under our names; their names have priority over other sources."""
    named = dict(given)
    if draft := named.get("draft_model"):
        named.setdefault("draft", "prompt-lookup" if draft == "prompt-lookup-decoding" else draft)
    if "draft_model_num_pred_tokens" in named:
        named.setdefault("n_draft", named["draft_model_num_pred_tokens"])
    return named


def _translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Renames options to the keywords of Llama()."""
    keywords: dict[str, Any] = {}
    for name in ("n_threads", "n_threads_batch"):
        if values.get(name) == -1:
            keywords[name] = os.cpu_count()
    if values.get("cache"):
        if values.get("cache_type", "ram") != "ram":
            raise UnsupportedError("cache_type='disk': prompts are kept in memory; leave it out")
        keywords["prefix_cache_bytes"] = values["cache_size"]
    if "kv_overrides" in values:
        keywords["kv_overrides"] = dict(_override(one) for one in values["kv_overrides"])
    return keywords


def _override(text: str) -> tuple[str, Any]:
    key, _, typed = text.partition("=")
    kind, _, value = typed.partition(":")
    try:
        kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": _flag}
        return key, kinds[kind](value)
    except (KeyError, ValueError):
        raise ArgumentError(
            f"kv_overrides={text!r:.80}: KEY=TYPE:VALUE is expected, of type int, float or bool"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if "-h" in given or "--help" in given:
        print("Each as --name VALUE, or as NAME in the environment:\n")  # noqa: T201
        print("\n".join(f"  --{name}" for name in sorted(_OPTIONS)))  # noqa: T201
        return 0
    try:
        meant = plan(given)
    except PyllamaSpecError as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    from pyllama_spec.llama import Llama
    from pyllama_spec.server import serve
    from pyllama_spec.server.process import Hangup

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("pyllama_spec.server").setLevel(logging.INFO)
    try:
        with Hangup():
            if meant.models is not None:
                serve(meant.models, meant.settings, meant.listening, on_start=_say)
            else:
                with Llama(**meant.keywords) as llm:
                    serve(llm, meant.settings, meant.listening, on_start=_say)
    except PyllamaSpecError as error:
        print(f"{_PROGRAM}: error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _say(url: str) -> None:
    print(f"{_PROGRAM}: listening on {url}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
