"""The training-time test of EAGLE-3 (arXiv 2503.01840, section 3): a draft from every place.

A chain starts at a position P0 and makes the steps of a draft that begins there. Step 0 reads the
feature row of x[P0]; step s reads token x[P0+s+1] with the head's own row of step s-1:

    step s at position P0+s     attends to pairs 0 .. P0 of features      (step 0's K and V)
                                and to its own steps 1 .. s               at P0+1 .. P0+s
                                predicts x[P0+s+2]

Which is what the drafter does: pairs of features stay, pairs of own rows are guesses of one chain.
So a step needs no mask beyond "P <= P0", and its own steps are s scores more per chain, each the
product of two rows: no matrix over steps and positions is ever built.

The tokens of a chain are the text's. For greedy text a chain of accepted drafts has the same ones,
so that the share of chains whose first i picks are right is the acceptance that decoding sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyllama_spec.train.eagle3.head import Eagle3Head


@dataclass(slots=True)
class Texts:
    """Some sequences, one after the other.

    n tokens all in all; a sequence of m tokens has m - 1 pairs, and a last token without one.

    Attributes:
        tokens: [n] int64 ids of the target.
        positions: [n] int64, from 0 in each sequence.
        lengths: tokens of each sequence.
        features: [n, n_layers * n_embd_target] float32.
        starts: [n_chains] int64: where chains begin, rising.
        learned: [n] bool: whether a token is to be predicted.
        target_ids: [n, k] int64, draft ids of the likeliest tokens after each token.
        target_p: [n, k] float32, their probabilities; those outside the draft vocabulary 0.
        in_vocab: [n] bool: whether the token itself can be drafted.
        copied: [n] bool: whether decoding would copy after this token, because it and those before
            it have stood in the text already.

    """

    tokens: Tensor
    positions: Tensor
    lengths: list[int]
    features: Tensor
    starts: Tensor
    learned: Tensor
    target_ids: Tensor
    target_p: Tensor
    in_vocab: Tensor
    copied: Tensor


@dataclass(slots=True)
class ChainStep:
    """One step of all chains that still run.

    Attributes:
        depth: s.
        chains: [c] int64, which of Texts.starts.
        y: [c, n_embd] float32, the rows that give logits.
        at: [c] int64: the token that was read, x[P0+s+1]; its distribution is the target's.
        goes_on: [c] bool, for whoever takes the steps to set: chains that make another one.

    """

    depth: int
    chains: Tensor
    y: Tensor
    at: Tensor
    goes_on: Tensor | None = None


def run_chains(head: Eagle3Head, texts: Texts, n_steps: int) -> Iterator[ChainStep]:
    """Makes n_steps steps from every start, all chains at once.

    A chain ends where its text does, where a token need not be learned, and after a token that the
    draft vocabulary lacks: no draft goes on there. And where ChainStep.goes_on says so.
    """
    ends = torch.tensor(texts.lengths, device=texts.tokens.device).cumsum(0)
    owner = torch.repeat_interleave(
        torch.arange(len(texts.lengths), device=ends.device),
        torch.tensor(texts.lengths, device=ends.device),
    )
    first = ends[owner] - torch.tensor(texts.lengths, device=ends.device)[owner]
    # Pairs of features: K and V of every token, the one after it standing for x[P+1]. The last of
    # a sequence pairs with the next one's first token, and no chain looks at it.
    following = texts.tokens.roll(-1)
    rows = head.encode(texts.features)
    mixed = head.mix(following, rows)
    k0, v0 = head.keys(mixed, texts.positions), head.values(mixed)
    chains = torch.arange(len(texts.starts), device=ends.device)
    starts, own = texts.starts, rows[texts.starts]
    mixed = mixed[starts]
    steps_k: list[Tensor] = []
    steps_v: list[Tensor] = []
    for depth in range(n_steps):
        positions = texts.positions[starts] + depth
        if depth:
            mixed = head.mix(texts.tokens[starts + depth + 1], own)
            steps_k.append(head.keys(mixed, positions))
            steps_v.append(head.values(mixed))
        q = head.queries(mixed, positions)
        blocks = _blocks(owner[starts], starts, first, ends)
        attended = _attend(q, k0, v0, steps_k, steps_v, blocks)
        own, y = head.finish(own, attended)
        at = starts + depth + 1
        step = ChainStep(depth, chains, y, at)
        yield step
        # x[P0+s+2] was to be predicted; the next step reads it and predicts the one after.
        nxt = at + 1
        runs = texts.in_vocab[nxt] & (nxt + 1 < ends[owner[starts]])
        runs &= texts.learned[(nxt + 1).clamp(max=len(texts.tokens) - 1)]
        if step.goes_on is not None:
            runs &= step.goes_on
        keep = runs.nonzero()[:, 0]
        if len(keep) == 0:
            return
        if len(keep) < len(starts):
            chains, starts, own = chains[keep], starts[keep], own[keep]
            steps_k = [k[keep] for k in steps_k]
            steps_v = [v[keep] for v in steps_v]


@dataclass(slots=True)
class _Block:
    """Chains of one sequence: a run of chains, a run of pairs, and the last pair that each sees."""

    chains: slice
    pairs: slice
    seen: Tensor


def _blocks(owner: Tensor, starts: Tensor, first: Tensor, ends: Tensor) -> list[_Block]:
    counts = torch.bincount(owner, minlength=len(ends)).tolist()
    all_ends, blocks, at = ends.tolist(), [], 0
    for sequence, n in enumerate(counts):
        if n:
            chains = slice(at, at + n)
            begin = all_ends[sequence - 1] if sequence else 0
            mine = starts[chains]
            # Pairs after the last start are seen by no chain.
            seen = mine - begin
            blocks.append(_Block(chains, slice(begin, begin + int(seen[-1]) + 1), seen))
            at += n
    return blocks


def _attend(
    q: Tensor,
    k0: Tensor,
    v0: Tensor,
    steps_k: list[Tensor],
    steps_v: list[Tensor],
    blocks: list[_Block],
) -> Tensor:
    """Attention of every chain over features up to its start and its own steps.

    Args:
        q: [c, n_head, size].
        k0: [n, n_head_kv, size] keys of features.
        v0: [n, n_head_kv, size] their values.
        steps_k: [c, n_head_kv, size] keys of each own step so far.
        steps_v: [c, n_head_kv, size] their values.
        blocks: chains and pairs by sequence.

    Returns:
        [c, n_head, size].

    """
    groups = q.shape[1] // k0.shape[1]
    scale = q.shape[2] ** -0.5

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(groups, dim=1) if groups > 1 else x

    own_scores = [(q * spread(k)).float().sum(-1) * scale for k in steps_k]  # each [c, n_head]
    own_values = [spread(v) for v in steps_v]
    out: list[Tensor] = []
    for block in blocks:
        keys = spread(k0[block.pairs]).permute(1, 2, 0)  # [n_head, size, m]
        values = spread(v0[block.pairs]).transpose(0, 1)  # [n_head, m, size]
        scores = (q[block.chains].transpose(0, 1) @ keys).float() * scale  # [n_head, c, m]
        m = scores.shape[-1]
        hidden = torch.arange(m, device=q.device) > block.seen[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        own = [s[block.chains].T[..., None] for s in own_scores]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1).to(q.dtype)
        mixed = (weights[..., :m] @ values).transpose(0, 1)  # [c, n_head, size]
        for j, value in enumerate(own_values):
            mixed = mixed + weights[..., m + j].T[..., None] * value[block.chains]
        out.append(mixed)
    return torch.cat(out)
