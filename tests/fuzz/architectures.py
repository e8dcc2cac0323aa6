"""A small file of any architecture that the engine can load: found by asking the engine.

The engine names the missing key, the missing tensor, and the shape that it expected, so a file is
made by repeated loading. This needs no knowledge of an architecture but the few numbers below, and
covers the architectures of the next pin.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from pyllama_spec.engine import Model
from pyllama_spec.errors import PyllamaSpecError
from tests.fuzz.engine_source import keys_of
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.models import model_path, vocab

N_LAYER, N_EMBD, N_HEAD, N_VOCAB = 4, 64, 4, 320
# A file needs some fifty tensors, and each is asked for once or twice.
_MAX_ATTEMPTS = 1500
_FIRST: dict[str, Value] = {
    "context_length": Value("u32", 256),
    "embedding_length": Value("u32", N_EMBD),
    "block_count": Value("u32", N_LAYER),
    "feed_forward_length": Value("u32", 96),
    "attention.head_count": Value("u32", N_HEAD),
    "attention.head_count_kv": Value("u32", 2),
}
_NUMBERS: dict[str, Value] = {
    "vocab_size": Value("u32", N_VOCAB),
    "wkv.head_size": Value("u32", 16),
    "ssm.conv_kernel": Value("u32", 4),
    "ssm.inner_size": Value("u32", 128),
    "ssm.state_size": Value("u32", 16),
    "ssm.time_step_rank": Value("u32", 4),
    "ssm.group_count": Value("u32", 2),
    "expert_count": Value("u32", 4),
    "expert_used_count": Value("u32", 2),
    "expert_feed_forward_length": Value("u32", 32),
    "attention.indexer.kpool": Value("u32", 2),
    "attention.indexer.top_k": Value("u32", 4),
    "attention.indexer.block_size": Value("u32", 4),
    "leading_dense_block_count": Value("u32", 1),
    "nextn_predict_layers": Value("u32", 0),
    "rope.dimension_count": Value("u32", 8),
    "rope.dimension_sections": Value("[i32]", [2, 2, 2, 2]),
    "target_layers": Value("[i32]", [0, 1, 2]),
    "interleave_moe_layer_step": Value("u32", 2),
    "moe_every_n_layers": Value("u32", 2),
    "attention.sliding_window": Value("u32", 16),
}
# What an architecture insists on beside, by its assertions.
_SPECIAL: dict[str, dict[str, Value]] = {
    "arwkv7": {"wkv.head_size": Value("u32", 64), "token_shift_count": Value("u32", 1)},
    "bailingmoe3": {"kda.gate_lower_bound": Value("f32", -1.0)},
    "cohere2moe": {"attention.layer_norm_rms_epsilon": Value("f32", 1e-5)},
    "deepseek32": {
        "attention.key_length_mla": Value("u32", 24),
        "attention.value_length_mla": Value("u32", 16),
    },
    "deepseek4": {
        "expert_gating_func": Value("u32", 4),
        "attention.compress_ratios": Value("[u32]", [0, 4, 128, 4]),
    },
    "gemma4-assistant": {"embedding_length_out": Value("u32", 48)},
    "glm5-next": {"hyper_connection.count": Value("u32", 4)},
    "graniteswitch": {"adapters.count": Value("u32", N_LAYER)},
    "hy_v4": {
        "attention.indexer.head_count": Value("u32", 2),
        "attention.indexer.key_length": Value("u32", 16),
        "attention.indexer.types": Value("[u32]", [1, 0, 1, 0]),
    },
}
_SPECIAL["glm-dsa"] = _SPECIAL["deepseek32"]
_SPECIAL_TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "jina-bert-v2": {f"blk.{i}.ffn_up.weight": (N_EMBD, 96) for i in range(N_LAYER)},
    "rwkv6": {f"blk.{i}.time_mix_lerp_fused.weight": (N_EMBD, 1, 1, 5) for i in range(N_LAYER)},
    "laguna": {f"blk.{i}.attn_gate.weight": (N_EMBD, N_HEAD) for i in range(N_LAYER)},
}


# Whose files tests/models builds, since the engine does not say what it misses.
_BUILT: dict[str, dict[str, Any]] = {
    "nemotron_h": {}, "rwkv7": {}, "eagle3": {"target_layers": (0, 1, 2)}, "dflash": {},
}  # fmt: skip
# Of these no file was found that loads; their headers alone are tried.
NO_FILE = ("clef", "hrm_text", "nemotron_h_moe")
_KINDS = {
    "UINT8": "u8", "INT8": "i8", "UINT16": "u16", "INT16": "i16", "UINT32": "u32", "INT32": "i32",
    "FLOAT32": "f32", "BOOL": "bool", "UINT64": "u64", "INT64": "i64", "FLOAT64": "f64",
    "STRING": "str", "ARRAY": "array",
}  # fmt: skip


class NoFileError(Exception):
    """The search found no file that the engine loads; the engine's last words."""


def numbered(key: str) -> Value:
    """A plausible value for a key, by its name."""
    if key in _NUMBERS:
        return _NUMBERS[key]
    if key in _FIRST:
        return _FIRST[key]
    if re.search(r"epsilon|scale|factor|freq_base|beta|gate_lower|clamp|softcap|alpha", key):
        return Value("f32", 1e-5 if "epsilon" in key else 1.0)
    if re.search(r"causal|norm_before|_norm$|parallel|safe_gate|finetuned|rms$", key):
        return Value("bool", True)
    if re.search(r"types$|ratios$|_layers$|offsets|multipliers|vocab_sizes", key):
        return Value("[u32]", [1] * N_LAYER)
    if re.search(r"lora_rank|_length|head_dim|_size|bottleneck", key):
        return Value("u32", 16)
    return Value("u32", 2)


def tokenizer(kind: str = "gpt2") -> dict[str, Value]:
    """The keys of a tokenizer with N_VOCAB tokens."""
    texts, types = vocab.tokens(N_VOCAB)
    return {
        "tokenizer.ggml.model": Value("str", kind),
        "tokenizer.ggml.pre": Value("str", "qwen2"),
        "tokenizer.ggml.tokens": Value("[str]", texts),
        "tokenizer.ggml.token_type": Value("[i32]", types),
        "tokenizer.ggml.token_type_count": Value("u32", 2),
        "tokenizer.ggml.scores": Value("[f32]", [0.0] * N_VOCAB),
        "tokenizer.ggml.merges": Value("[str]", vocab.merges()),
        "tokenizer.ggml.bos_token_id": Value("u32", vocab.BOS),
        "tokenizer.ggml.eos_token_id": Value("u32", vocab.EOS),
    }


def first_header(arch: str) -> GgufFile:
    """The file with which the search begins."""
    known = {key.partition(".")[2] for key in keys_of().get(arch, ()) if key.startswith("%s.")}
    file = GgufFile({"general.architecture": Value("str", arch), **tokenizer()})
    for key, value in _FIRST.items():
        file.keys[f"{arch}.{key}"] = value
    # What the engine does not ask for, and then asserts on or divides by.
    for key in _NUMBERS:
        if key in known and not key.startswith("nextn"):
            file.keys[f"{arch}.{key}"] = numbered(key)
    for key, value in _SPECIAL.get(arch, {}).items():
        file.keys[f"{arch}.{key}"] = value
    file.tensors |= _SPECIAL_TENSORS.get(arch, {})
    return file


def of_architecture(arch: str, folder: Path) -> GgufFile:
    """A file that the engine loads."""
    if arch in _BUILT:
        return as_data(model_path(arch, **_BUILT[arch]))
    return complete(first_header(arch), folder / f"{arch}.gguf")


def as_data(path: Path) -> GgufFile:
    """A file of tests/models, all of whose tensors are F32."""
    reader = GGUFReader(path)
    file = GgufFile()
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        kinds = [_KINDS[kind.name] for kind in field.types]
        kind = f"[{kinds[1]}]" if kinds[0] == "array" else kinds[0]
        file.keys[name] = Value(kind, field.contents())
    for tensor in reader.tensors:
        file.tensors[tensor.name] = tuple(int(size) for size in tensor.shape)
    return file


def complete(file: GgufFile, path: Path) -> GgufFile:
    """Adds keys and tensors until the engine loads the file."""
    said = ""
    for _ in range(_MAX_ATTEMPTS):
        before, said = said, _refusal(file.write(path))
        if not said:
            return file
        if said == before or not _mend(file, said):
            break
    raise NoFileError(said)


def _refusal(path: Path) -> str:
    """The engine's own words for a file; "" if it loads."""
    try:
        Model(path).close()
    except PyllamaSpecError as error:
        return str(error.__context__ or error)
    return ""


def _mend(file: GgufFile, said: str) -> bool:
    """Makes one change that the engine's error asks for; False if it cannot be parsed."""
    arch: str = file.keys["general.architecture"].value
    if match := re.search(r"(?<!array )key not found in model: ([\w.-]+)", said):
        key = match[1]
        file.keys[key] = numbered(key.removeprefix(f"{arch}."))
    elif match := re.search(r"key ([\w.-]+) has wrong type \w+ but expected type (\w+)", said):
        file.keys[match[1]] = Value(match[2], _as(match[2], file.keys[match[1]].value))
    elif match := re.search(r"key ([\w.-]+) has wrong array length; expected (\d+)", said):
        old: Any = file.keys[match[1]].value
        file.keys[match[1]] = Value(
            file.keys[match[1]].kind, [old[i % len(old)] for i in range(int(match[2]))]
        )
    elif match := re.search(r"expected scalar, found array for key: ([\w.-]+)", said):
        file.keys[match[1]] = Value("u32", 2)
    elif match := re.search(r"array key not found in model: ([\w.-]+)", said):
        file.keys[match[1]] = Value("[u32]", [1, 0] * (N_LAYER // 2))
    elif match := re.search(r"(?:missing )?tensor '([^']+)'(?: not found)?;", said):
        file.tensors[match[1]] = (1,)
    elif match := re.search(r"tensor '([^']+)' has wrong shape; expected ([\d, ]+), got", said):
        file.tensors[match[1]] = tuple(int(size) for size in match[2].split(","))
    elif match := re.search(r"invalid n_rot: \d+, expected (\d+)", said):
        file.keys[f"{arch}.rope.dimension_count"] = Value("u32", int(match[1]))
    else:
        return False
    return True


def _as(kind: str, value: Any) -> Any:
    number = value[0] if isinstance(value, list) else value
    if kind == "str":
        return "x"
    if kind in ("f32", "f64"):
        return float(number)
    return bool(number) if kind == "bool" else int(number)
