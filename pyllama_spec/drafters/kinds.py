"""The kinds of heads as data: how they differ.

A head is a small draft model that reads rows of the target. Its graph is in `csrc/drafts/`, its
memory in row_memory.py, its drafter in heads.py; what differs between kinds is an entry of HEADS.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadKind:
    """A kind of head."""

    name: str  # its name in statistics
    title: str  # what a file of it is called in messages
    # At a position P it reads the target's row of the token x[P + row]; where there is none yet, a
    # row of zeros.
    row: int
    token: int | None  # beside it the token x[P + token]; None for a head that reads rows alone
    # General.architecture of its files; "" for a head of its target's architecture, which may lie
    # in the target's own file, and reads the row that the target's graph has for it.
    arch: str
    max_draft: int  # the maximum number of tokens of a draft, by default
    max_adaptive: int  # the same with a controller that ends drafts where they do not pay


# arXiv 2503.01840. At position P the token x[P+1] and the row of x[P]:
#
#     position        0          1          2          3
#     token         x[1]       x[2]       x[3]       x[4] = pending
#     row of        x[0]       x[1]       x[2]       x[3]        from the target, as features
#                                                      |
#                                                      +-> first drafted token d[1], row h[1]
#     then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...
EAGLE3 = HeadKind("eagle3", "an EAGLE-3 draft", 0, 1, "eagle3", 4, 8)
# arXiv 2602.06036. At position P the row of x[P]; then the slots of a block, which see each other:
#
#     position      0     1     2     3  |   4        5       6       7
#     fed          row   row   row   row | x[4]     mask    mask    mask
#                  of    of    of    of  |   |        |       |       |
#                 x[0]  x[1]  x[2]  x[3] | pending  d[1]    d[2]    d[3]   guessed
#
# A draft with a Markov head (DSpark, arXiv 2607.05147) lets each guess see the one before, and
# guesses after the first slot too; one with a selector (DFlash2) scores each candidate after each
# one of the slot before, and is read from left to right. Blocks of more than 16 slots paid on no
# machine that was measured.
DFLASH = HeadKind("dflash", "a DFlash draft", 0, None, "dflash", 15, 15)
# "nextn". At position P the token x[P] and the row of x[P-1], as the engine's own driver has it:
#
#     position        0          1          2          3
#     token         x[0]       x[1]       x[2]       x[3] = pending
#     row of       zeros       x[0]       x[1]       x[2]        from the target
#                                                      |
#                                                      +-> first drafted token d[1], row h[1]
#     then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...
MTP = HeadKind("mtp", "an MTP head", -1, 0, "", 3, 6)

# The kinds with files of their own, by architecture.
HEADS = {kind.arch: kind for kind in (EAGLE3, DFLASH)}
# The remedy for a model without a head to draft with.
INSTEAD = 'give a draft\'s file, or `draft="suffix"`'
