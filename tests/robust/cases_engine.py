"""Contexts, batches, memories, samplers, grammars and vocabularies used wrongly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.drafters import NoDrafter
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from pyllama_spec.errors import (
    ArgumentError,
    ClosedError,
    ContextFullError,
    ContextOpenError,
    EngineError,
    OutOfMemoryError,
    PyllamaSpecError,
    UnsupportedError,
)
from pyllama_spec.speculative import SequenceState, SpeculativeLoop

from .harness import CaseList
from .tools import N_VOCAB, PROMPT, batch_of, decoded, opened, tiny

CASES = CaseList()

Call = Callable[[Path], object]
_INF, _NAN = float("inf"), float("nan")


def _of(make: Callable[[], Any]) -> Callable[[Callable[[Any], object]], Call]:
    """A case does something with a fresh object."""
    return lambda act: lambda _: act(make())


def _each(
    name: str, values: Iterable[Any], make: Callable[[], Any], act: Callable[[Any, Any], object]
) -> dict[str, Call]:
    """A case for each value that the act takes beside a fresh object."""

    def call(value: Any) -> Call:
        return lambda _: act(make(), value)

    return {f"{name}_{i}": call(value) for i, value in enumerate(values)}


def _open(arch: str = "llama", **params: Any) -> Call:
    return lambda _: opened(arch, **params)


CASES.values(
    "open", _open, ArgumentError, n_ctx=[0, 2**31], n_batch=0, n_ubatch=0, n_threads=0,
    n_seq_max=[0, 10**6], type_k="q9_0", rope_freq_base=_NAN, rope_freq_scale=-1.0,
)  # fmt: skip
CASES.calls(
    "open_together", ArgumentError,
    {
        **{f"layer_{i}": _open(target_layers=(i,)) for i in (-1, 3, 2**40)},
        "snapshots_above_ubatch": _open("qwen35", n_rs_seq=64),
        "kv_type_too_wide": _open(type_k="q8_0", flash_attn=True),
        "quantised_v": _open(type_v="q8_0", flash_attn=False),
    },
)  # fmt: skip
CASES.values(
    "open", _open, OutOfMemoryError, n_ctx=10**9,
)  # fmt: skip
CASES.calls("open_other", ContextOpenError, {"v_type_too_wide": _open(type_v="q8_0")})
CASES.calls(
    "open_large", OutOfMemoryError,
    {
        "batch": _open(n_ctx=2**20, n_batch=2**31 - 1, n_ubatch=2**30),
        "snapshots": _open("qwen35", n_rs_seq=10**8),
    },
)  # fmt: skip
CASES.calls(
    "not_there", UnsupportedError,
    {
        "encoder_of_a_decoder": lambda _: opened().decode(batch_of([1]), encode=True),
        "memory_of_an_encoder": lambda _: opened("bert").memory.clear(),
    },
)  # fmt: skip
CASES.calls(
    "open_other", PyllamaSpecError,
    {
        "n_ctx_billion_recurrent": _open("mamba", n_ctx=10**9, n_seq_max=256),
        "layers_of_encoder": _open("bert", target_layers=(1,)),
        "vocab_only": lambda _: Context(Model(tiny(), vocab_only=True)),
    },
)  # fmt: skip


def _decode(*ids: Any, pos: int = 0, seq: int = 0, **params: Any) -> Call:
    return lambda _: opened(**params).decode(batch_of(ids, pos, seq))


def _after(*ids: int, pos: int, arch: str = "llama", **params: Any) -> Call:
    """Decodes once more after PROMPT."""
    return lambda _: decoded(arch, **params).decode(batch_of(ids, pos))


CASES.calls(
    "batch", ArgumentError,
    {
        **{f"id_{id}": _decode(5, id) for id in (-1, N_VOCAB, 2**64)},
        **{f"position_{pos}": _decode(5, pos=pos) for pos in (-1, 2**31)},
        **{f"sequence_{seq}": _decode(5, seq=seq) for seq in (-1, 1, 2**31)},
        "position_gap": _after(1, pos=9),
        "position_taken": _after(1, pos=2),
        "position_taken_recurrent": _after(1, pos=2, arch="mamba"),
        "too_long": _decode(*[5] * 40),
        "empty": _decode(),
    },
)  # fmt: skip


@CASES.add(ContextFullError, "prompt")
def context_full(folder: Path) -> None:
    context = opened(n_ctx=64)
    for pos in range(65):
        context.decode(batch_of([7], pos))


_decoded = _of(decoded)
CASES.calls(
    "read", ArgumentError,
    {
        "before_decode": lambda _: opened().logits(0),
        **_each("row", (-1, 5, 2**40), decoded, lambda c, row: c.logits(row)),
        "embeddings_not_kept": _decoded(lambda c: c.embeddings(0)),
        "layer_not_kept": _decoded(lambda c: c.layer_input(1)),
    },
)  # fmt: skip


def _closed(make: Callable[[], Any]) -> Any:
    """The object after two close()."""
    one = make()
    one.close()
    one.close()
    return one


_closed_model = partial(_closed, lambda: Model(tiny()))
_closed_context = partial(_closed, decoded)
CASES.calls(
    "closed", ClosedError,
    {
        "model_opened": lambda _: Context(_closed_model()),
        "model_piece": lambda _: _closed_model().vocab.piece(1),
        "context_decode": lambda _: _closed_context().decode(batch_of([1])),
        "context_memory": lambda _: _closed_context().memory.save(),
        "target": lambda _: Context(Model(tiny()), target=_closed_context()),
        "sampler_sample": lambda _: _closed(sampler).sample(decoded(), 0),
        "of_a_loop": lambda _: _loop(_closed_context()).prefill(SequenceState(), PROMPT),
    },
)  # fmt: skip


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


def _loop(context: Context) -> SpeculativeLoop:
    return SpeculativeLoop(context, NoDrafter())


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
        "other_root": _grammar('root ::= "a"', grammar_root="top"),
        "root_none": _make(grammar='root ::= "a"', grammar_root=None),
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


def _row(values: Any, **params: Any) -> Call:
    return lambda _: sampler(**params).sample_row(values)


CASES.calls(
    "draw", ArgumentError,
    {
        "row_too_short": _row(np.zeros(9, np.float32)),
        "before_decode": lambda _: sampler().sample(opened(), 0),
        **_each("row", (-1, 9), sampler, lambda s, row: s.sample(decoded(), row)),
        **_each("accept", (-1, N_VOCAB), sampler, lambda s, id: s.accept(id)),
        "other_vocabulary": lambda _: Sampler(Model(tiny(n_vocab=400))).sample(decoded(), 0),
    },
)  # fmt: skip


@CASES.add(None)
def tokenize_surrogates_and_nul(folder: Path) -> None:
    vocab = Model(tiny()).vocab
    assert vocab.detokenize(vocab.tokenize("a\0b \ud800 \U0010ffff"))
    assert vocab.tokenize("x" * 1_000_000)
