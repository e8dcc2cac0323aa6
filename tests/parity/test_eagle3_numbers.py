"""The engine's EAGLE-3 graph against the NumPy reference, for every option and many combinations.

Random heads, random rows, eight steps: the first ones with features of the target, the others with
rows of the head's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.eagle3_tools import ask, head, target_context
from tests.models import RopeScaling, model_path
from tests.oracles import forced_rows, generate, prompt_tokens, sampled, tiny
from tests.parity.eagle3_reference import Reference
from tests.parity.numpy_model import Float32Rope, apart
from tests.tiers import release_except


class Rounding(Reference):
    """With the angles of the engine's kernels."""

    rope_kind = Float32Rope


class UnfusedRope(Float32Rope):
    fused = False


class Unfused(Reference):
    rope_kind = UnfusedRope


Rows = npt.NDArray[np.float32]
N_FEATURES, N_STEPS = 5, 8
# A head with a KV cache of F32 differs from the reference by rounding alone.
F32 = {"type_k": "f32", "type_v": "f32"}


@dataclass
class Steps:
    logits: list[npt.NDArray[Any]]
    rows: list[npt.NDArray[Any]]


def head_path(options: dict[str, Any]) -> Path:
    """A head whose numbers are not the target's: its own tensors and borrowed ones differ."""
    return model_path("eagle3", seed=7, **options)


def inputs(seed: int, n_features: int) -> tuple[list[int], Rows]:
    """Tokens for all steps, and the target's rows for the first ones."""
    rng = np.random.default_rng(seed)
    tokens = [int(i) for i in rng.integers(0, 256, size=N_FEATURES + N_STEPS)]
    return tokens, rng.standard_normal((N_FEATURES, n_features), dtype=np.float32)


def engine_steps(path: Path, first: int, n_ctx: int, **params: Any) -> Steps:
    """The engine's side: one batch of features, then one own row at a time."""
    model, out = Model(path), Steps([], [])
    target = tiny("llama")
    with (
        Context(target, n_ctx=64, n_threads=1) as beside,
        Context(model, target=beside, n_ctx=n_ctx, is_window=True, n_threads=1, **params) as head,
    ):
        info = model.info
        n_features = len(model.target_layers) * target.info.n_embd
        tokens, rows = inputs(first, n_features)
        batch = Batch(N_FEATURES, n_row=n_features, n_model_row=head.n_row)
        batch.extend(tokens[:N_FEATURES], first, rows=[rows], output_all=True)
        head.decode(batch)
        for i in range(N_FEATURES):
            out.logits.append(head.logits(i).copy())
            out.rows.append(head.draft_candidates(i)[2].copy())
        step = Batch(1, n_row=info.n_embd, n_model_row=head.n_row)
        step.hidden_rows = True
        for i in range(N_FEATURES, N_FEATURES + N_STEPS):
            step.clear()
            step.add(tokens[i], first + i, row=out.rows[-1], output=True)
            head.decode(step)
            logits, (ids, probabilities, row) = head.logits(0), head.draft_candidates(0)
            assert list(ids) == [int(i) for i in np.argsort(logits)[: -len(ids) - 1 : -1]]
            assert len(probabilities) == len(ids) == 2
            (choice, second), (p, p_second) = ids, probabilities
            assert choice == int(np.argmax(logits))
            total = np.exp(logits - logits[choice]).sum()
            assert p == pytest.approx(1 / total, rel=1e-4)
            assert p_second == pytest.approx(
                np.exp(logits[second] - logits[choice]) / total, rel=1e-4
            )
            assert np.array_equal(row, head.draft_candidates(0)[2])
            out.logits.append(logits.copy())
            out.rows.append(row.copy())
    return out


def reference_steps(
    path: Path,
    first: int,
    n_ctx: int,
    kind: type[Reference] = Rounding,
    fed: Steps | None = None,
) -> Steps:
    """The reference's side, with its own rows fed back, or those of the other side."""
    reference, out = kind(path, model_path("llama"), n_ctx=n_ctx), Steps([], [])
    tokens, rows = inputs(first, reference.n_features)
    for i, token in enumerate(tokens):
        own = i >= N_FEATURES
        row = (fed or out).rows[i - 1] if own else rows[i]
        logits, row = reference.step(token, row, first + i, own=own)
        out.logits.append(reference.full_logits(logits))
        out.rows.append(row)
    return out


def differences(
    options: dict[str, Any],
    first: int = 0,
    n_ctx: int = 64,
    kind: type[Reference] = Rounding,
    *,
    is_chained: bool = True,
) -> list[float]:
    """The largest difference of a logit or of a number in a row, of each step.

    The first pair is at the position `first`. If is_chained, the reference is fed its own rows, so
    that differences add up.
    """
    path = head_path(options)
    ours = engine_steps(path, first, n_ctx, **F32)
    theirs = reference_steps(path, first, n_ctx, kind, None if is_chained else ours)

    return [
        max(apart(logits, its_logits), apart(row, its_row))
        for logits, its_logits, row, its_row in zip(
            ours.logits, theirs.logits, ours.rows, theirs.rows, strict=True
        )
    ]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one layer": {"target_layers": (2,)},
    "final layer": {"target_layers": (1, 4)},
    "five layers": {"target_layers": (0, 1, 2, 3, 4)},
    "unordered": {"target_layers": (3, 0, 2)},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "eagle3.1": {"fc_norm": True, "norm_output": True},
    "two draft layers": {"n_layer": 2},
    "three draft layers": {"n_layer": 3, "norm_output": True},
    "four draft layers": {"n_layer": 4, "norm_output": True},
    "q and k norms": {"qk_norm": True},
    "output gate": {"output_gate": True},
    "fc bias": {"fc_bias": True},
    "attention biases": {"attn_bias": True},
    "wider": {"n_embd": 128, "n_head": 8},
    "much wider, one layer": {"n_embd": 96, "n_head": 6, "target_layers": (1,)},
    "narrower": {"n_embd": 32},
    "head size": {"head_dim": 32, "n_head_kv": 1},
    "shared embedding": {"own_embedding": False},
    "shared output": {"own_output": False},
    "shared both": {"own_embedding": False, "own_output": False},
    "d2t": {"n_draft_vocab": 100},
    "d2t unsorted": {"n_draft_vocab": 211, "sorted_d2t": False, "own_embedding": False},
}


def is_calm(options: dict[str, Any]) -> bool:
    """Whether a chain of eight steps keeps rounding small.

    Three and more random layers are chaotic: they amplify a last bit of the first step by the
    eighth. Fed the same rows, each step is as exact as the others.
    """
    n_layer: int = options.get("n_layer", 1)
    return n_layer < 3


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    is_chained = is_calm(VARIANTS[name])
    assert max(differences(VARIANTS[name], is_chained=is_chained)) < 1e-4
    assert max(differences(VARIANTS[name], kind=Reference, is_chained=is_chained)) < 1e-4


def combinations() -> list[dict[str, Any]]:
    flags = ("norm_before_residual", "norm_output", "output_gate", "qk_norm")
    out: list[dict[str, Any]] = []
    for bits in itertools.product((False, True), repeat=len(flags)):
        for norm in ({}, {"norm_before_fc": True}, {"fc_norm": True}):
            chosen: dict[str, Any] = {**dict(zip(flags, bits, strict=True)), **norm}
            out += [{**chosen, "n_layer": n_layer} for n_layer in (1, 2)]
    return out


@pytest.mark.slow
def test_combinations() -> None:
    rest: Iterator[dict[str, Any]] = itertools.cycle(
        [
            {"fc_bias": True, "attn_bias": True, "n_draft_vocab": 64},
            {"target_layers": (1, 4), "own_embedding": False},
            {"n_embd": 96, "n_head": 6, "n_draft_vocab": 300, "sorted_d2t": False},
            {"target_layers": (0, 1, 2, 3, 4), "own_output": False},
        ]
    )
    for options in combinations():
        options |= next(rest)
        assert max(differences(options, is_chained=options["n_layer"] == 1)) < 1e-4, options


ROPES = {
    "none": RopeScaling(),
    "linear": RopeScaling("linear"),
    "yarn": RopeScaling("yarn"),
    "llama3": RopeScaling("llama3"),
    "longrope": RopeScaling("longrope"),
    "longrope with a factor": RopeScaling("longrope", attn_factor=1.2),
}


@pytest.mark.parametrize("first", release_except((0, 4_000, 40_000), (0,)))
@pytest.mark.parametrize("name", ROPES)
def test_rope(name: str, first: int) -> None:
    options = {"rope": ROPES[name], "head_dim": 32}
    for n_ctx in (64, 1024):  # longrope chooses its factors by it
        kinds = (Rounding, Unfused) if name == "yarn" else (Rounding,)
        assert min(max(differences(options, first, n_ctx, kind)) for kind in kinds) < 1e-4
        # Against exact angles: what float32 leaves of them at that position.
        assert max(differences(options, first, n_ctx, Reference)) < 1e-4 + 1e-5 * first


def test_a_change_of_the_head_is_seen() -> None:
    """The differences above are small because both sides agree: each change is visible."""
    plain = reference_steps(head_path({}), 0, 64, Reference)
    for name in VARIANTS.keys() - {"unordered"}:  # that one differs in what the rows mean
        other = reference_steps(head_path(VARIANTS[name]), 0, 64, Reference)
        # The last step has seen all: norms of q and k mean nothing to a pair that is alone.
        a, b = plain.logits[-1], other.logits[-1]
        is_same = np.array_equal(np.isfinite(a), np.isfinite(b)) and np.abs(a - b).max() < 0.1
        assert is_same == (name == "plain"), name


# ---- drafts along a text

DRAFTING: dict[str, dict[str, Any]] = {
    "plain": {},
    "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
    "two layers": {"n_layer": 2, "target_layers": (0, 4), "own_embedding": False},
}
N_DRAFTED = 6


@pytest.mark.parametrize("kind", DRAFTING)
def test_drafts_along_a_text(kind: str) -> None:
    model, options = tiny("llama"), {"seed": 7, **DRAFTING[kind]}
    drafter = head(max_draft=N_DRAFTED, **options)
    loop = SpeculativeLoop(target_context(model, drafter, **F32), drafter)
    seq, prompt = SequenceState(), prompt_tokens(21)
    for n_tokens in (1, 2, 9, 17):
        run = generate(loop, seq, prompt, n_tokens, sampled(5, temperature=1.5))
        prompt = [*run.text, 7]
        ids, probabilities = by_reference(options, drafter.target_layers, run.text)
        got = ask(drafter, 0, seq.tokens, N_DRAFTED)
        assert list(got.ids) == ids
        assert got.probabilities == pytest.approx(probabilities, rel=2e-3)


def by_reference(
    options: dict[str, Any], layers: tuple[int, ...], text: list[int]
) -> tuple[list[int], list[float]]:
    reference = Reference(model_path("eagle3", **options), model_path("llama"), n_ctx=256)
    # shape: [n_layer, n_tokens, n_embd]
    rows = forced_rows(tiny("llama"), text[:-1], layers, **F32)[1]
    for position, token in enumerate(text[1:]):
        logits, row = reference.step(token, rows[:, position], position, own=False)
    ids: list[int] = []
    probabilities: list[float] = []
    for position in range(len(text) - 1, len(text) - 1 + N_DRAFTED):
        weights = np.exp(logits - logits.max())
        ids.append(int(reference.full_logits(logits).argmax()))
        probabilities.append(float(1 / weights.sum()))
        logits, row = reference.step(ids[-1], row, position, own=True)
    return ids, probabilities
