"""What a head is fitted to: the target's distribution at each step of drafts from every place."""

from __future__ import annotations

import torch
from torch import Tensor

from pyllama_spec.train.eagle3.chains import run_chains
from pyllama_spec.train.eagle3.head import Eagle3Head
from pyllama_spec.train.run.objective import Losses, is_likeliest, soft_cross_entropy
from pyllama_spec.train.run.texts import Texts


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


def count_accepted(head: Eagle3Head, texts: Texts, n_steps: int) -> Tensor:
    """How many tokens of the draft from each start are the text's, [n_starts] int64 on the CPU."""
    n_accepted = torch.zeros(len(texts.starts), dtype=torch.int64)
    with torch.no_grad():
        for step in run_chains(head, texts, n_steps):
            chains = step.chains.cpu()
            picked = head.d2t[head.logits(step.y).argmax(-1)]
            right = picked == texts.tokens[step.at + 1]
            n_accepted[chains] += right.cpu().long()
            step.goes_on = right
    return n_accepted
