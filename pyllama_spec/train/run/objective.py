"""The objective of drafts of every kind, and its measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.texts import Texts

# Rows of logits that are worked on at once: in float32 they stay in a CPU's cache.
_CHUNK = 128
# The loss at depth s counts this ** s.
_DECAY = 0.8


@dataclass(slots=True)
class Step:
    """One depth of all running drafts."""

    depth: int
    drafts: Tensor  # [c] int64, the indices of the drafts in Texts.starts
    y: Tensor  # [c, n_embd] float32, the rows that give logits
    # [c] int64: the index of the token before the drafted one; the target's distribution is there
    at: Tensor
    # [c] bool, set by the loop over the steps: which drafts make another step
    goes_on: Tensor | None = None


def that_go_on(step: Step, texts: Texts, ends: Tensor) -> Tensor:
    """The drafts that make another step, [c'] int64; `ends` are the ends of their texts, [c].

    A draft ends at the end of its text, at a token that need not be learned, and after a token
    outside the draft vocabulary. It also ends if Step.goes_on is False.
    """
    nxt = step.at + 1  # the drafted token; the next step predicts the one after it
    runs = texts.in_vocab[nxt] & (nxt + 1 < ends)
    runs &= texts.learned[(nxt + 1).clamp(max=len(texts.tokens) - 1)]
    if step.goes_on is not None:
        runs &= step.goes_on
    return runs.nonzero()[:, 0]


@dataclass(slots=True)
class Losses:
    """The loss of a batch."""

    total: Tensor  # the weighted sum, a scalar with its gradient
    # [n_steps] mean cross-entropy, in nats; 0 for depths that no draft reached
    by_depth: list[float]


def draft_losses(
    head: DraftHead,
    steps: Iterator[Step],  # runs its drafts over the batch
    texts: Texts,
    n_steps: int,  # the number of steps per draft
    dtype: torch.dtype,  # the dtype of the products with the output matrix
    missed_share: float,  # the share of drafts that continue after a wrong pick
    generator: torch.Generator,  # a CPU generator that draws them
) -> Losses:
    """The loss over all steps of a batch.

    A draft whose pick is not the text's token would have ended there in decoding. Of these,
    missed_share continue nonetheless: what is learned at one depth helps the others.
    """
    output = head.weight("output.weight").to(dtype)  # once for all depths
    by_depth = [0.0] * n_steps
    total, all_mass = torch.zeros((), device=output.device), 0.0
    for step in steps:
        p, ids = texts.target_p[step.at], texts.target_ids[step.at]
        low, matrix = head.followers(texts.tokens[step.at])
        losses, best = SoftCrossEntropy.apply(step.y, output, low, matrix, ids, p, dtype)
        mass, weight = float(p.sum()), _DECAY**step.depth
        total = total + weight * losses.sum()
        all_mass += weight * mass
        by_depth[step.depth] = float(losses.detach().sum()) / max(mass, 1e-6)
        lucky = torch.rand(len(best), generator=generator).to(best.device) < missed_share
        step.goes_on = (head.d2t[best] == texts.tokens[step.at + 1]) | lucky
    return Losses(total / max(all_mass, 1e-6), by_depth)


def count_accepted(head: DraftHead, steps: Iterator[Step], texts: Texts) -> Tensor:
    """The number of accepted tokens of the draft from each start, [n_starts] int64 on the CPU."""
    n_accepted = torch.zeros(len(texts.starts), dtype=torch.int64)
    with torch.no_grad():
        for step in steps:
            # As far as a draft is right, the token before is the text's.
            logits = head.logits(step.y, texts.tokens[step.at])
            step.goes_on = head.d2t[logits.argmax(-1)] == texts.tokens[step.at + 1]
            n_accepted[step.drafts.cpu()] += step.goes_on.cpu().long()
    return n_accepted


class SoftCrossEntropy(torch.autograd.Function):
    """Cross-entropy to the target's distribution within the draft vocabulary.

    The target's distribution is cut to the tokens that can be drafted: -sum(p log q). So a place
    where the target prefers tokens that cannot be drafted hardly counts. Logits are as wide as the
    draft vocabulary, and keeping them for a backward pass costs more time than the products: their
    gradient, w softmax - p with w = sum(p), is made at once, chunk by chunk. The output matrix
    is not trained.
    """

    @staticmethod
    def forward(
        ctx: Any,  # PyTorch's context
        y: Tensor,  # [c, n_embd] float32, normalised rows
        output: Tensor,  # [n_draft_vocab, n_embd] in the dtype of the products
        low: Tensor | None,  # [c, rank] float32, rows of a low-rank addition to the logits; or None
        bias: Tensor | None,  # [n_draft_vocab, rank] float32, the matrix of this addition
        ids: Tensor,  # [c, k] int64, draft ids of the target's likeliest tokens
        p: Tensor,  # [c, k] their probabilities; 0 for ids outside the draft vocabulary
        dtype: torch.dtype,  # the dtype of the products
    ) -> tuple[Tensor, Tensor]:
        """The cross-entropies, [c] float32 with a gradient, and the likeliest draft ids, [c]."""
        p = p.float()
        rows, weight = y.to(dtype), p.sum(-1)
        more = None if low is None or bias is None else (low.to(dtype), bias.to(dtype))
        gradient = torch.empty(len(y), len(output), dtype=dtype, device=y.device)
        best = torch.empty(len(y), dtype=torch.int64, device=y.device)
        losses = torch.empty(len(y), device=y.device)
        for at in range(0, len(y), _CHUNK):
            part = slice(at, at + _CHUNK)
            logits = (rows[part] @ output.T).float()
            if more is not None:
                logits += (more[0][part] @ more[1].T).float()
            expected = (p[part] * logits.gather(1, ids[part])).sum(-1)
            highest, best[part] = logits.max(-1)
            e = logits.sub_(highest[:, None]).exp_()
            sums = e.sum(-1)
            losses[part] = weight[part] * (highest + sums.log()) - expected
            e.mul_((weight[part] / sums)[:, None]).scatter_add_(1, ids[part], -p[part])
            gradient[part] = e
        ctx.save_for_backward(
            gradient @ output,
            *(() if more is None else (gradient @ more[1], gradient, more[0])),
        )
        ctx.mark_non_differentiable(best)
        return losses, best

    @staticmethod
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients by y, low and bias; `scale` is [c]."""
        by_y, *more = ctx.saved_tensors
        column, by_low, by_bias = scale[:, None], None, None
        if more:
            by_low = more[0].float() * column
            by_bias = (more[1].T @ (more[2] * column.to(more[2].dtype))).float()
        return by_y.float() * column, None, by_low, by_bias, None, None, None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance of greedy drafts on greedy text.

    Attributes:
        by_depth: the share of rounds in which draft i was accepted, i = 0 .. n_steps - 1.
        tokens_per_round: accepted drafts and the target's own token, on average.
        n_rounds: the number of rounds.
    """

    by_depth: list[float]
    tokens_per_round: float
    n_rounds: int

    @property
    def margin(self) -> float:
        """The margin of tokens_per_round: 1.96 standard errors of its mean.

        From the tail sums of the number A of accepted drafts: E[A] is the sum of P(A >= i), and
        E[A^2] that of (2 i - 1) P(A >= i).
        """
        mean = sum(self.by_depth)
        square = sum((2 * i + 1) * share for i, share in enumerate(self.by_depth))
        return 1.96 * math.sqrt(max(square - mean * mean, 0.0) / max(self.n_rounds, 1))

    def __str__(self) -> str:
        if self.n_rounds == 0:
            return "not measured: there is no held-out text"
        return (
            f"{self.tokens_per_round:.2f} +- {self.margin:.2f} tokens per round "
            f"({self.n_rounds} rounds)"
        )


def acceptance_of(histogram: Sequence[int]) -> Acceptance:
    """The acceptance from the numbers of rounds with 0, 1, ... accepted drafts."""
    n_rounds = sum(histogram)
    by_depth = [sum(histogram[i:]) / max(n_rounds, 1) for i in range(1, len(histogram))]
    mean = 1 + sum(i * n for i, n in enumerate(histogram)) / max(n_rounds, 1)
    return Acceptance(by_depth, mean, n_rounds)


def accepted_in_rounds(starts: Sequence[int], n_accepted: Sequence[int]) -> list[int]:
    """The accepted drafts of decoding's rounds on some texts: each starts after the one before."""
    out: list[int] = []
    following, before = -1, -2
    for start, n in zip(starts, n_accepted, strict=True):
        # A gap is the beginning of another text.
        if start >= following or start != before + 1:
            out.append(n)
            following = start + n + 1
        before = start
    return out


def no_gain(before: Acceptance, after: Acceptance) -> str:
    """The reason why a continued head is not worth a file; "" if it is."""
    if not before.n_rounds or after.tokens_per_round > before.tokens_per_round:
        return ""
    return (
        f"held-out text has {after.tokens_per_round:.2f} tokens per round, and had "
        f"{before.tokens_per_round:.2f} with the head that training began with"
    )
