"""Every public call with odd values works, or raises our errors; for a wrong type Python's own.

The calls and the names of their arguments are read from the signatures, so that a new one is tested
without a change here.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyllama_spec import ChatTemplate, Llama, RequestOptions
from pyllama_spec.bench.config import BenchConfig
from pyllama_spec.drafters import PromptLookup
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.engine.context_params import ContextParams
from pyllama_spec.errors import PyllamaSpecError
from tests.robust.tools import tiny


class _Odd:
    """A caller's object that has all methods, all of which raise."""

    def _fail(self, *_: object) -> Any:
        raise TypeError("odd")

    __index__ = __float__ = __int__ = __len__ = __iter__ = __fspath__ = __repr__ = _fail


_NUMBERS = [
    0, 1, -1, 2, 7, -7, 2**31 - 1, 2**31, -(2**31) - 1, 2**32 - 1, 2**32, 2**63, 2**64, 10**400,
    -(10**400), 10**5000, 0.0, -0.0, 0.5, 1e-45, 1e39, -1e39, 1e308, float("inf"), float("-inf"),
    float("nan"), True, False, 1j,
]  # fmt: skip
_TEXTS = ["", " ", "a", "\0", "a\0b", "\ud800", "\udfff" * 3, "😀", "x" * 5000, "none", "f16", "{"]
_OTHERS: list[Any] = [
    None, b"", b"a", bytearray(b"a"), [], [[]], (), {}, set(), {"a": 1}, {1: 2}, [1, 2], ["a"],
    [None], [1.5], ["\ud800"], [float("inf")], {"type": "text"}, {"type": []}, {1: 10**400},
    {"1": "x"}, np.zeros(3), np.zeros((2, 2)), np.array(5), np.array([1]), np.float32("nan"),
    np.int64(3), np.array(["a"]), object(), _Odd(), [_Odd()], {"a": _Odd()}, int, len,
    lambda: None, lambda *_: None, iter([1]), range(3), Path("x"), Ellipsis, NotImplemented,
    type("T", (), {}),
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(_NUMBERS), st.sampled_from(_TEXTS), st.sampled_from(_OTHERS), st.integers(),
    st.floats(), st.text(max_size=20), st.lists(st.integers() | st.text(max_size=3), max_size=3),
)  # fmt: skip


def names_of(call: Callable[..., Any]) -> list[str]:
    """The arguments of a call that have names."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(call).parameters.values()
    return [p.name for p in parameters if p.kind not in kinds and p.name not in ("self", "__self")]


_OPTIONS = [field.name for field in fields(RequestOptions)]
# A thing that would be done in earnest: files of these names would be looked for, or written.
_SLOW = {"n_ctx", "n_batch", "n_ubatch", "n_parallel", "max_tokens", "n_seq_max", "n_rs_seq"}


def _llama() -> Llama:
    return Llama(tiny(), n_ctx=64, n_threads=1)


LLAMA, MODEL = _llama(), Model(tiny())
ENCODER = Llama(tiny("bert"), embedding=True, n_ctx=64, n_threads=1)
CONTEXT = Context(MODEL, n_ctx=64, n_threads=1)
SAMPLER = Sampler(MODEL, SamplerParams(temperature=0))
OF_PYTHON = (TypeError, AttributeError, OverflowError, ValueError, LookupError)
CHAT = [{"role": "user", "content": "a"}]

# name -> the call, what it is given beside, and the names that are tried.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str]]] = {
    "SamplerParams": (SamplerParams, {}, names_of(SamplerParams)),
    "ContextParams": (ContextParams, {}, names_of(ContextParams)),
    "RequestOptions": (RequestOptions, {}, _OPTIONS),
    "PromptLookup": (PromptLookup, {}, names_of(PromptLookup)),
    "Batch": (Batch, {}, names_of(Batch)),
    "Model": (Model, {"path": tiny()}, names_of(Model)),
    "Llama": (Llama, {"model_path": tiny(), "n_ctx": 64, "n_threads": 1}, names_of(Llama)),
    "complete": (
        LLAMA.create_completion, {"prompt": [1, 2], "max_tokens": 1},
        [*names_of(LLAMA.create_completion), *_OPTIONS],
    ),
    "chat": (
        LLAMA.create_chat_completion, {"messages": CHAT, "max_tokens": 1},
        [*names_of(LLAMA.create_chat_completion), *_OPTIONS],
    ),
    "embed": (ENCODER.embed, {"input": "a"}, names_of(ENCODER.embed)),
    "create_embedding": (
        ENCODER.create_embedding, {"input": "a"}, names_of(ENCODER.create_embedding),
    ),
    "steps": (LLAMA.generate_steps, {"prompt": "a"}, names_of(LLAMA.generate_steps)),
    "tokenize": (MODEL.vocab.tokenize, {"text": "a"}, names_of(MODEL.vocab.tokenize)),
    "detokenize": (MODEL.vocab.detokenize, {}, names_of(MODEL.vocab.detokenize)),
    "piece": (MODEL.vocab.piece, {"token": 1}, names_of(MODEL.vocab.piece)),
    "special": (MODEL.vocab.special, {}, names_of(MODEL.vocab.special)),
    "chat_template": (MODEL.chat_template, {}, names_of(MODEL.chat_template)),
    "check_layer_inputs": (MODEL.check_layer_inputs, {}, names_of(MODEL.check_layer_inputs)),
    "check_draft_of": (MODEL.check_draft_of, {}, names_of(MODEL.check_draft_of)),
    "ChatTemplate": (ChatTemplate, {"source": "a"}, names_of(ChatTemplate)),
    "render": (
        ChatTemplate("{{ messages }}").render, {"messages": CHAT},
        ["messages", "add_generation_prompt", "tools", "documents", "self"],
    ),
    "accept": (SAMPLER.accept, {"token": 1}, names_of(SAMPLER.accept)),
    "sample": (SAMPLER.sample, {"context": CONTEXT, "i": 0}, names_of(SAMPLER.sample)),
    "sample_chain": (
        SAMPLER.sample_chain, {"context": CONTEXT, "row": 0, "draft": []},
        names_of(SAMPLER.sample_chain),
    ),
    "distribution": (
        SAMPLER.distribution, {"context": CONTEXT, "i": 0}, names_of(SAMPLER.distribution),
    ),
    "sample_row": (SAMPLER.sample_row, {}, names_of(SAMPLER.sample_row)),
    "decode": (CONTEXT.decode, {}, names_of(CONTEXT.decode)),
    "logits": (CONTEXT.logits, {}, names_of(CONTEXT.logits)),
    "positions": (CONTEXT.memory.positions, {}, names_of(CONTEXT.memory.positions)),
    "rollback": (
        CONTEXT.memory.rollback, {"seq": 0, "n_keep": 0}, names_of(CONTEXT.memory.rollback),
    ),
    "remove": (CONTEXT.memory.remove, {"seq": 0}, names_of(CONTEXT.memory.remove)),
    "copy": (
        CONTEXT.memory.copy, {"source": 0, "target": 0}, names_of(CONTEXT.memory.copy),
    ),
    "restore": (CONTEXT.memory.restore, {"seq": 0}, names_of(CONTEXT.memory.restore)),
    "BenchConfig": (BenchConfig, {"model_path": tiny()}, names_of(BenchConfig)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
@given(data=st.data())
def test_only_typed_errors(name: str, data: st.DataObject) -> None:
    call, given_, names = CALLS[name]
    argument = data.draw(st.sampled_from(names))
    value = data.draw(VALUES)
    if argument in _SLOW and isinstance(value, int) and value > 64:
        return
    keywords = {**given_, argument: value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call(**keywords)
        except PyllamaSpecError as error:
            assert str(error)
            return
        except OF_PYTHON:
            return
    if hasattr(found, "close") and found is not CONTEXT:
        found.close()
