"""The training-time test of EAGLE-3 (arXiv 2503.01840, section 3): a draft from each position.

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

import torch

from pyllama_spec.train.eagle3.head import Eagle3Head
from pyllama_spec.train.run.attention import OwnRows, spans_of
from pyllama_spec.train.run.chain_objective import ChainStep, that_go_on
from pyllama_spec.train.run.texts import Texts


def run_chains(head: Eagle3Head, texts: Texts, n_steps: int) -> Iterator[ChainStep]:
    """Runs n_steps steps from every start, all chains at once; see that_go_on() for their ends."""
    ends, owner = texts.ends()
    # Pairs of features: K and V of every token, the one after it standing for x[P+1]. The last of
    # a sequence pairs with the next one's first token, and no chain looks at it.
    following = texts.tokens.roll(-1)
    rows = head.encode(texts.features)
    mixed = head.mix(following, rows)
    k0, v0 = head.keys(mixed, texts.positions), head.values(mixed)
    chains = torch.arange(len(texts.starts), device=ends.device)
    starts, own = texts.starts, rows[texts.starts]
    mixed = mixed[starts]
    own_rows = OwnRows()
    for depth in range(n_steps):
        positions = texts.positions[starts] + depth
        if depth:
            mixed = head.mix(texts.tokens[starts + depth + 1], own)
            own_rows.append(head.keys(mixed, positions), head.values(mixed))
        q = head.queries(mixed, positions)
        attended = own_rows.attend(q, (k0, v0), spans_of(owner[starts], starts, ends))
        own, y = head.finish(own, attended)
        step = ChainStep(depth, chains, y, starts + depth + 1)
        yield step
        keep = that_go_on(step, texts, ends[owner[starts]])
        if len(keep) == 0:
            return
        if len(keep) < len(starts):
            chains, starts, own = chains[keep], starts[keep], own[keep]
            own_rows.keep(keep)
