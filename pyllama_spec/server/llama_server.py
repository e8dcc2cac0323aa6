"""The server under llama-server's flags: `python -m pyllama_spec.server.llama_server -m ...`.

Command lines run as they stand: flags without effect here are named on stderr, and unsupported ones
are an error, all together, before anything is opened.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyllama_spec.engine.checks import instance, one_of
from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_text
from pyllama_spec.llama.open_options import KEYWORDS, OpenOptions
from pyllama_spec.options import json_value, names_of, option, options_of
from pyllama_spec.requests.options import OF_CHATS, RequestOptions
from pyllama_spec.server.programs import Plan, flags_of, named, read, run, settings_of
from pyllama_spec.server.settings import ServerSettings

_PROGRAM = "pyllama-spec-llama-server"
_N_PARALLEL, _N_CTX, _MAX_WAITING = 4, 4096, 64
_TEMPLATES = {"llama2": "llama-2", "llama3": "llama-3"}
_DRAFTS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")


def _file(text: str) -> str:
    return read_text(Path(text), "the file")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What llama-server has and we have not: each is translated below."""

    model: str = option("", server="-m --model", variable="ARG_MODEL")
    aliases: Sequence[str] = option((), server="-a --alias", variable="ARG_ALIAS")
    spec_types: Sequence[str] = option(
        (), server="--spec-type", variable="ARG_SPEC_TYPE", is_repeated=True
    )
    adapters: Sequence[str] = option((), server="--lora", is_repeated=True)
    mmproj_auto: bool = option(
        False, server="--mmproj-auto", variable="ARG_MMPROJ_AUTO",
        server_off="--no-mmproj --no-mmproj-auto", variable_off="ARG_NO_MMPROJ_AUTO",
    )
    kv_unified: bool = option(
        False, server="-kvu --kv-unified", variable="ARG_KV_UNIFIED",
        server_off="-no-kvu --no-kv-unified", variable_off="ARG_NO_KV_UNIFIED",
    )
    cache_mib: int = option(-1, server="-cram --cache-ram", variable="ARG_CACHE_RAM")
    escape: bool = option(True, server="-e --escape", server_off="--no-escape")
    chat_template_file: str = option(
        "", server="--chat-template-file", variable="ARG_CHAT_TEMPLATE_FILE", read=_file
    )
    chat_template_kwargs: Any = option(
        None, server="--chat-template-kwargs", variable="ARG_CHAT_TEMPLATE_KWARGS",
        read=json_value,
    )
    reasoning_format: str = option(
        "auto", server="--reasoning-format", variable="ARG_THINK",
        choices=("auto", "none", "deepseek"),
    )
    reasoning: str = option(
        "auto", server="-rea --reasoning", variable="ARG_REASONING", choices=("on", "off", "auto")
    )
    reasoning_budget: int = option(-1, server="--reasoning-budget", variable="ARG_THINK_BUDGET")
    rerank: bool = option(False, server="--rerank --reranking", variable="ARG_RERANKING")
    host: str = option("127.0.0.1", server="--host", variable="ARG_HOST")
    port: int = option(8080, server="--port", variable="ARG_PORT")
    api_keys: Sequence[str] = option((), server="--api-key", variable="API_KEY")
    api_key_file: str = option("", server="--api-key-file", variable="ARG_API_KEY_FILE")
    tls_key: Path | None = option(
        None, server="--ssl-key-file", variable="ARG_SSL_KEY_FILE"
    )
    tls_cert: Path | None = option(
        None, server="--ssl-cert-file", variable="ARG_SSL_CERT_FILE"
    )
    cors_origins: Sequence[str] = option(
        (), server="--cors-origins", variable="ARG_CORS_ORIGINS"
    )
    # Not llama-server's: it answers to any Host.
    allowed_hosts: Sequence[str] = option((), server="--allowed-hosts")
    is_silent: bool = option(False, server="--log-disable")
    log_file: Path | None = option(None, server="--log-file", variable="ARG_LOG_FILE")
    verbosity: int = option(
        3, server="-lv --verbosity --log-verbosity", variable="ARG_LOG_VERBOSITY"
    )
# fmt: on


_TABLES = (OpenOptions, RequestOptions, ServerSettings, Own)
FLAGS = flags_of(*_TABLES)
# What the log calls keywords of Llama(), and settings of the server.
_NAMES = {
    **names_of("server", *_TABLES),
    "embedding": "--embeddings", "max_body_bytes": "",
    "max_waiting": "-np", "model_path": "-m",
}  # fmt: skip
# What changes nothing here; a name with * stands for all that begin so.
_IDLE = """
    --jinja --no-jinja -cb --cont-batching --props --offline --perf --no-perf --warmup --no-warmup
    --no-agent -no-ag --no-ui-mcp-proxy
    --no-webui-mcp-proxy --models-autoload --no-models-autoload --cache-prompt
    --no-skip-chat-parsing --backend-sampling -bs
    --repack --no-repack -nr --no-host --check-tensors --reuse-port -sp --special
    --cors-credentials --no-cors-credentials --cors-methods --cors-headers --cache-idle-slots
    --no-cache-idle-slots --reasoning-preserve --no-reasoning-preserve
    --reasoning-budget-message --spec-default --spec-draft-backend-sampling
    --no-spec-draft-backend-sampling --spec-draft-n-min --draft-min --draft-n-min
    --draft-p-split --spec-draft-p-split --spec-draft-sampling --spec-ngram-* -cmoed
    --cpu-moe-draft -otd --spec-draft-override-tensor --override-tensor-draft -ncmoed
    --spec-draft-ncmoe --spec-draft-n-cpu-moe --n-cpu-moe-draft -ctkd --cache-type-k-draft
    --spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v -td --threads-draft
    --spec-draft-threads* -tbd --threads-batch-draft -devd --device-draft --spec-draft-device
    --log-prefix --no-log-prefix --log-timestamps
    --no-log-timestamps --log-colors --log-prompts-dir --cpu-mask* -C --cpu-range* -Cr
    --cpu-strict* --prio* --poll* -Cb -Crb -Cd -Crd -Cbd --spec-draft-cpu-* --spec-draft-prio*
    --spec-draft-poll* --numa -lzm --lazy-mode --moe-cache-mib --cache-reuse -ctxcp
    --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -sps
    --slot-prompt-similarity -fit --fit -fitt --fit-target -fitc --fit-ctx -hft --hf-token
    --sleep-idle-seconds --embd-normalize -lcs -lcd --lookup-cache-* --threads-http -dt
    --defrag-thold --kv-unified-per-slot --tags --ui-config* --webui-config*
"""
IDLE = frozenset(_IDLE.split())
_IDLE_BEGINNINGS = tuple(name[:-1] for name in IDLE if name.endswith("*"))


def is_idle(word: str) -> bool:
    """Whether a flag changes nothing here."""
    return word in IDLE or word.startswith(_IDLE_BEGINNINGS)


def plan(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Plan:
    """Converts a command line, without the program's name, and LLAMA_... variables to settings."""
    from pyllama_spec.server import serve  # noqa: F401 - says how to get what it needs

    given, around = read(arguments, environment, FLAGS, is_idle)
    values = {"host": "127.0.0.1", "port": 8080, "has_slots": True, "has_metrics": False,
              "continues_last": True, **around.values, **given.values}  # fmt: skip
    names = {**_NAMES, **around.names, **given.names}
    with named(names):
        notes = [f"without effect here: {' '.join(given.idle)}"] if given.idle else []
        if "--api-key" in arguments:
            notes.append("--api-key is seen by all who list processes; --api-key-file is not")
        if not values.get("model"):
            raise ArgumentError("model_path", problem="is missing", remedy="give -m FILE.gguf")
        for one in options_of(Own).values():
            if one.choices and one.name in values:
                one_of(values[one.name], one.choices, one.name)
        settings, listening, more = settings_of(
            values, _NAMES, [one.name for one in options_of(ServerSettings).values() if one.server],
            defaults=_of_requests(values), chat_defaults=_of_chats(values), is_greedy_below_0=True,
        )  # fmt: skip
        verbosity = 2 if values.get("is_silent") else values.get("verbosity", 3)
        quiet = logging.ERROR if verbosity < 2 else logging.WARNING
        return Plan(
            keywords=_keywords(values, notes), adapters=values.get("adapters", ()),
            settings=settings, listening=listening, notes=[*notes, *more],
            log_file=values.get("log_file"), names=names,
            log_level=logging.INFO if verbosity > 2 else quiet,
        )  # fmt: skip


def _keywords(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The keywords of Llama()."""
    keywords = {name: values[name] for name in KEYWORDS if name in values and name != "seed"}
    keywords |= {"model_path": values["model"], "max_waiting": _MAX_WAITING}
    # llama-server divides a context among its slots, unless it is shared.
    n_ctx, n_parallel = values.get("n_ctx"), values.get("n_parallel", -1)
    n = _N_PARALLEL if n_parallel == -1 else n_parallel
    if n_ctx is None:
        n_ctx = _N_CTX
        notes.append(f"each request may have {n_ctx} tokens; -c says otherwise")
    elif n_ctx and n_parallel > 1 and not values.get("kv_unified"):
        n_ctx = max(1, n_ctx // n)
    keywords |= {"draft": _draft(values), "n_ctx": n_ctx, "n_parallel": n}
    if (auto := values.get("mmproj_auto")) is not None:
        keywords["mmproj_path"] = keywords.get("mmproj_path", "auto") if auto else None
    if (mib := values.get("cache_mib", -1)) >= 0:
        keywords["prefix_cache_bytes"] = mib << 20
    if values.get("rerank"):
        keywords |= {"embedding": True, "pooling_type": "rank"}
    text, name = values.get("chat_template_file"), keywords.pop("chat_template", None)
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
        raise ArgumentError(
            "spec_type", kinds[0], problem="needs the file of a draft", remedy="give -md FILE.gguf"
        )
    return "prompt-lookup" if types and types != ["none"] else None


def _of_requests(values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of requests, each checked now, so that not every request is refused for it."""
    known = {one.name for one in options_of(RequestOptions).values() if one.server}
    given = {name: value for name, value in values.items() if name in known - {*OF_CHATS}}
    if given.get("seed") == -1:
        del given["seed"]
    if "stop" in given and values.get("escape", True):
        given["stop"] = [_unescaped(one) for one in given["stop"]]
    # With context_shift a request says where its text ends.
    RequestOptions.from_keywords({**given, "context_shift": None})
    return {"temperature": 0.8, "max_tokens": -1, **given}


def _unescaped(text: str) -> str:
    r"""A text of -r with escapes, such as \n and \xHH, a byte."""
    try:
        return codecs.escape_decode(text.encode())[0].decode()
    except ValueError:
        raise ArgumentError("stop", text, r"UTF-8, with \xHH for a byte") from None


def _of_chats(values: Mapping[str, Any]) -> dict[str, Any]:
    chats: dict[str, Any] = {"reasoning_format": "auto"}
    for name in ("reasoning_format", "reasoning_effort", "chat_template_kwargs"):
        if name in values:
            chats[name] = values[name]
    RequestOptions(reasoning_effort=chats.get("reasoning_effort"))
    instance(chats.get("chat_template_kwargs", {}), dict, "chat_template_kwargs")
    budget = values.get("reasoning_budget", -1)
    if values.get("reasoning") == "off" or budget == 0:
        chats["reasoning_effort"] = "none"
    elif budget > 0:
        chats["thinking_token_budget"] = budget
    return chats


def _help() -> list[str]:
    lines = ["Flags of llama-server that are taken, and --allowed-hosts:", ""]
    for flag in FLAGS:
        value = "" if flag.value is not None else " VALUE"
        variable = f"  [{flag.variable}]" if flag.variable else ""
        lines.append(f"  {', '.join(flag.names)}{value}{variable}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal ends it."""
    return run(_PROGRAM, arguments, plan, _help)


if __name__ == "__main__":
    raise SystemExit(main())
