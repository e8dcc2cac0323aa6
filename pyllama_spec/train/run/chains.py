"""Drafts in chains: from each position, a token per step, each step with the head's own row.

A chain starts at a position P0, where a draft does, and makes its steps. Step 0 reads the token
x[P0+1] with the target's row of x[P0]; step s reads x[P0+s+1] with the head's own row of step s-1:

    step s      attends to pairs of the target's rows up to that of step 0
                and to its own steps 1 .. s
                predicts x[P0+s+2]

Which is what the drafter does: pairs of features stay, pairs of own rows are guesses of one chain.
This is the training-time test of EAGLE-3 (arXiv 2503.01840, section 3). A step needs no mask
beyond the pairs before it, and its own steps are s scores more per chain, each the product of two
rows: no matrix over steps and positions is ever built.

The tokens of a chain are the text's. For greedy text a chain of accepted drafts has the same ones,
so that the share of chains whose first i picks are right is the acceptance that decoding sees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyllama_spec.train.run.attention import Span, attend, spans_of
from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.objective import Losses, is_likeliest, soft_cross_entropy
from pyllama_spec.train.run.texts import Texts


@dataclass(slots=True)
class Pairs:
    """Pairs of a token and a row."""

    rows: Tensor  # [n, n_embd] float32, the residual stream that attention adds to
    read: Tensor  # [n, n_read], what queries, keys and values are made of

    def __getitem__(self, i: Tensor) -> Pairs:
        return Pairs(self.rows[i], self.read[i])


class ChainHead(DraftHead):
    """A head that drafts a token per step.

    Attributes:
        offset: the position of a pair, counted from that of its row: 1 for one at its token.
    """

    offset: ClassVar[int]

    @abstractmethod
    def rows_of(self, features: Tensor) -> Tensor:
        """The target's rows as the head reads them: [n, n_embd] float32."""

    @abstractmethod
    def pair(self, tokens: Tensor, rows: Tensor) -> Pairs:
        """Pairs of tokens [n] int64, ids of the target, with the row before each."""

    @abstractmethod
    def keys_and_values(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values [n, n_head_kv, size] of pairs at positions [n] int64."""

    @abstractmethod
    def queries(self, pairs: Pairs, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """The queries [n, n_head, size], and the gate of the attention's output, if there is one.

        The gate is before its sigmoid, [n, n_head, size] or [n, n_head, 1].
        """

    @abstractmethod
    def finish(
        self, pairs: Pairs, attended: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Computes the step after attention.

        Args:
            pairs: the pairs of the step.
            attended: [n, n_head, size] mixed values.
            gate: the gate of these values, from queries().

        Returns:
            The row to pass on, and the row that gives logits: both [n, n_embd] float32.
        """

    def _pairs_of(self, texts: Texts, ends: Tensor) -> Pairs:
        """The pairs of the target's rows, each at its position.

        A pair at its row has the next token, and the last one of a sequence the first token of the
        next sequence, which no chain looks at. A pair at its token has the row before, and the
        first one of a sequence a row of zeros.
        """
        rows = self.rows_of(texts.features)
        if not self.offset:
            return self.pair(texts.tokens.roll(-1), rows)
        rows = rows.roll(1, 0)
        rows[torch.cat((ends.new_zeros(1), ends[:-1]))] = 0.0
        return self.pair(texts.tokens, rows)


class OwnRows:
    """The keys and values of the drafts' own rows: one row per draft and step."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds a step: the keys and values of one row per draft, both [c, n_head_kv, size]."""
        self._keys.append(keys)
        self._values.append(values)

    def keep(self, drafts: Tensor) -> None:
        """Keeps the rows of some drafts; `drafts` are indices, [c'] int64."""
        self._keys = [keys[drafts] for keys in self._keys]
        self._values = [values[drafts] for values in self._values]

    def attend(self, q: Tensor, features: tuple[Tensor, Tensor], spans: list[Span]) -> Tensor:
        """Attention of one query per draft, [c, n_head, size], to features and all own rows."""
        none = q.new_empty(0)
        keys = torch.stack(self._keys, 1) if self._keys else none
        values = torch.stack(self._values, 1) if self._values else none
        return attend(q[:, None], features, (keys, values), spans)[:, 0]


@dataclass(slots=True)
class ChainStep:
    """One step of all running chains."""

    depth: int  # the depth s
    chains: Tensor  # [c] int64, the indices of the chains in Texts.starts
    y: Tensor  # [c, n_embd] float32, the rows that give logits
    # [c] int64: the index of the token that was read; the target's distribution is there
    at: Tensor
    # [c] bool, set by the loop over the steps: which chains make another step
    goes_on: Tensor | None = None


def run_chains(head: ChainHead, texts: Texts, n_steps: int) -> Iterator[ChainStep]:
    """Runs n_steps steps from every start, all chains at once; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    pairs = head._pairs_of(texts, ends)
    features = head.keys_and_values(pairs, texts.positions)
    chains = torch.arange(len(texts.starts), device=ends.device)
    starts = texts.starts
    at = starts + head.offset
    pairs, own_rows = pairs[at], OwnRows()
    own = pairs.rows
    for depth in range(n_steps):
        positions = texts.positions[at] + depth
        if depth:
            pairs = head.pair(texts.tokens[starts + depth + 1], own)
            own_rows.append(*head.keys_and_values(pairs, positions))
        q, gate = head.queries(pairs, positions)
        attended = own_rows.attend(q, features, spans_of(owner[at], at, ends))
        own, y = head.finish(pairs, attended, gate)
        step = ChainStep(depth, chains, y, starts + depth + 1)
        yield step
        keep = that_go_on(step, texts, ends[owner[at]])
        if len(keep) == 0:
            return
        if len(keep) < len(starts):
            chains, starts, at, own = chains[keep], starts[keep], at[keep], own[keep]
            own_rows.keep(keep)


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
    steps: Iterator[ChainStep],  # runs its chains over the batch
    texts: Texts,
    n_steps: int,  # the number of steps per chain
    decay: float,  # the decay of the weights
    dtype: torch.dtype,  # the dtype of the products with the output matrix
    missed_share: float = 1.0,  # the share of chains that continue after a wrong pick
    generator: torch.Generator | None = None,  # a CPU generator that draws them
) -> Losses:
    """The mean loss over all chain steps of a batch; a step at depth s has weight decay ** s.

    A chain whose pick is not the text's token would have ended there in decoding. Of these,
    missed_share continue nonetheless: what is learned at one depth helps the others.
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
