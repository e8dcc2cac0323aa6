"""Contexts, batches, memories, samplers, grammars and vocabularies used wrongly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyllama_spec.engine import Batch, Model, Sampler, SamplerParams
from pyllama_spec.errors import (
    ArgumentError,
    ClosedError,
    ContextFullError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
)

from .harness import CaseList
from .tools import N_VOCAB, PROMPT, batch_of, decoded, opened, tiny

CASES = CaseList()

Call = Callable[[Path], object]
_INF, _NAN = float("inf"), float("nan")


def _open(arch: str = "llama", **params: Any) -> Call:
    return lambda _: opened(arch, **params)


CASES.calls(
    "open_large", OutOfMemoryError,
    {
        "n_ctx": _open(n_ctx=10**9),
        "batch": _open(n_ctx=2**20, n_batch=2**31 - 1, n_ubatch=2**30),
        "snapshots": _open("qwen35", n_rs_seq=10**8),
    },
)  # fmt: skip
CASES.calls(
    "open_other", PyllamaSpecError,
    {
        "n_ctx_billion_recurrent": _open("mamba", n_ctx=10**9, n_seq_max=256),
        "v_type_too_wide": _open(type_v="q8_0"),
        "kv_type_too_wide": _open(type_k="q8_0", flash_attn=True),
        "snapshots_above_ubatch": _open("qwen35", n_rs_seq=64),
        "layers_of_encoder": _open("bert", target_layers=(1,)),
        "layer_not_there": _open(target_layers=(3,)),
        "memory_of_an_encoder": lambda _: opened("bert").memory.clear(),
    },
)  # fmt: skip


@CASES.add(ContextFullError, "prompt")
def context_full(folder: Path) -> None:
    context = opened(n_ctx=64)
    for pos in range(65):
        context.decode(batch_of([7], pos))


@CASES.add(ClosedError)
def closed_during_a_decode(folder: Path) -> None:
    context = opened(n_ctx=4096, n_batch=4096, n_ubatch=512)
    batch = Batch(4000)
    batch.extend([7] * 4000, 0)

    def decode() -> None:
        with contextlib.suppress(PyllamaSpecError):
            context.decode(batch)

    worker = threading.Thread(target=decode)
    worker.start()
    context.close()
    context.model.close()
    worker.join()
    context.decode(batch)


def sampler(**params: Any) -> Sampler:
    return Sampler(Model(tiny()), SamplerParams(**{"temperature": 0.0, **params}))


def _make(**params: Any) -> Call:
    return lambda _: sampler(**params)


def _draw(**params: Any) -> Call:
    """Makes a sampler and draws from real logits."""
    return lambda _: sampler(**params).sample(decoded(), len(PROMPT) - 1)


CASES.values(
    "params", _make, ArgumentError, temperature=_NAN, top_k=2**40,
    logit_bias=[{N_VOCAB: 1.0}, {-1: 1.0}, {1: _NAN}],
)  # fmt: skip
CASES.calls(
    "params", None,
    {
        "penalty_window": _make(repeat_penalty=1.1, penalty_last_n=2**31 - 1),
        "dry_window": _make(dry_multiplier=1.0, dry_penalty_last_n=2**31 - 1),
    },
)  # fmt: skip
_NOTHING = dict.fromkeys(range(N_VOCAB), -_INF)
CASES.values("forbidden", _draw, EngineError, logit_bias=_NOTHING)
CASES.values("forbidden", partial(_draw, temperature=0.8), EngineError, logit_bias=_NOTHING)


def _grammar(text: Any, **params: Any) -> Call:
    return _draw(grammar=text, **params)


_DEEP_GROUPS = "root ::= " + "(" * 200_000 + '"a"' + ")" * 200_000
_DEEP_RULES = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(50_000))
_DEEP_RULES += 'r50000 ::= "a"\n'
_HIDDEN = 'root ::= a\na ::= b "x"\nb ::= ("y")? a | "z"'

CASES.values(
    "grammar", _draw, ArgumentError,
    grammar=[
        "root ::= ((( ", "", 'start ::= "a"', 'root ::= root "a" | "b"', _HIDDEN, b"root ::= [a-z]",
        'root ::= "a"\0junk(', _DEEP_GROUPS, _DEEP_RULES, 'root ::= ("a" | "b"?){0,1999}',
        'root ::= ((("a"{999}){999}){999}){999}', 'root ::= "a"{5,2}', r'root ::= "\xZZ"',
        "root ::= <[99999]>",
    ],
)  # fmt: skip
CASES.calls(
    "grammar", ArgumentError,
    {
        "undefined_rule": _grammar("root ::= missing"),
    },
)  # fmt: skip
# The engine takes a limit this high as none.
CASES.calls("grammar", None, {"huge_repetition": _grammar('root ::= "a"{0,100000000}')})


@CASES.add(EngineError)
def nothing_left_to_generate(folder: Path) -> None:
    """A grammar that has ended, in a vocabulary whose end tokens are all forbidden."""
    context = decoded()
    end = {i: -_INF for i in range(N_VOCAB) if context.model.vocab.is_eog(i)}
    one = Sampler(
        context.model, SamplerParams(temperature=0, grammar='root ::= "a"', logit_bias=end)
    )
    one.accept(ord("a"))
    one.sample(context, 4)


@CASES.add(None)
def tokenize_surrogates_and_nul(folder: Path) -> None:
    vocab = Model(tiny()).vocab
    assert vocab.detokenize(vocab.tokenize("a\0b \ud800 \U0010ffff"))
    assert vocab.tokenize("x" * 1_000_000)
