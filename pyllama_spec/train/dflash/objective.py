"""The objective of a draft: blocks from many positions of a text at once.

A block that begins at P0 sees the features of x[0] .. x[P0], has x[P0+1] in its first slot, and
drafts x[P0+2], x[P0+3], ...: depth s is the text's token P0+2+s, which the target's distribution
after token P0+1+s is about. So a block stands where a chain of EAGLE-3 does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as nnf
from torch import Tensor

from pyllama_spec.train.dflash.config import DFlashFitConfig
from pyllama_spec.train.dflash.head import DFlashHead
from pyllama_spec.train.run.attention import spans_of
from pyllama_spec.train.run.objective import Losses, SoftCrossEntropy, Targets, is_likeliest
from pyllama_spec.train.run.texts import Texts


def block_rows(head: DFlashHead, texts: Texts) -> Tensor:
    """The rows that give logits, for the blocks from all starts: [c, n_steps, n_embd] by depth."""
    ends, owner = texts.ends()
    starts = texts.starts
    injected = head.inject(texts.features, texts.positions)
    spans = spans_of(owner[starts], starts, ends)
    rows = head.blocks(texts.tokens[starts + 1], texts.positions[starts] + 1, injected, spans)
    return rows[:, head.shape.first_slot :]


def drafted(texts: Texts, n_steps: int) -> Tensor:
    """Where a block drafts a token to learn: [c, n_steps] bool.

    It ends where its text does, where a token need not be learned, and after a token that the draft
    vocabulary lacks: no draft continues there.
    """
    ends, owner = texts.ends()
    starts, last = texts.starts, len(texts.tokens) - 1
    runs, out = torch.ones_like(starts, dtype=torch.bool), []
    for depth in range(n_steps):
        at = starts + depth + 1
        runs = runs & (at + 1 < ends[owner[starts]]) & texts.learned[(at + 1).clamp(max=last)]
        if depth:
            runs = runs & texts.in_vocab[at.clamp(max=last)]
        out.append(runs)
    return torch.stack(out, dim=1)


def with_fewer(texts: Texts, share: float, generator: torch.Generator) -> Texts:
    """The same texts with a share of their blocks, at least one."""
    n = len(texts.starts)
    kept = torch.randperm(n, generator=generator)[: max(round(share * n), 1)].sort().values
    return replace(texts, starts=texts.starts[kept.to(texts.starts.device)])


@dataclass(slots=True)
class _Step:
    """One depth of all blocks that reach it.

    Attributes:
        blocks: [m] int64, the indices of the blocks in Texts.starts.
        losses: [m] float32 with a gradient.
        mass: [m] float32, the share of the target's distribution in the draft vocabulary.
        q: [m] float32, the draft's probability of the text's token.
        best: [m] int64, the likeliest draft id.
        right: [m] bool, whether best is the text's token.
    """

    blocks: Tensor
    losses: Tensor
    mass: Tensor
    q: Tensor
    best: Tensor
    right: Tensor


def block_losses(
    head: DFlashHead,
    texts: Texts,
    fit: DFlashFitConfig,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Losses:
    """The loss of the blocks from all starts."""
    n_steps, device = head.shape.n_steps, texts.tokens.device
    rows, runs = block_rows(head, texts), drafted(texts, n_steps)
    output = head.weight("output.weight")
    if not output.requires_grad:
        output = output.to(dtype)  # once for all depths
    by_depth, hits = [0.0] * n_steps, [0.0] * n_steps
    steps: list[_Step] = []
    goes_on = torch.ones(len(texts.starts), dtype=torch.bool, device=device)
    reached, doubt = goes_on, torch.zeros((), device=device)
    n_doubt = 0
    for depth in range(n_steps):
        blocks = (goes_on & runs[:, depth]).nonzero()[:, 0]
        if not len(blocks):
            break
        y, at = rows[blocks, depth], texts.starts[blocks] + depth + 1
        step, right_pick = _step(head, y, output, texts, blocks, at, fit.hard_share, dtype)
        steps.append(step)
        by_depth[depth] = float(step.losses.detach().sum() / step.mass.sum().clamp(min=1e-6))
        hits[depth] = float(right_pick.float().mean())
        if head.shape.confidence:
            is_reached = reached[blocks]
            logit = head.confidence(y[is_reached], texts.tokens[at[is_reached]])
            doubt = doubt + nnf.binary_cross_entropy_with_logits(
                logit.float(), step.right[is_reached].float(), reduction="sum"
            )
            n_doubt += int(is_reached.sum())
        right = torch.zeros_like(goes_on)
        right[blocks] = step.right
        reached = reached & right
        lucky = torch.rand(len(blocks), generator=generator).to(device) < fit.missed_share
        goes_on = right.index_put((blocks,), step.right | lucky)
    total = _weighted(steps, len(texts.starts), fit) + doubt / max(n_doubt, 1)
    return Losses(total, by_depth, hits)


def _step(
    head: DFlashHead, y: Tensor, output: Tensor, texts: Texts, blocks: Tensor, at: Tensor,
    hard_share: float, dtype: torch.dtype,
) -> tuple[_Step, Tensor]:  # fmt: skip
    """Computes one depth, and where its pick is the target's likeliest token."""
    token = texts.tokens[at + 1]
    label = torch.searchsorted(head.d2t, token).clamp(max=len(head.d2t) - 1)
    known = head.d2t[label] == token
    soft_ids, soft_p = texts.target_ids[at], texts.target_p[at]
    ids, p = soft_ids, soft_p
    if hard_share:
        ids = torch.cat((ids, label[:, None]), dim=1)
        p = torch.cat(((1 - hard_share) * p, hard_share * known[:, None].float()), dim=1)
    low = head.followers(texts.tokens[at])
    bias = None if low is None else head.weight("markov_w2.weight")
    losses, best, log_q = SoftCrossEntropy.apply(
        y, output, low, bias, Targets(ids, p, label), dtype
    )
    q = torch.where(known, log_q.exp(), torch.zeros_like(log_q))
    right = known & (best == label)
    step = _Step(blocks, losses, p.float().sum(-1), q, best, right)
    return step, is_likeliest(best, soft_ids, soft_p)


def _weighted(steps: list[_Step], n_blocks: int, fit: DFlashFitConfig) -> Tensor:
    """The weighted sum of all losses.

    "decay": the mean over all steps, one at depth s counting step_decay ** s. "dpace": with q the
    draft's probability of the text's token and q' = (1 - alpha) q + alpha, a block is expected to
    have S = q'_0 + q'_0 q'_1 + ... tokens accepted; a step counts what S has of products that its
    own q' stands in, and the sum is divided by the number of blocks. The weights have no gradient.
    """
    if fit.weights == "decay":
        parts = [fit.step_decay**s * step.losses.sum() for s, step in enumerate(steps)]
        mass = sum(fit.step_decay**s * float(step.mass.sum()) for s, step in enumerate(steps))
        return torch.stack(parts).sum() / max(mass, 1e-6)
    device = steps[0].q.device
    survival = torch.zeros(n_blocks, len(steps), device=device)
    product = torch.ones(n_blocks, device=device)
    for s, step in enumerate(steps):
        product = product.index_put(
            (step.blocks,),
            product[step.blocks] * ((1 - fit.dpace_alpha) * step.q + fit.dpace_alpha),
        )
        survival[step.blocks, s] = product[step.blocks]
    weights = survival.flip(1).cumsum(1).flip(1)
    parts = [(weights[step.blocks, s] * step.losses).sum() for s, step in enumerate(steps)]
    return torch.stack(parts).sum() / n_blocks


def count_accepted(head: DFlashHead, texts: Texts) -> Tensor:
    """The number of accepted tokens of the block from each start, [n_starts] int64 on the CPU."""
    n_accepted = torch.zeros(len(texts.starts), dtype=torch.int64)
    with torch.no_grad():
        rows, runs = block_rows(head, texts), drafted(texts, head.shape.n_steps)
        goes_on = torch.ones(len(texts.starts), dtype=torch.bool, device=rows.device)
        for depth in range(head.shape.n_steps):
            blocks = (goes_on & runs[:, depth]).nonzero()[:, 0]
            at = texts.starts[blocks] + depth + 1
            # As far as a draft is right, the token before is the text's.
            logits = head.step_logits(rows[blocks, depth], texts.tokens[at])
            right = head.d2t[logits.argmax(-1)] == texts.tokens[at + 1]
            n_accepted[blocks.cpu()] += right.cpu().long()
            goes_on = torch.zeros_like(goes_on).index_put((blocks,), right)
    return n_accepted
