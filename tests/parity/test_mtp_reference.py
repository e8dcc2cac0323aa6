"""An MTP head's numbers equal an independent forward pass, and its rows are the right ones.

Rows are noise, so that both halves of a pair count. The target alone shows which row a head reads:
after the final norm it gives the logits by the output matrix.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pyllama_spec.drafters import Committed, DraftRequest, Mtp
from pyllama_spec.engine import Batch, Context
from pyllama_spec.engine.model import HEAD_ROWS
from tests.models import model_path
from tests.models.mtp import MEANS_OF_STREAMS, READS_NORMED, SEVERAL, STREAMS
from tests.mtp_tools import ARCHS, mtp_context, with_head
from tests.parity.mtp_reference import chain, chain_of_heads, last_mix, load, load_all, mix
from tests.tiers import release_except

WITH_ONE_STREAM = tuple(arch for arch in ARCHS if arch not in STREAMS)
N_PAIRS, N_STEPS = 40, 8
OPTIONS = {"n_heads": 1, "output_scale": 1.0}


@pytest.mark.parametrize("first", [0, 4096, 40960])
@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35", "deepseek2")))
def test_logits_of_a_chain(arch: str, first: int) -> None:
    """In one batch and in pieces, in which only the last row has an output."""
    model, rng = with_head(arch, **OPTIONS), np.random.default_rng(3)
    n_row = model.info.n_embd_out
    tokens = [int(i) for i in rng.integers(0, model.info.n_vocab, N_PAIRS)]
    rows = rng.standard_normal((N_PAIRS, n_row)).astype(np.float32)
    wanted, drafted = chain(
        load(model_path(arch, **OPTIONS)), tokens, rows.astype(np.float64), first, N_STEPS
    )
    for size in (N_PAIRS, 7):
        with (
            mtp_context(model, Mtp()) as target,
            Context(
                model, target=target, n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1,
                is_head=True, is_window=True, type_k="f32", type_v="f32",
            ) as context,
        ):  # fmt: skip
            batch = Batch(64, n_row=n_row)
            for start in range(0, N_PAIRS, size):
                batch.clear()
                part = slice(start, start + size)
                batch.extend(tokens[part], first + start, rows=[rows[part]], output_last=True)
                context.decode(batch)
            at = batch.n_tokens - 1
            for i in range(N_STEPS):
                logits = context.logits(at)
                np.testing.assert_allclose(logits, wanted[i], rtol=0, atol=1e-4)
                ids, p, row = context.draft_candidates(at)
                assert ids[0] == drafted[i]
                shares = np.exp(wanted[i] - wanted[i].max())
                likeliest = np.sort(shares / shares.sum())[::-1]
                np.testing.assert_allclose(p, likeliest[: len(p)], rtol=0, atol=1e-5)
                batch.clear()
                batch.add(ids[0], first + N_PAIRS + i, output=True, row=row)
                context.decode(batch)
                at = 0


@pytest.mark.parametrize("arch", release_except(SEVERAL, ("mimo2", "hy_v3")))
@pytest.mark.parametrize("size", [N_PAIRS, 9])
def test_drafts_of_several_heads(arch: str, size: int) -> None:
    options = {**OPTIONS, "n_heads": 3}
    model, rng = with_head(arch, **options), np.random.default_rng(3)
    tokens = [int(i) for i in rng.integers(0, model.info.n_vocab, N_PAIRS)]
    rows = rng.standard_normal((N_PAIRS, model.info.n_embd_out)).astype(np.float32)
    # The row of the last token is the target's business: its pair comes with the next one.
    before = np.concatenate((np.zeros_like(rows[:1]), rows[:-1])).astype(np.float64)
    wanted, drafted, _ = chain_of_heads(load_all(model_path(arch, **options)), tokens, before, 0)
    drafter = Mtp(max_draft=8)
    with mtp_context(model, drafter, type_k="f32", type_v="f32") as target:
        drafter.attach(target)
        assert drafter.max_draft == 3
        for start in range(0, N_PAIRS, size):
            end = min(start + size, N_PAIRS)
            # Before the last part all that was told is of a prompt that goes on.
            n_rows = end - start - (end == N_PAIRS)
            part = [rows[start : start + n_rows]]
            drafter.commit([Committed(0, tokens[start:end], start, part, start)])
        for _ in range(2):
            calls = drafter.n_calls
            draft = drafter.propose([DraftRequest(0, tokens, 8)])[0]
            assert list(draft.ids) == drafted
            assert drafter.n_calls - calls == 3
            for p, logits in zip(draft.probabilities or (), wanted, strict=True):
                shares = np.exp(logits - logits.max())
                assert p == pytest.approx(shares.max() / shares.sum(), abs=1e-5)
    drafter.close()


Rows = npt.NDArray[np.float64]


def decoded(
    arch: str, n_tokens: int = 20, layers: tuple[int, ...] = (HEAD_ROWS,)
) -> tuple[Rows, list[Rows]]:
    """The target's logits of a text, and the inputs of these layers."""
    tokens = np.random.default_rng(n_tokens).integers(0, 256, n_tokens).tolist()
    with mtp_context(with_head(arch, **OPTIONS), Mtp(), target_layers=layers) as context:
        batch = Batch(64)
        batch.extend(tokens, 0, output_all=True)
        context.decode(batch)
        logits = np.array([context.logits(i) for i in range(n_tokens)], np.float64)
        return logits, [context.layer_input(layer).astype(np.float64) for layer in layers]


@pytest.mark.parametrize("arch", sorted(STREAMS))
def test_the_streams_that_a_head_reads(arch: str) -> None:
    """The model's last mixer turns them into the logits."""
    logits, (rows,) = decoded(arch)
    head = load(model_path(arch, **OPTIONS))
    eps = head.keys["attention.layer_norm_rms_epsilon"]
    for row, expected in zip(rows, logits, strict=True):
        if arch == "qwen4exp":
            mixed, _ = mix(head.tensors, "output_hc_", row.reshape(4, -1), eps)
        else:
            mixed = last_mix(head, row.reshape(4, -1))
            mixed = head.norm(mixed, head.tensors["output_norm.weight"])
        found = head.tensors["output.weight"] @ mixed
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("arch", release_except(WITH_ONE_STREAM, ("qwen35", "nemotron_h_moe")))
def test_the_row_that_a_head_reads(arch: str) -> None:
    n_layer = with_head(arch, **OPTIONS).info.n_layer
    is_mean = arch in MEANS_OF_STREAMS
    logits, (rows, *before) = decoded(arch, layers=(HEAD_ROWS, *(() if is_mean else (n_layer,))))
    head, normed = load(model_path(arch, **OPTIONS)), rows
    if before:
        normed = head.norm(before[0], head.tensors["output_norm.weight"])
        wanted = normed if arch in READS_NORMED else before[0]
        np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-4)
    found = normed @ head.tensors["output.weight"].T * head.keys.get("logit_scale", 1.0)
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("arch", release_except(ARCHS, ("qwen35",)))
@pytest.mark.parametrize("n_tokens", release_except((1, 31, 33, 64), (33, 64)))
def test_logits_of_the_target_do_not_depend_on_the_rows(arch: str, n_tokens: int) -> None:
    np.testing.assert_array_equal(decoded(arch, n_tokens, ())[0], decoded(arch, n_tokens)[0])
