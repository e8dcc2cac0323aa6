"""Drafts in chains: from each position, a token per step, each step with the head's own row.

A chain starts at a position P0, where a draft does. Step 0 reads the token x[P0+1] with the
target's row of x[P0]; step s reads x[P0+s+1] with the head's own row of step s-1, attends to pairs
of the target's rows up to that of step 0 and to its own steps 1 .. s, and predicts x[P0+s+2]. That
is what the drafter does, and the training-time test of EAGLE-3 (arXiv 2503.01840, section 3). No
matrix over steps and positions is ever built.

The tokens of a chain are the text's. For greedy text a chain of accepted drafts has the same ones,
so the share of chains whose first i picks are right is the acceptance that decoding sees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyllama_spec.train.run.attention import attend, spans_of
from pyllama_spec.train.run.head import DraftHead
from pyllama_spec.train.run.objective import Step, that_go_on
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
        """The step after attention, from its pairs, mixed values [n, n_head, size] and gate.

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


def run_chains(head: ChainHead, texts: Texts, n_steps: int) -> Iterator[Step]:
    """Runs n_steps steps from every start, all chains at once; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    pairs = head._pairs_of(texts, ends)
    features = head.keys_and_values(pairs, texts.positions)
    chains = torch.arange(len(texts.starts), device=ends.device)
    starts = texts.starts
    at = starts + head.offset
    pairs = pairs[at]
    row = pairs.rows
    own_keys: list[Tensor] = []  # of each step, [c, n_head_kv, size]
    own_values: list[Tensor] = []
    for depth in range(n_steps):
        positions = texts.positions[at] + depth
        if depth:
            pairs = head.pair(texts.tokens[starts + depth + 1], row)
            keys, values = head.keys_and_values(pairs, positions)
            own_keys.append(keys)
            own_values.append(values)
        q, gate = head.queries(pairs, positions)
        own = (torch.stack(own_keys, 1), torch.stack(own_values, 1)) if depth else None
        attended = attend(q[:, None], features, own, spans_of(owner[at], at, ends))[:, 0]
        row, y = head.finish(pairs, attended, gate)
        step = Step(depth, chains, y, starts + depth + 1)
        yield step
        keep = that_go_on(step, texts, ends[owner[at]])
        if len(keep) == 0:
            return
        if len(keep) < len(starts):
            chains, starts, at, row = chains[keep], starts[keep], at[keep], row[keep]
            own_keys = [one[keep] for one in own_keys]
            own_values = [one[keep] for one in own_values]
