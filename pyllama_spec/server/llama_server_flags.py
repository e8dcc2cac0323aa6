"""The flags of llama-server: a table of those that are taken, those without effect, and a parser.

All other flags are refused by their names, all together, before anything is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyllama_spec.errors import ArgumentError
from pyllama_spec.files import read_text

Read = Callable[[str], Any]
_TRUE = ("1", "on", "true", "yes", "enabled")
_FALSE = ("0", "off", "false", "no", "disabled")


class Flag(NamedTuple):
    """A flag that sets a keyword of Llama(), an option of requests, or one of the server.

    `read` converts its value; None for a switch, which sets `value`. The variable applies where no
    flag sets the field.
    """

    names: tuple[str, ...]
    field: str
    read: Read | None
    variable: str
    value: Any


class Wanted(NamedTuple):
    """What a command line says: values by field, which flag gave each, and flags without effect."""

    values: dict[str, Any]
    given_by: dict[str, str]
    idle: list[str]


def _layers(text: str) -> int:
    return -1 if text in ("auto", "all") else int(text)


def _attention(text: str) -> bool | None:
    return None if text == "auto" else _switch(text)


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ArgumentError(f"{text!r:.60} is neither on nor off")


def _list(text: str) -> list[str]:
    return [one for one in (part.strip() for part in text.split(",")) if one]


def _shares(text: str) -> list[float]:
    return [float(one) for one in _list(text.replace("/", ","))]


def _file(text: str) -> str:
    return read_text(Path(text), "the file")


def _json_file(text: str) -> Any:
    return json.loads(_file(text))


def _overrides(text: str) -> list[tuple[str, Any]]:
    return [_override(one) for one in _list(text)]


def _override(text: str) -> tuple[str, Any]:
    key, _, typed = text.partition("=")
    kind, _, value = typed.partition(":")
    kinds: dict[str, Read] = {"int": int, "float": float, "bool": _switch, "str": str}
    if not typed or kind not in kinds:
        raise ArgumentError(
            f"{text!r:.80}: KEY=TYPE:VALUE is expected, of type int, float, bool or str"
        )
    return key, kinds[kind](value)


def _scaled(text: str) -> list[tuple[str, float]]:
    path, _, scale = text.rpartition(":")
    return [(path, float(scale))]


def _unscaled(text: str) -> list[tuple[str, float]]:
    return [(path, 1.0) for path in _list(text)]


def _named(
    names: str, field: str, read: Read | None = None, variable: str = "", *, value: Any = True
) -> Flag:
    return Flag(tuple(names.split()), field, read, f"LLAMA_{variable}" if variable else "", value)


FLAGS: tuple[Flag, ...] = (
    # The model, and its draft.
    _named("-m --model", "model_path", str, "ARG_MODEL"),
    _named("-a --alias", "aliases", _list, "ARG_ALIAS"),
    _named("-md --model-draft --spec-draft-model", "draft", str, "ARG_SPEC_DRAFT_MODEL"),
    _named("--spec-type", "spec_types", _list, "ARG_SPEC_TYPE"),
    _named("--spec-draft-n-max --draft --draft-n --draft-max", "n_draft", int,
           "ARG_SPEC_DRAFT_N_MAX"),
    _named("--spec-draft-p-min --draft-p-min", "p_min", float, "ARG_SPEC_DRAFT_P_MIN"),
    _named("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft", "draft_gpu_layers",
           _layers, "ARG_N_GPU_LAYERS_DRAFT"),
    _named("--lora", "adapters", _unscaled),
    _named("--lora-scaled", "adapters", _scaled),
    # Where it lies, and how it is computed.
    _named("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", _layers, "ARG_N_GPU_LAYERS"),
    _named("-dev --device", "devices", _list, "ARG_DEVICE"),
    _named("-sm --split-mode", "split_mode", str, "ARG_SPLIT_MODE"),
    _named("-ts --tensor-split", "tensor_split", _shares, "ARG_TENSOR_SPLIT"),
    _named("-mg --main-gpu", "main_gpu", int, "ARG_MAIN_GPU"),
    _named("--rpc", "rpc_servers", _list, "ARG_RPC"),
    _named("-t --threads", "n_threads", int, "ARG_THREADS"),
    _named("-tb --threads-batch", "n_threads_batch", int),
    _named("-b --batch-size", "n_batch", int, "ARG_BATCH"),
    _named("-ub --ubatch-size", "n_ubatch", int, "ARG_UBATCH"),
    _named("-fa --flash-attn", "flash_attn", _attention, "ARG_FLASH_ATTN"),
    _named("-ctk --cache-type-k", "type_k", str, "ARG_CACHE_TYPE_K"),
    _named("-ctv --cache-type-v", "type_v", str, "ARG_CACHE_TYPE_V"),
    _named("--kv-offload -kvo", "offload_kqv", None, "ARG_KV_OFFLOAD"),
    _named("--no-kv-offload -nkvo", "offload_kqv", None, "ARG_NO_KV_OFFLOAD", value=False),
    _named("--op-offload", "op_offload"),
    _named("--no-op-offload", "op_offload", value=False),
    _named("--swa-full", "swa_full", None, "ARG_SWA_FULL"),
    _named("--mlock", "use_mlock"),
    _named("--mmap", "use_mmap"),
    _named("--no-mmap", "use_mmap", value=False),
    _named("-lm --load-mode", "load_mode", str, "ARG_LOAD_MODE"),
    _named("--override-kv", "kv_overrides", _overrides),
    _named("--rope-scaling", "rope_scaling_type", str, "ARG_ROPE_SCALING_TYPE"),
    _named("--rope-scale", "rope_scale", float, "ARG_ROPE_SCALE"),
    _named("--rope-freq-base", "rope_freq_base", float, "ARG_ROPE_FREQ_BASE"),
    _named("--rope-freq-scale", "rope_freq_scale", float, "ARG_ROPE_FREQ_SCALE"),
    _named("--yarn-orig-ctx", "yarn_orig_ctx", int, "ARG_YARN_ORIG_CTX"),
    _named("--yarn-ext-factor", "yarn_ext_factor", float, "ARG_YARN_EXT_FACTOR"),
    _named("--yarn-attn-factor", "yarn_attn_factor", float, "ARG_YARN_ATTN_FACTOR"),
    _named("--yarn-beta-slow", "yarn_beta_slow", float, "ARG_YARN_BETA_SLOW"),
    _named("--yarn-beta-fast", "yarn_beta_fast", float, "ARG_YARN_BETA_FAST"),
    # Requests side by side, and what is kept of them.
    _named("-c --ctx-size", "n_ctx", int, "ARG_CTX_SIZE"),
    _named("-np --parallel", "n_parallel", int, "ARG_N_PARALLEL"),
    _named("-kvu --kv-unified", "kv_unified", None, "ARG_KV_UNIFIED"),
    _named("-no-kvu --no-kv-unified", "kv_unified", None, "ARG_NO_KV_UNIFIED", value=False),
    _named("-cram --cache-ram", "cache_mib", int, "ARG_CACHE_RAM"),
    _named("--context-shift", "context_shift", None, "ARG_CONTEXT_SHIFT"),
    _named("--no-context-shift", "context_shift", None, "ARG_NO_CONTEXT_SHIFT", value=False),
    _named("--keep", "n_keep", int),
    # What an answer is where a request does not say.
    _named("-n --predict --n-predict", "max_tokens", int, "ARG_N_PREDICT"),
    _named("-s --seed", "seed", int),
    _named("--temp --temperature", "temperature", float, "ARG_TEMPERATURE"),
    _named("--top-k", "top_k", int, "ARG_TOP_K"),
    _named("--top-p", "top_p", float, "ARG_TOP_P"),
    _named("--min-p", "min_p", float, "ARG_MIN_P"),
    _named("--typical --typical-p", "typical_p", float),
    _named("--top-nsigma --top-n-sigma", "top_n_sigma", float),
    _named("--xtc-probability", "xtc_probability", float),
    _named("--xtc-threshold", "xtc_threshold", float),
    _named("--repeat-last-n", "penalty_last_n", int),
    _named("--repeat-penalty", "repeat_penalty", float, "ARG_REPEAT_PENALTY"),
    _named("--presence-penalty", "presence_penalty", float, "ARG_PRESENCE_PENALTY"),
    _named("--frequency-penalty", "frequency_penalty", float, "ARG_FREQUENCY_PENALTY"),
    _named("--dry-multiplier", "dry_multiplier", float),
    _named("--dry-base", "dry_base", float),
    _named("--dry-allowed-length", "dry_allowed_length", int),
    _named("--dry-penalty-last-n", "dry_penalty_last_n", int),
    _named("--mirostat", "mirostat_mode", int),
    _named("--mirostat-lr", "mirostat_eta", float),
    _named("--mirostat-ent", "mirostat_tau", float),
    _named("--ignore-eos", "ignore_eos"),
    _named("-r --reverse-prompt", "stop", lambda text: [text]),
    _named("-e --escape", "escape"),
    _named("--no-escape", "escape", value=False),
    _named("--grammar", "grammar", str),
    _named("--grammar-file", "grammar", _file),
    _named("-j --json-schema", "json_schema", json.loads),
    _named("-jf --json-schema-file", "json_schema", _json_file),
    # Chats.
    _named("--chat-template", "chat_template", str, "ARG_CHAT_TEMPLATE"),
    _named("--chat-template-file", "chat_template_text", _file, "ARG_CHAT_TEMPLATE_FILE"),
    _named("--chat-template-kwargs", "chat_template_kwargs", json.loads,
           "ARG_CHAT_TEMPLATE_KWARGS"),
    _named("--reasoning-format", "reasoning_format", str, "ARG_THINK"),
    _named("-rea --reasoning", "reasoning", str, "ARG_REASONING"),
    _named("--reasoning-effort", "reasoning_effort", str, "ARG_REASONING_EFFORT"),
    _named("--reasoning-budget", "reasoning_budget", int, "ARG_THINK_BUDGET"),
    _named("--spm-infill", "spm_infill"),
    _named("--embedding --embeddings", "embedding", None, "ARG_EMBEDDINGS"),
    _named("--rerank --reranking", "rerank", None, "ARG_RERANKING"),
    _named("--pooling", "pooling_type", str, "ARG_POOLING"),
    # The server.
    _named("--host", "host", str, "ARG_HOST"),
    _named("--port", "port", int, "ARG_PORT"),
    _named("--api-key", "api_keys", _list, "API_KEY"),
    _named("--api-key-file", "api_key_file", str, "ARG_API_KEY_FILE"),
    _named("--ssl-key-file", "tls_key", Path, "ARG_SSL_KEY_FILE"),
    _named("--ssl-cert-file", "tls_cert", Path, "ARG_SSL_CERT_FILE"),
    _named("--cors-origins", "cors_origins", _list, "ARG_CORS_ORIGINS"),
    # Not llama-server's: it answers to any Host.
    _named("--allowed-hosts", "allowed_hosts", _list),
    _named("-to --timeout", "send_timeout_s", float, "ARG_TIMEOUT"),
    _named("--sse-ping-interval", "ping_s", float, "ARG_SSE_PING_INTERVAL"),
    _named("--metrics", "has_metrics", None, "ARG_ENDPOINT_METRICS"),
    _named("--slots", "has_slots", None, "ARG_ENDPOINT_SLOTS"),
    _named("--no-slots", "has_slots", None, "ARG_NO_ENDPOINT_SLOTS", value=False),
    _named("--ui --webui", "has_page", None, "ARG_UI"),
    _named("--no-ui --no-webui", "has_page", None, "ARG_NO_UI", value=False),
    _named("-v --verbose --log-verbose", "verbose"),
    _named("--log-disable", "is_silent"),
    _named("--log-file", "log_file", Path, "ARG_LOG_FILE"),
    _named("-lv --verbosity --log-verbosity", "verbosity", int, "ARG_LOG_VERBOSITY"),
)  # fmt: skip


# What changes nothing here; a name with * stands for all that begin so.
_IDLE = """
    --jinja --no-jinja -cb --cont-batching --props --offline --perf --no-perf --warmup --no-warmup
    --no-mmproj --no-mmproj-auto --mmproj-auto --no-agent -no-ag --no-ui-mcp-proxy
    --no-webui-mcp-proxy --models-autoload --no-models-autoload --cache-prompt
    --no-skip-chat-parsing --prefill-assistant --no-prefill-assistant --backend-sampling -bs
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
    --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix --log-timestamps
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
BY_NAME: Mapping[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}
# Of chats alone; all else of a request is RequestOptions'.
OF_CHATS = ("reasoning_format", "reasoning_effort", "chat_template_kwargs")
# Flags of lists, each of which appends.
_ADDED = frozenset(("adapters", "kv_overrides", "spec_types", "stop"))


def spelt(word: str) -> str:
    """A flag in its listed spelling: llama-server reads --ctx_size as --ctx-size."""
    return word.replace("_", "-") if word.startswith("--") else word


def is_idle(word: str) -> bool:
    """Whether a flag changes nothing here."""
    return word in IDLE or word.startswith(_IDLE_BEGINNINGS)


def is_flag(word: str) -> bool:
    """Whether this is a flag of llama-server that is accepted here."""
    return spelt(word) in BY_NAME or is_idle(spelt(word))


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Wanted:
    """Parses a command line and the environment."""
    wanted = Wanted({}, {}, [])
    wrong, refused = list[str](), list[str]()
    left = list(arguments)[::-1]
    while left:
        given = left.pop()
        word = spelt(given)
        if word in BY_NAME:
            try:
                _take(word, left, wanted)
            except ArgumentError as error:
                wrong.append(str(error))
            continue
        (wanted.idle if is_idle(word) else refused).append(given)
        while left and (not left[-1].startswith("-") or left[-1][1:2].isdigit()):
            left.pop()  # its values
    wrong += _take_variables(environment, wanted)
    if refused:
        wrong.append(f"not supported here: {' '.join(refused)}; --help lists the flags that are")
    if wrong:
        raise ArgumentError("; ".join(wrong))
    return wanted


def _take_variables(environment: Mapping[str, str], wanted: Wanted) -> list[str]:
    """Reads the variables of flags that are not given; returns faults in their values."""
    wrong = list[str]()
    # The order of llama-server: the variable that switches something off is read first.
    for flag in sorted(FLAGS, key=lambda one: one.value is not False):
        if flag.variable not in environment or flag.field in wanted.values:
            continue
        wanted.given_by[flag.field] = flag.variable
        try:
            wanted.values[flag.field] = flag.value is not False and _read(
                flag.read or _switch, environment[flag.variable], flag.variable
            )
        except ArgumentError as error:
            wrong.append(str(error))
    return wrong


def _take(word: str, left: list[str], wanted: Wanted) -> None:
    """Parses one flag, whose value is the next of the remaining words."""
    flag, values = BY_NAME[word], wanted.values
    wanted.given_by[flag.field] = word
    value = flag.value
    if flag.read is not None:
        if not left:
            raise ArgumentError(f"{word} has no value")
        value = _read(flag.read, left.pop(), word)
    is_added = flag.field in _ADDED and flag.field in values
    values[flag.field] = [*values[flag.field], *value] if is_added else value


def _read(how: Read, text: str, name: str) -> Any:
    try:
        return how(text)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None
    except ValueError as error:  # of int(), float() and JSON
        raise ArgumentError(f"{name}: {text!r:.60} cannot be read: {error}") from None
