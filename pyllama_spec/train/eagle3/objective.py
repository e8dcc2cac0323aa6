"""What a head is fitted to, and what it is measured by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pyllama_spec.train.eagle3.chains import Texts, run_chains
from pyllama_spec.train.eagle3.head import Eagle3Head

# Rows of logits that are worked on at once: in float32 they stay in a CPU's cache.
_CHUNK = 128


@dataclass(slots=True)
class Losses:
    """The loss of a batch, with the picks that were right, by depth.

    Attributes:
        total: the weighted sum, a scalar with its gradient.
        by_depth: [n_steps] mean cross-entropy, in nats; 0 where no chain came.
        hits: [n_steps] share of steps whose likeliest token is the target's, likewise.

    """

    total: Tensor
    by_depth: list[float]
    hits: list[float]


class SoftCrossEntropy(torch.autograd.Function):
    """Cross-entropy to the target's distribution within the draft vocabulary.

    The target's distribution is cut to the tokens that can be drafted and divided by what remains,
    w; the result counts w: -w sum(p / w log q) = -sum(p log q). So a place where the target wants
    to say what cannot be drafted hardly counts.

    Logits are as wide as the draft vocabulary, and keeping them for a backward pass costs more time
    than the products: their gradient, w softmax - p, is made at once, chunk by chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, output: Tensor, ids: Tensor, p: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The cross-entropies, and the likeliest draft ids.

        Args:
            ctx: PyTorch's.
            y: [c, n_embd] float32 normed rows.
            output: [n_draft_vocab, n_embd] float32.
            ids: [c, k] draft ids, no two alike where p is not 0.
            p: [c, k] the target's probabilities of these, 0 for those that cannot be drafted.
            dtype: of the products.

        Returns:
            Their sum, which has a gradient, [c] float32 by row, and [c] int64.

        """
        p = p.float()
        rows, matrix, weight = y.to(dtype), output.to(dtype), p.sum(-1)
        gradient = torch.empty(len(y), len(output), dtype=dtype, device=y.device)
        best = torch.empty(len(y), dtype=torch.int64, device=y.device)
        losses = torch.empty(len(y), device=y.device)
        for at in range(0, len(y), _CHUNK):
            part = slice(at, at + _CHUNK)
            logits = (rows[part] @ matrix.T).float()
            expected = (p[part] * logits.gather(1, ids[part])).sum(-1)
            most, best[part] = logits.max(-1)
            e = logits.sub_(most[:, None]).exp_()
            sums = e.sum(-1)
            losses[part] = weight[part] * (most + sums.log()) - expected
            e.mul_((weight[part] / sums)[:, None]).scatter_add_(1, ids[part], -p[part])
            gradient[part] = e
        by_output = gradient.T @ rows if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(gradient @ matrix, by_output)
        ctx.mark_non_differentiable(losses, best)
        return losses.sum(), losses, best

    @staticmethod
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients by y and output."""
        by_y, by_output = ctx.saved_tensors
        if by_output is not None:
            by_output = by_output.float().mul_(scale)
        return by_y.float() * scale, by_output, None, None, None


def chain_losses(
    head: Eagle3Head,
    texts: Texts,
    n_steps: int,
    decay: float,
    dtype: torch.dtype,
    missed_share: float = 1.0,
    generator: torch.Generator | None = None,
) -> Losses:
    """The mean loss over all steps of all chains of a batch; one at depth s counts decay ** s.

    A chain whose pick is not the text's token would have ended there in decoding. Of these,
    missed_share go on nonetheless: what is learned at one depth helps the others.

    Args:
        head: the head.
        texts: the batch.
        n_steps: of each chain.
        decay: of the weights.
        dtype: of the products with the output matrix.
        missed_share: the share of chains that go on after a wrong pick.
        generator: on the CPU, draws them.

    """
    output = head.weight("output.weight")
    if not output.requires_grad:
        output = output.to(dtype)  # once for all depths
    total, mass = torch.zeros((), device=output.device), 0.0
    by_depth, hits = [0.0] * n_steps, [0.0] * n_steps
    for step in run_chains(head, texts, n_steps):
        p, ids = texts.target_p[step.at], texts.target_ids[step.at]
        loss, losses, best = SoftCrossEntropy.apply(step.y, output, ids, p, dtype)
        weight = decay**step.depth
        total = total + weight * loss
        of_depth = float(p.sum())
        mass += weight * of_depth
        by_depth[step.depth] = float(losses.sum()) / max(of_depth, 1e-6)
        most = p.max(-1)
        right = (best == ids.gather(1, most.indices[:, None])[:, 0]) & (most.values > 0)
        hits[step.depth] = float(right.float().mean())
        step.goes_on = head.d2t[best] == texts.tokens[step.at + 1]
        step.goes_on |= (torch.rand(len(best), generator=generator) < missed_share).to(best.device)
    return Losses(total / max(mass, 1e-6), by_depth, hits)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How greedy drafts fare on greedy text.

    Attributes:
        by_depth: the share of rounds in which draft i was accepted, i = 0 .. n_steps - 1.
        given: the share of drafts i accepted among those whose predecessors were.
        tokens_per_round: accepted drafts and the target's own token, on average.
        n_rounds: how many rounds there were.

    """

    by_depth: list[float]
    given: list[float]
    tokens_per_round: float
    n_rounds: int

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON knows it."""
        return asdict(self)


class AcceptanceMeter:
    """Plays the rounds of decoding on texts that the target has written greedily.

    Args:
        n_steps: tokens drafted per round.

    """

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        # Rounds by the number of accepted drafts.
        self._histogram = [0] * (n_steps + 1)

    def add(self, head: Eagle3Head, texts: Texts) -> None:
        """Plays the rounds of some texts: each begins where the one before ended."""
        n_accepted = torch.zeros(len(texts.starts), dtype=torch.int64)
        with torch.no_grad():
            for step in run_chains(head, texts, self.n_steps):
                chains = step.chains.cpu()
                picked = head.d2t[head.logits(step.y).argmax(-1)]
                right = picked == texts.tokens[step.at + 1]
                n_accepted[chains] += right.cpu().long()
                step.goes_on = right
        starts = texts.starts.tolist()
        accepted = dict(zip(starts, n_accepted.tolist(), strict=True))
        for start in _rounds(starts, accepted):
            self._histogram[accepted[start]] += 1

    def result(self) -> Acceptance:
        """The figures so far."""
        rounds = sum(self._histogram)
        reached = [sum(self._histogram[i + 1 :]) for i in range(self.n_steps)]
        by_depth = [n / max(rounds, 1) for n in reached]
        before = [rounds, *reached[:-1]]
        given = [a / max(b, 1) for a, b in zip(reached, before, strict=True)]
        mean = 1 + sum(i * n for i, n in enumerate(self._histogram)) / max(rounds, 1)
        return Acceptance(by_depth, given, mean, rounds)


def _rounds(starts: list[int], accepted: dict[int, int]) -> list[int]:
    """The starts at which rounds begin, when each one goes as far as it was accepted."""
    out: list[int] = []
    following = -1
    for start in starts:
        # A gap is the beginning of another text.
        if start >= following or start - 1 not in accepted:
            out.append(start)
            following = start + accepted[start] + 1
    return out
