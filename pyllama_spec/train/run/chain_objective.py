"""The objective of heads that draft in chains: the target's distribution at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.objective import Losses, is_likeliest, soft_cross_entropy
from pyllama_spec.train.run.texts import Texts


@dataclass(slots=True)
class ChainStep:
    """One step of all running chains.

    Attributes:
        depth: the depth s.
        chains: [c] int64, the indices of the chains in Texts.starts.
        y: [c, n_embd] float32, the rows that give logits.
        at: [c] int64: the index of the token that was read; the target's distribution is there.
        goes_on: [c] bool, set by the loop over the steps: which chains make another step.
    """

    depth: int
    chains: Tensor
    y: Tensor
    at: Tensor
    goes_on: Tensor | None = None


def that_go_on(step: ChainStep, texts: Texts, ends: Tensor) -> Tensor:
    """The chains that make another step, [c'] int64.

    A chain ends at the end of its text, at a token that need not be learned, and after a token
    outside the draft vocabulary, since no draft continues there. It also ends if ChainStep.goes_on
    is False.

    Args:
        step: the step that was taken.
        texts: the batch.
        ends: [c] int64, the end of each chain's text.
    """
    # The token after the one that was read was to be predicted; the next step reads it and
    # predicts the one after.
    nxt = step.at + 1
    runs = texts.in_vocab[nxt] & (nxt + 1 < ends)
    runs &= texts.learned[(nxt + 1).clamp(max=len(texts.tokens) - 1)]
    if step.goes_on is not None:
        runs &= step.goes_on
    return runs.nonzero()[:, 0]


def chain_losses(
    head: DraftHead,
    steps: Iterator[ChainStep],
    texts: Texts,
    n_steps: int,
    decay: float,
    dtype: torch.dtype,
    missed_share: float = 1.0,
    generator: torch.Generator | None = None,
) -> Losses:
    """The mean loss over all chain steps of a batch; a step at depth s has weight decay ** s.

    A chain whose pick is not the text's token would have ended there in decoding. Of these,
    missed_share continue nonetheless: what is learned at one depth helps the others.

    Args:
        head: the head.
        steps: runs its chains over the batch.
        texts: the batch.
        n_steps: the number of steps per chain.
        decay: the decay of the weights.
        dtype: the dtype of the products with the output matrix.
        missed_share: the share of chains that continue after a wrong pick.
        generator: a CPU generator that draws them.
    """
    output = head.weight("output.weight")
    if not output.requires_grad:
        output = output.to(dtype)  # once for all depths
    total, mass = torch.zeros((), device=output.device), 0.0
    by_depth, hits = [0.0] * n_steps, [0.0] * n_steps
    for step in steps:
        p, ids = texts.target_p[step.at], texts.target_ids[step.at]
        losses, best, _ = soft_cross_entropy(step.y, output, ids, p, dtype)
        weight = decay**step.depth
        total = total + weight * losses.sum()
        of_depth = float(p.sum())
        mass += weight * of_depth
        by_depth[step.depth] = float(losses.detach().sum()) / max(of_depth, 1e-6)
        hits[step.depth] = float(is_likeliest(best, ids, p).float().mean())
        step.goes_on = head.d2t[best] == texts.tokens[step.at + 1]
        step.goes_on |= (torch.rand(len(best), generator=generator) < missed_share).to(best.device)
    return Losses(total / max(mass, 1e-6), by_depth, hits)


def count_accepted(head: DraftHead, steps: Iterator[ChainStep], texts: Texts) -> Tensor:
    """The number of accepted tokens of the draft from each start, [n_starts] int64 on the CPU."""
    n_accepted = torch.zeros(len(texts.starts), dtype=torch.int64)
    with torch.no_grad():
        for step in steps:
            chains = step.chains.cpu()
            picked = head.d2t[head.logits(step.y).argmax(-1)]
            right = picked == texts.tokens[step.at + 1]
            n_accepted[chains] += right.cpu().long()
            step.goes_on = right
    return n_accepted
