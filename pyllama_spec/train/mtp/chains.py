"""The chains of an MTP head: a draft from each position, each step with the head's own row.

A chain starts where a draft does, at a place P with the token x[P] that is known and the target's
row of x[P-1] (drafters/kinds.py):

    step s at position P+s      reads x[P+s], with the target's row of x[P-1] or its own of step s-1
                                attends to the pairs 0 .. P of target's rows
                                and to its own steps 1 .. s
                                predicts x[P+s+1]

Before the first token stands a row of zeros. The tokens of a chain are the text's, as in the
training-time test of EAGLE-3; what is learned flows back through the rows of all its steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyllama_spec.train.mtp.head import MtpHead
from pyllama_spec.train.run.attention import OwnRows, spans_of
from pyllama_spec.train.run.chain_objective import ChainStep, that_go_on
from pyllama_spec.train.run.texts import Texts


def rows_before(texts: Texts, ends: Tensor) -> Tensor:
    """The target's row of the token before each one; zeros before the first: [n, n_embd]."""
    rows = texts.features.roll(1, 0)
    firsts = torch.cat((ends.new_zeros(1), ends[:-1]))
    rows[firsts] = 0.0
    return rows


def run_chains(head: MtpHead, texts: Texts, n_steps: int) -> Iterator[ChainStep]:
    """Runs n_steps steps from every start, all chains at once; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    x = head.join(texts.tokens, rows_before(texts, ends))
    normed = head.normed(x)
    features = head.keys_and_values(normed, texts.positions)
    chains = torch.arange(len(texts.starts), device=ends.device)
    starts = texts.starts + 1  # the place of the token that is known, not of the last row
    x, normed = x[starts], normed[starts]
    own = x
    own_rows = OwnRows()
    for depth in range(n_steps):
        positions = texts.positions[starts] + depth
        if depth:
            x = head.join(texts.tokens[starts + depth], own)
            normed = head.normed(x)
            own_rows.append(*head.keys_and_values(normed, positions))
        q, gate = head.queries(normed, positions)
        attended = own_rows.attend(q, features, spans_of(owner[starts], starts, ends))
        own, y = head.finish(x, normed, attended, gate)
        step = ChainStep(depth, chains, y, starts + depth)
        yield step
        keep = that_go_on(step, texts, ends[owner[starts]])
        if len(keep) == 0:
            return
        if len(keep) < len(starts):
            chains, starts, own = chains[keep], starts[keep], own[keep]
            own_rows.keep(keep)
