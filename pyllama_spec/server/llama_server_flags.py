"""The flags of llama-server: a table of how each is handled, and a parser.

A flag is taken, changes nothing here, or is refused with the reason. Unknown ones are reported,
all together, before anything is opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyllama_spec.engine.checks import integer, real
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.files import read_text
from pyllama_spec.llama.open_options import KEYWORDS
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.server.settings import check_origin

Read = Callable[[str], Any]
_TRUE = ("1", "on", "true", "yes", "enabled")
_FALSE = ("0", "off", "false", "no", "disabled")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES: Mapping[bytes, bytes] = {
    b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\",
}  # fmt: skip


class Flag(NamedTuple):
    """A supported flag.

    Attributes:
        names: the names of the flag.
        field: the field of Wanted.values that it sets; of several flags for one, the last applies.
        read: converts its value; None for a switch.
        value: the value that a switch sets.
        variable: its environment variable, which applies if the flag is missing. The variable of a
            flag that switches off applies whatever its value is, and before the one that switches
            on.

    """

    names: tuple[str, ...]
    field: str
    read: Read | None = None
    value: Any = True
    variable: str = ""


class Wanted(NamedTuple):
    """The parsed command line.

    Attributes:
        values: the values by the flags' fields.
        notes: remarks about flags and variables without effect, one line each.
        given_by: for each field, the flag or the environment variable that set it.

    """

    values: dict[str, Any]
    notes: list[str]
    given_by: dict[str, str]


def _whole(text: str) -> int:
    try:
        return integer(int(text), "the value")
    except ValueError:
        raise ArgumentError(f"{text!r:.60} is not a whole number") from None


def _real(text: str) -> float:
    try:
        return real(float(text), "the value")
    except ValueError:
        raise ArgumentError(f"{text!r:.60} is not a number") from None


def _name(text: str) -> str:
    if not text.strip():
        raise ArgumentError("the value is empty: give a name, or leave it out")
    return text


def _path(text: str) -> Path:
    return Path(_name(text))


def _layers(text: str) -> int:
    return -1 if text in ("auto", "all") else _whole(text)


def _attention(text: str) -> bool | None:
    if text == "auto":
        return None
    try:
        return _switch(text)
    except ArgumentError:
        raise ArgumentError(f"{text!r:.60} is not on, off or auto: write one of them") from None


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ArgumentError(f"{text!r:.60} is neither on nor off")


def _list(text: str) -> list[str]:
    return [one for one in (part.strip() for part in text.split(",")) if one]


def _origins(text: str) -> list[str]:
    return [check_origin(one) for one in _list(text)]


def unescaped(text: str) -> str:
    r"""A text of -r with its C escapes replaced.

    llama-server knows \n, \r, \t, \', \", \\ and a byte as \xHH; any other stays as it is.

    Raises:
        ArgumentError: its bytes are not UTF-8.

    """

    def meant(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes([int(match[1], 16)])
        return _ESCAPES.get(match[2], match[0])

    try:
        return _ESCAPE.sub(meant, text.encode()).decode()
    except UnicodeError:
        raise ArgumentError(
            f"-r {text!r:.60} is not UTF-8: \\xHH stands for a byte of it"
        ) from None


def _shares(text: str) -> list[float]:
    return [_real(one) for one in _list(text.replace("/", ","))]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{text!r:.60} is not JSON: {error}") from None


def _file(text: str) -> str:
    return read_text(Path(_name(text)), "the file")


def _json_file(text: str) -> Any:
    return _json(_file(text))


def _named(
    names: str, field: str, read: Read | None = None, variable: str = "", *, value: Any = True
) -> Flag:
    words = tuple(names.split())
    return Flag(words, field, read, value, f"LLAMA_{variable}" if variable else "")


FLAGS: tuple[Flag, ...] = (
    # The model, and its draft.
    _named("-m --model", "model", _name, "ARG_MODEL"),
    _named("-a --alias", "aliases", _list, "ARG_ALIAS"),
    _named("-md --model-draft --spec-draft-model", "draft", _name, "ARG_SPEC_DRAFT_MODEL"),
    _named("--spec-type", "spec_types", _list, "ARG_SPEC_TYPE"),
    _named(
        "--spec-draft-n-max --draft --draft-n --draft-max",
        "n_draft",
        _whole,
        "ARG_SPEC_DRAFT_N_MAX",
    ),
    _named("--spec-draft-p-min --draft-p-min", "p_min", _real, "ARG_SPEC_DRAFT_P_MIN"),
    _named(
        "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
        "draft_gpu_layers",
        _layers,
        "ARG_N_GPU_LAYERS_DRAFT",
    ),
    _named("--lora", "lora", _list),
    _named("--lora-scaled", "lora_scaled", _list),
    # Where it lies, and how it is computed.
    _named("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", _layers, "ARG_N_GPU_LAYERS"),
    _named("-dev --device", "devices", _list, "ARG_DEVICE"),
    _named("-sm --split-mode", "split_mode", str, "ARG_SPLIT_MODE"),
    _named("-ts --tensor-split", "tensor_split", _shares, "ARG_TENSOR_SPLIT"),
    _named("-mg --main-gpu", "main_gpu", _whole, "ARG_MAIN_GPU"),
    _named("--rpc", "rpc_servers", _list, "ARG_RPC"),
    _named("-t --threads", "n_threads", _whole, "ARG_THREADS"),
    _named("-tb --threads-batch", "n_threads_batch", _whole),
    _named("-b --batch-size", "n_batch", _whole, "ARG_BATCH"),
    _named("-ub --ubatch-size", "n_ubatch", _whole, "ARG_UBATCH"),
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
    _named("--override-kv", "kv_overrides", _list),
    _named("--rope-scaling", "rope_scaling_type", str, "ARG_ROPE_SCALING_TYPE"),
    _named("--rope-scale", "rope_scale", _real, "ARG_ROPE_SCALE"),
    _named("--rope-freq-base", "rope_freq_base", _real, "ARG_ROPE_FREQ_BASE"),
    _named("--rope-freq-scale", "rope_freq_scale", _real, "ARG_ROPE_FREQ_SCALE"),
    _named("--yarn-orig-ctx", "yarn_orig_ctx", _whole, "ARG_YARN_ORIG_CTX"),
    _named("--yarn-ext-factor", "yarn_ext_factor", _real, "ARG_YARN_EXT_FACTOR"),
    _named("--yarn-attn-factor", "yarn_attn_factor", _real, "ARG_YARN_ATTN_FACTOR"),
    _named("--yarn-beta-slow", "yarn_beta_slow", _real, "ARG_YARN_BETA_SLOW"),
    _named("--yarn-beta-fast", "yarn_beta_fast", _real, "ARG_YARN_BETA_FAST"),
    # Requests side by side, and what is kept of them.
    _named("-c --ctx-size", "n_ctx", _whole, "ARG_CTX_SIZE"),
    _named("-np --parallel", "n_parallel", _whole, "ARG_N_PARALLEL"),
    _named("-kvu --kv-unified", "kv_unified", None, "ARG_KV_UNIFIED"),
    _named("-no-kvu --no-kv-unified", "kv_unified", None, "ARG_NO_KV_UNIFIED", value=False),
    _named("-cram --cache-ram", "cache_mib", _whole, "ARG_CACHE_RAM"),
    _named("--context-shift", "context_shift", None, "ARG_CONTEXT_SHIFT"),
    _named("--no-context-shift", "context_shift", None, "ARG_NO_CONTEXT_SHIFT", value=False),
    _named("--keep", "n_keep", _whole),
    # What an answer is where a request does not say.
    _named("-n --predict --n-predict", "max_tokens", _whole, "ARG_N_PREDICT"),
    _named("-s --seed", "seed", _whole),
    _named("--temp --temperature", "temperature", _real, "ARG_TEMPERATURE"),
    _named("--top-k", "top_k", _whole, "ARG_TOP_K"),
    _named("--top-p", "top_p", _real, "ARG_TOP_P"),
    _named("--min-p", "min_p", _real, "ARG_MIN_P"),
    _named("--typical --typical-p", "typical_p", _real),
    _named("--top-nsigma --top-n-sigma", "top_n_sigma", _real),
    _named("--xtc-probability", "xtc_probability", _real),
    _named("--xtc-threshold", "xtc_threshold", _real),
    _named("--repeat-last-n", "penalty_last_n", _whole),
    _named("--repeat-penalty", "repeat_penalty", _real, "ARG_REPEAT_PENALTY"),
    _named("--presence-penalty", "presence_penalty", _real, "ARG_PRESENCE_PENALTY"),
    _named("--frequency-penalty", "frequency_penalty", _real, "ARG_FREQUENCY_PENALTY"),
    _named("--dry-multiplier", "dry_multiplier", _real),
    _named("--dry-base", "dry_base", _real),
    _named("--dry-allowed-length", "dry_allowed_length", _whole),
    _named("--dry-penalty-last-n", "dry_penalty_last_n", _whole),
    _named("--mirostat", "mirostat_mode", _whole),
    _named("--mirostat-lr", "mirostat_eta", _real),
    _named("--mirostat-ent", "mirostat_tau", _real),
    _named("--ignore-eos", "ignore_eos"),
    _named("-r --reverse-prompt", "stop", lambda text: [text]),
    _named("-e --escape", "escape"),
    _named("--no-escape", "escape", value=False),
    _named("--grammar", "grammar", str),
    _named("--grammar-file", "grammar", _file),
    _named("-j --json-schema", "json_schema", _json),
    _named("-jf --json-schema-file", "json_schema", _json_file),
    # Chats.
    _named("--chat-template", "chat_template", str, "ARG_CHAT_TEMPLATE"),
    _named("--chat-template-file", "chat_template_text", _file, "ARG_CHAT_TEMPLATE_FILE"),
    _named("--chat-template-kwargs", "chat_template_kwargs", _json, "ARG_CHAT_TEMPLATE_KWARGS"),
    _named("--reasoning-format", "reasoning_format", str, "ARG_THINK"),
    _named("-rea --reasoning", "reasoning", str, "ARG_REASONING"),
    _named("--reasoning-effort", "reasoning_effort", str, "ARG_REASONING_EFFORT"),
    _named("--reasoning-budget", "reasoning_budget", _whole, "ARG_THINK_BUDGET"),
    _named("--spm-infill", "spm_infill"),
    _named("--embedding --embeddings", "embedding", None, "ARG_EMBEDDINGS"),
    _named("--rerank --reranking", "rerank", None, "ARG_RERANKING"),
    _named("--pooling", "pooling_type", str, "ARG_POOLING"),
    # The server.
    _named("--host", "host", _name, "ARG_HOST"),
    _named("--port", "port", _whole, "ARG_PORT"),
    _named("--api-key", "api_keys", _list, "API_KEY"),
    _named("--api-key-file", "api_key_file", _name, "ARG_API_KEY_FILE"),
    _named("--ssl-key-file", "tls_key", _path, "ARG_SSL_KEY_FILE"),
    _named("--ssl-cert-file", "tls_cert", _path, "ARG_SSL_CERT_FILE"),
    _named("--cors-origins", "cors_origins", _origins, "ARG_CORS_ORIGINS"),
    # Not llama-server's: it answers to any Host.
    _named("--allowed-hosts", "allowed_hosts", _list),
    _named("-to --timeout", "send_timeout_s", _real, "ARG_TIMEOUT"),
    _named("--sse-ping-interval", "ping_s", _real, "ARG_SSE_PING_INTERVAL"),
    _named("--metrics", "has_metrics", None, "ARG_ENDPOINT_METRICS"),
    _named("--slots", "has_slots", None, "ARG_ENDPOINT_SLOTS"),
    _named("--no-slots", "has_slots", None, "ARG_NO_ENDPOINT_SLOTS", value=False),
    _named("--ui --webui", "has_page", None, "ARG_UI"),
    _named("--no-ui --no-webui", "has_page", None, "ARG_NO_UI", value=False),
    _named("-v --verbose --log-verbose", "verbose"),
    _named("--log-disable", "is_silent"),
    _named("--log-file", "log_file", _path, "ARG_LOG_FILE"),
    _named("-lv --verbosity --log-verbosity", "verbosity", _whole, "ARG_LOG_VERBOSITY"),
)

_HUB = "no model is fetched here; download it, and give its file by -m"
_NO_IMAGES = "models see no images here"
_NO_TOOLS = "the server runs no tools; clients do"
_SERVER_MODELS = "one model is served here; pyllama-spec serve --config FILE.toml serves several"
# Flags of unsupported features, which are refused.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url",
                     "-dr", "--docker-repo", "--embd-gemma-default", "--fim-qwen-1.5b-default",
                     "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec",
                     "--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--gpt-oss-20b-default",
                     "--gpt-oss-120b-default", "--vision-gemma-4b-default",
                     "--vision-gemma-12b-default"), _HUB),
    **dict.fromkeys(("-cl", "--cache-list"), "no model is fetched here, so there is no list"),
    "--completion-bash": "there is no completion for shells",
    "--list-devices": "pyllama-spec doctor lists the devices",
    **dict.fromkeys(("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
                    "no draft is fetched here; download it, and give its file by -md"),
    **dict.fromkeys(("-mm", "--mmproj", "-mmu", "--mmproj-url", "--media-path", "-mmdev",
                     "--mmproj-device", "--mmproj-offload", "--no-mmproj-offload",
                     "--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens",
                     "--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir"),
                    _NO_IMAGES),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max"), _SERVER_MODELS),
    **dict.fromkeys(("--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json",
                     "-ag", "--agent", "--ui-mcp-proxy", "--webui-mcp-proxy"), _NO_TOOLS),
    **dict.fromkeys(("--control-vector", "--control-vector-scaled",
                     "--control-vector-layer-range"), "there are no control vectors here"),
    "--slot-save-path": "slots are not saved: prompts are reused from memory by themselves, and "
                        "pyllama-spec serve --cache-dir DIR keeps them on disk across restarts",
    **dict.fromkeys(("--samplers", "--sampler-seq", "--sampling-seq"),
                    "the order of samplers is the engine's default"),
    **dict.fromkeys(("-l", "--logit-bias"), "give logit_bias with a request"),
    **dict.fromkeys(("--adaptive-target", "--adaptive-decay", "--dynatemp-range",
                     "--dynatemp-exp", "--dry-sequence-breaker"), "there is no such sampler here"),
    **dict.fromkeys(("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe",
                     "-ncffn", "--n-cpu-ffn"), "whole layers lie on a device: -ngl says how many"),
    "--api-prefix": "a proxy before the server can take the prefix off",
    **dict.fromkeys(("--spec-synth-len", "--spec-synth-rates"),
                    "no draft is made up; texts are drafted by -md or --spec-type"),
    "--lora-init-without-apply": "give the adapter by --lora",
    **dict.fromkeys(("-nocb", "--no-cont-batching"),
                    "requests are always batched; -np 1 computes one at a time"),
    "--no-cache-prompt": "prompts are always reused from memory",
    "--skip-chat-parsing": "answers of chats are always parsed; /v1/completions gives plain text",
    "--path": "the server has one page of its own",
}  # fmt: skip

_SAME = "the controller decides that"
_DRAFT_LAYERS = "whole layers of a draft lie on a device: -ngld says how many"
# Flags that change nothing here, with how many values each has.
IDLE: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(("--jinja", "--no-jinja"), (0, "templates are always Jinja's")),
    **dict.fromkeys(("-cb", "--cont-batching"), (0, "requests are always batched")),
    "--props": (0, "/props is always there"),
    "--offline": (0, "nothing is ever fetched"),
    **dict.fromkeys(("--perf", "--no-perf"), (0, "times are always measured")),
    **dict.fromkeys(("--no-mmproj", "--no-mmproj-auto", "--mmproj-auto"), (0, _NO_IMAGES)),
    **dict.fromkeys(("--no-agent", "-no-ag", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
                    (0, _NO_TOOLS)),
    **dict.fromkeys(("--models-autoload", "--no-models-autoload"), (0, _SERVER_MODELS)),
    "--cache-prompt": (0, "prompts are always reused from memory"),
    "--no-skip-chat-parsing": (0, "answers of chats are always parsed"),
    **dict.fromkeys(("--prefill-assistant", "--no-prefill-assistant"),
                    (0, "a request asks for it by continue_final_message")),
    **dict.fromkeys(("--backend-sampling", "-bs"), (0, "samplers run on the CPU")),
    **dict.fromkeys(("--no-warmup", "--warmup", "--no-repack", "-nr", "--repack", "--no-host",
                     "--check-tensors"), (0, "the library decides how a model is loaded")),
    **dict.fromkeys(("--reuse-port", "-sp", "--special", "--cors-credentials",
                     "--no-cors-credentials"), (0, "nothing depends on it")),
    **dict.fromkeys(("--cache-idle-slots", "--no-cache-idle-slots", "--reasoning-preserve",
                     "--no-reasoning-preserve"), (0, "the library decides that")),
    **dict.fromkeys(("--spec-default", "--spec-draft-backend-sampling",
                     "--no-spec-draft-backend-sampling"), (0, _SAME)),
    **dict.fromkeys(("-cmoed", "--spec-draft-cpu-moe", "--cpu-moe-draft"), (0, _DRAFT_LAYERS)),
    **dict.fromkeys(("-otd", "--spec-draft-override-tensor", "--override-tensor-draft", "-ncmoed",
                     "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe", "--n-cpu-moe-draft"),
                    (1, _DRAFT_LAYERS)),
    **dict.fromkeys(("--spec-draft-n-min", "--draft-min", "--draft-n-min", "--draft-p-split",
                     "--spec-draft-p-split", "--spec-draft-sampling", "--spec-ngram-mod-n-min",
                     "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match",
                     "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m",
                     "--spec-ngram-simple-min-hits", "--spec-ngram-map-k-size-n",
                     "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits",
                     "--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m",
                     "--spec-ngram-map-k4v-min-hits", "--spec-ngram-size-n", "--spec-ngram-size-m",
                     "--spec-ngram-min-hits"), (1, _SAME)),
    **dict.fromkeys(("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", "-ctvd",
                     "--cache-type-v-draft", "--spec-draft-type-v", "-td", "--threads-draft",
                     "--spec-draft-threads", "-tbd", "--threads-batch-draft",
                     "--spec-draft-threads-batch", "-devd", "--device-draft",
                     "--spec-draft-device"), (1, "a draft has what its target has")),
    **dict.fromkeys(("--log-jsonl", "--no-log-jsonl", "--log-prefix", "--no-log-prefix",
                     "--log-timestamps", "--no-log-timestamps"), (0, "the log has one form")),
    **dict.fromkeys(("--log-colors", "--log-prompts-dir"),
                    (1, "the log has one form, and no text of a request")),
    **dict.fromkeys(("--cpu-mask", "-C", "--cpu-range", "-Cr", "--cpu-strict", "--prio", "--poll",
                     "--cpu-mask-batch", "-Cb", "--cpu-range-batch", "-Crb", "--cpu-strict-batch",
                     "--prio-batch", "--poll-batch", "-Cd", "--cpu-mask-draft",
                     "--spec-draft-cpu-mask", "-Crd", "--cpu-range-draft", "--spec-draft-cpu-range",
                     "--cpu-strict-draft", "--spec-draft-cpu-strict", "--prio-draft",
                     "--spec-draft-prio", "--poll-draft", "--spec-draft-poll", "-Cbd",
                     "--cpu-mask-batch-draft", "--spec-draft-cpu-mask-batch",
                     "--cpu-strict-batch-draft", "--spec-draft-cpu-strict-batch",
                     "--prio-batch-draft", "--spec-draft-prio-batch", "--poll-batch-draft",
                     "--spec-draft-poll-batch", "--numa", "-lzm", "--lazy-mode",
                     "--moe-cache-mib"), (1, "the operating system decides that")),
    **dict.fromkeys(("--cache-reuse", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-cms",
                     "--checkpoint-min-step", "-sps", "--slot-prompt-similarity"),
                    (1, "the library decides which prompts it keeps")),
    **dict.fromkeys(("-fit", "--fit", "-fitt", "--fit-target", "-fitc", "--fit-ctx"),
                    (1, "nothing is fitted: -ngl and -c are what is given")),
    **dict.fromkeys(("-hft", "--hf-token"), (1, "no model is fetched here")),
    "--sleep-idle-seconds": (1, "the model stays loaded; keep_alive_s of serve --config closes it"),
    "--embd-normalize": (1, "embeddings always have length 1"),
    **dict.fromkeys(("-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"),
                    (1, "pyllama-spec serve --draft-memory copies from earlier texts")),
    **dict.fromkeys(("--threads-http", "-dt", "--defrag-thold", "--kv-unified-per-slot", "--tags",
                     "--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file",
                     "--cors-methods", "--cors-headers", "--reasoning-budget-message"),
                    (1, "nothing depends on it")),
}  # fmt: skip
BY_NAME: Mapping[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}
# Of chats alone; all else of a request is RequestOptions'.
OF_CHATS = ("reasoning_format", "reasoning_effort", "chat_template_kwargs")
# Keys of a model in a file of models, for fields that are called otherwise.
_KEYS = {
    "model": "model_path", "aliases": "aliases", "lora": "lora_path",
    "cache_mib": "prefix_cache_bytes",
}  # fmt: skip
# Flags of lists, each of which appends.
_ADDED = frozenset(("lora", "lora_scaled", "kv_overrides", "spec_types", "stop"))


def spelt(word: str) -> str:
    """A flag in its listed spelling: llama-server reads --ctx_size as --ctx-size."""
    return word.replace("_", "-") if word.startswith("--") else word


def is_flag(word: str) -> bool:
    """Whether llama-server has a flag of this name."""
    word = spelt(word)
    return word in BY_NAME or word in REFUSED or word in IDLE


def key_of_flag(flag: str) -> str:
    """The key in a models file that corresponds to a flag; "" for none."""
    field = BY_NAME[flag].field if flag in BY_NAME else ""
    if field in KEYWORDS or field in _KEYS:
        return _KEYS.get(field, field)
    is_of_requests = field in RequestOptions.__dataclass_fields__ or field in OF_CHATS
    return f"requests.{field}" if is_of_requests else ""


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Wanted:
    """Parses a command line and the environment.

    Args:
        arguments: the arguments after the program's name.
        environment: the environment, whose LLAMA_... variables apply if a flag is missing.

    Raises:
        UnsupportedError: a flag needs something that this server does not support.
        ArgumentError: a flag is unknown, lacks its value, or has a malformed one. Both errors name
            all faults of either kind.

    """
    wanted = Wanted({}, [], {})
    refused, wrong, unknown = list[str](), list[str](), list[str]()
    left = list(arguments)[::-1]
    while left:
        given = left.pop()
        word = spelt(given)
        if word in REFUSED:
            refused.append(f"{word}: {REFUSED[word]}")
            while left and _is_value(left[-1]):
                left.pop()
        elif word in BY_NAME or word in IDLE:
            try:
                _take(word, left, wanted)
            except ArgumentError as error:
                wrong.append(str(error))
        else:
            unknown.append(given)
    wrong += _take_variables(environment, wanted)
    if unknown:
        wrong.append(
            f"not known here: {' '.join(unknown)}; --help lists the flags of llama-server that are"
        )
    if refused:
        raise UnsupportedError("; ".join((*refused, *wrong)))
    if wrong:
        raise ArgumentError("; ".join(wrong))
    _note_overridden(wanted)
    return wanted


def _take_variables(environment: Mapping[str, str], wanted: Wanted) -> list[str]:
    """Reads the variables of flags that are not given; returns faults in their values."""
    wrong = list[str]()
    # The order of llama-server: the variable that switches something off is read first.
    for flag in sorted(FLAGS, key=lambda one: one.value is not False):
        if flag.variable not in environment or flag.field in wanted.values:
            continue
        wanted.given_by[flag.field] = flag.variable
        if flag.value is False:
            wanted.values[flag.field] = False
            continue
        try:
            wanted.values[flag.field] = _read(
                flag.read or _switch, environment[flag.variable], flag.variable
            )
        except ArgumentError as error:
            wrong.append(str(error))
    return wrong


def _is_value(word: str) -> bool:
    """Whether a word is a value of the flag before it."""
    return not word.startswith("-") or word[1:2].isdigit()


def _take(word: str, left: list[str], wanted: Wanted) -> None:
    """Parses one flag, whose values are the first remaining words."""
    if word in IDLE:
        n, why = IDLE[word]
        for _ in range(n):
            _value(word, left)
        wanted.notes.append(f"{word} changes nothing: {why}")
        return
    flag, values = BY_NAME[word], wanted.values
    before = wanted.given_by.get(flag.field)
    wanted.given_by[flag.field] = word
    value = flag.value if flag.read is None else _read(flag.read, _value(word, left), word)
    if flag.field in _ADDED:
        value = [*values.get(flag.field, ()), *value]
    elif before is not None and values.get(flag.field) != value:
        wanted.notes.append(f"{before} and {word}: the last one counts")
    values[flag.field] = value


# What counts of two fields that say the same thing.
_BEFORE = (
    ("chat_template_text", "chat_template"), ("rope_scale", "rope_freq_scale"),
    ("load_mode", "use_mmap"), ("load_mode", "use_mlock"), ("rerank", "pooling_type"),
    ("is_silent", "verbosity"),
)  # fmt: skip


def _note_overridden(wanted: Wanted) -> None:
    """Notes flags of which another one takes the place."""
    by, values = wanted.given_by, wanted.values
    for first, second in _BEFORE:
        if by.keys() >= {first, second}:
            wanted.notes.append(f"{by[second]} changes nothing: {by[first]} counts")
    types = values.get("spec_types", [])
    if "draft" in by and types and not any(one.startswith("draft-") for one in types):
        said = f"{by['spec_types']} {','.join(types)}"
        wanted.notes.append(f"{by['draft']} changes nothing: {said} names no kind of draft model")


def _value(word: str, left: list[str]) -> str:
    if not left:
        raise ArgumentError(f"{word} has no value")
    return left.pop()


def _read(how: Read, text: str, name: str) -> Any:
    try:
        return how(text)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None
