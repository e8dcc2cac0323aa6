"""Llama and the command line used wrongly, and the text that was generated before a failure."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.errors import (
    ArgumentError,
    ContextFullError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    RemoteError,
    SchemaError,
    UnknownKeywordError,
    UnsupportedError,
)

from .harness import CaseList
from .tools import N_VOCAB, tiny, written

CASES = CaseList()

_NAN = float("nan")


def _any(value: Any) -> Any:
    """A value of the wrong type, as mypy may not see it."""
    return value


Call = Callable[[Path], object]


def llama(**options: Any) -> Llama:
    return Llama(tiny(), **{"n_ctx": 64, "n_threads": 2, **options})


def _open(**options: Any) -> Call:
    return lambda _: llama(**options)


CASES.values(
    "llama", _open, ArgumentError,
    n_ctx=-1, draft_model=5, pooling_type=9, draft=5, acceptance="rejection", seed=2**40,
    chat_template="a.jinja", p_min=0.5, lookup=3, n_parallel=[0, 10**6], n_batch=0, n_ubatch=-1,
    rpc_servers=("nowhere",), split_mode="x", tensor_split=(-1.0,), type_k="q9",
    rope_freq_base=-1.0, rope_scaling_type="x", last_n_tokens_size=-2, prefix_cache_bytes=-1,
    max_waiting=-1, draft_memory="new",
    kv_overrides=[{"llama.block_count": 99}, {"general.name": "\ud800"}],
)  # fmt: skip
CASES.values("llama", partial(_open, draft="suffix"), ArgumentError, draft_memory="", lora_path=7)
CASES.values("llama", partial(_open, draft="prompt-lookup"), ArgumentError, n_draft=[-1, "x"])
CASES.values("llama", partial(_open, draft=tiny()), ArgumentError, draft_n_ctx=[0, "all"])
CASES.values("llama", _open, OutOfMemoryError, n_ctx=10**9)
CASES.values("llama", _open, UnsupportedError, tokenizer=5)
_SERVERS: dict[str, Any] = {"rpc_servers": ["127.0.0.1:1"], "n_gpu_layers": -1}
CASES.values("llama", partial(_open, **_SERVERS), ArgumentError, rpc_timeout="long")
CASES.calls("llama", None, {"n_ctx_0": _open(n_ctx=0)})
CASES.calls("llama", RemoteError, {"unreachable": _open(**_SERVERS)})
CASES.calls(
    "llama", ModelLoadError,
    {
        "missing_model": lambda f: Llama(f / "no.gguf"),
        "lora_missing": lambda f: llama(lora_path=f / "no.gguf"),
        "lora_is_a_model": _open(lora_path=tiny("qwen3")),
        "draft_missing": lambda f: llama(draft=f / "no.gguf"),
        "draft_no_gguf": lambda f: llama(draft=written(f, b"PK" * 99)),
    },
)  # fmt: skip
CASES.calls(
    "llama", PyllamaSpecError,
    {
        "encoder": lambda _: Llama(tiny("bert")),
        "draft_misspelt": _open(draft="prompt-look"),
        "draft_of_wrong_kind": _open(draft=tiny("bert")),
        "chat_format": _open(chat_format="alpaca-9"),
        "chat_template": _open(chat_template="{% for %}"),
        "devices": _open(devices=["no such"]),
        "draft_memory_folder": _open(draft="suffix", draft_memory=tempfile.gettempdir()),
        "draft_gpu_layers": _open(
            draft=tiny("eagle3", target_layers=(0, 1, 2)), draft_gpu_layers="all"
        ),
    },
)  # fmt: skip


def _complete(prompt: Any = "Hello", **options: Any) -> Call:
    return lambda _: llama().create_completion(prompt, **options)


def _chat(messages: Any, **options: Any) -> Call:
    return lambda _: llama().create_chat_completion(messages, **options)


_USER = {"role": "user", "content": "a"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _deep(n: int) -> dict[str, Any]:
    """A schema that is nested n times."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


CASES.calls(
    "prompt", ArgumentError,
    {
        **{f"one_{i}": _complete(prompt) for i, prompt in enumerate(
            ([], None, [1, -1], [N_VOCAB]))},
        **{f"several_{i}": _complete(prompts) for i, prompts in enumerate(
            (["a", None], ["a", []], [[1], [2, -1]]))},
    },
)  # fmt: skip
CASES.values("prompt", _complete, ContextFullError, prompt=["x" * 500, ["a", "x" * 500]])
CASES.calls(
    "fine", None, {"prompt_texts": _complete(["a"]), "tokens_huge": _complete(max_tokens=2**70)}
)
CASES.values(
    "request", _complete, ArgumentError, max_tokens="9", temperature=_NAN, stop="",
    grammar="root ::= (", response_format=[{"type": "x"}, "json"], echo=1,
    logit_bias=[{N_VOCAB: 1.0}, {65: 3.4e38}], logprobs=-1, repeat_penalty=0, n=0,
    min_tokens=[-1, 17], stop_token_ids=(-1,), acceptance="x",
    reasoning_effort="x", continue_final_message=True, stream="yes", n_keep=-2, timeout_s=-1,
)  # fmt: skip
CASES.values(
    "request", partial(_complete, stream=True), ArgumentError,
    stream_options=[{"usage": 1}, {"include_usage": 1}],
)  # fmt: skip
CASES.values("request", partial(_complete, max_tokens=None), ArgumentError, context_shift=True)
CASES.values("request", _complete, UnknownKeywordError, temprature=1, temp=0.1)
CASES.values("request", _complete, UnsupportedError, tfs_z=0.5, thinking_token_budget=5, suffix="x")


def _formatted(schema: Any) -> Call:
    return _complete(response_format={"type": "json_object", "schema": schema})


CASES.calls(
    "schema", ArgumentError,
    {
        "no_dict": _formatted(3),
        "missing": _complete(response_format={"type": "json_schema"}),
        "deeper": _formatted(_deep(100000)),
    },
)  # fmt: skip
CASES.calls("schema", SchemaError, {"unknown": _formatted({"type": "no"})})
CASES.values(
    "chat", partial(_chat, [_USER]), ArgumentError, tools=["x", ({"type": "function"},)],
    tool_choice="required", reasoning_format="x",
)  # fmt: skip
CASES.values("chat", partial(_chat, [_USER], tools=[_TOOL]), ArgumentError, tool_choice="g")
CASES.values("chat", _chat, ArgumentError, messages=["hello", (), ({"content": "a"},)])
CASES.calls(
    "call", ArgumentError,
    {
        "processor_none": _complete(logits_processor=lambda ids, row: None),
        "processor_short": _complete(logits_processor=lambda ids, row: row[:3]),
        "embed_float": lambda _: llama(embedding=True, pooling_type="mean").embed(_any([3.5])),
        "eval_id": lambda _: llama().eval([N_VOCAB]),
        "sample_first": lambda _: llama().sample(),
        "cache": lambda _: llama().set_cache(_any({})),
    },
)  # fmt: skip
CASES.calls(
    "call", ContextFullError,
    {
        "eval_too_long": lambda _: llama().eval([28] * 65),
        "generate_too_long": lambda _: list(llama().generate([28] * 64)),
    },
)  # fmt: skip
CASES.calls(
    "call", UnsupportedError,
    {
        "embed_without": lambda _: llama().embed("a"),
        "stream_of_several": _complete(["a"], stream=True),
        "image": _chat([{"role": "user", "content": [{"type": "image_url"}]}]),
    },
)  # fmt: skip
