"""The kinds of drafts that read rows of the target, as the tests that hold for each see one.

A kind joins them with one object in ROW_DRAFTS: what it says in the tests of paths
(tests/parity/test_row_draft_paths.py), of acceptance (test_row_draft_acceptance.py) and of files
(tests/drafters/test_row_draft_files.py) is then compared as for the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.drafters import DFlash, Drafter, Eagle3
from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.drafters.row_memory import RowMemory
from pyllama_spec.engine import Context, Model
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests import dflash_tools, eagle3_tools, perm_tools
from tests.dflash_tools import Guessed
from tests.eagle3_tools import Proposal, ask, cold_proposal, target_context
from tests.models import ENDOFTEXT, model_path
from tests.oracles import tiny

AnyDrafter = ModelDrafter[Any]


@dataclass(frozen=True)
class Reading:
    """What a draft says after a text, to be compared bit for bit.

    Attributes:
        proposal: ids and probabilities.
        block: all that stands behind them, for a draft that computes a block at once.

    """

    proposal: Proposal
    block: Guessed | None = None

    def check_equal(self, other: Reading) -> None:
        """Every number is the same."""
        assert self.proposal == other.proposal
        assert (self.block is None) == (other.block is None)
        if self.block is not None and other.block is not None:
            assert self.block.is_equal_to(other.block)


@dataclass(frozen=True)
class RowDraft(ABC):
    """One kind.

    Attributes:
        name: the draft's architecture, and the drafter's name.
        variants: options of its builder; each is another path through its code.
        lengths: of drafts that are compared.
        n_perm: tokens of the longest draft for PERM.
        perm_options: of the builder of the draft for PERM.
        article: what the drafter is called in messages.

    """

    name: str
    article: str
    variants: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    n_perm: int
    perm_options: Mapping[str, Any] = field(default_factory=dict)

    @abstractmethod
    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> AnyDrafter:
        """A drafter with a draft's file."""

    @abstractmethod
    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        """What a draft says of a text that it is given in one piece, from nothing."""

    @abstractmethod
    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        """What a drafter that knows these tokens says."""

    @abstractmethod
    def faulty(self, fault: str) -> AnyDrafter:
        """A drafter for PERM whose rows something happens to: a class of tests/tampering.py."""

    @abstractmethod
    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        """A prompt of a draft for PERM."""

    @abstractmethod
    def further(self, text: Sequence[int], n: int) -> list[int]:
        """The text with n more tokens, which a draft for PERM can follow."""

    @abstractmethod
    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """Of what was computed for a draft nothing is left that it does not say again."""

    def random(self, variant: str = "", **own: Any) -> AnyDrafter:
        """A drafter of random weights for the tiny llama; `own` are the drafter's options."""
        return self.open(model_path(self.name, **self.variants.get(variant, {})), **own)

    def other(self) -> AnyDrafter:
        """The same with other weights."""
        return self.open(model_path(self.name, seed=5))

    def perm_path(self, **options: Any) -> Path:
        """The file of a draft that knows PERM."""
        return model_path(f"perm_{self.name}", **{**self.perm_options, **options})

    def perm(self, max_draft: int | None = None, **own: Any) -> AnyDrafter:
        """A drafter that knows PERM."""
        return self.open(self.perm_path(), max_draft or self.n_perm, **own)

    def loop(self, drafter: Drafter, target: str = "llama", **params: Any) -> SpeculativeLoop:
        """A loop on a tiny target."""
        return SpeculativeLoop(target_context(tiny(target), drafter, **params), drafter)

    def check_says_the_same(
        self, loop: SpeculativeLoop, seq: SequenceState, target: str = "llama"
    ) -> None:
        """Bit for bit what one says that begins anew, and again when asked again."""
        drafter = loop.drafter._drafter
        failure = loop.drafter.failure(seq.seq_id)
        assert failure is None, failure
        for n in self.lengths:
            expected = self.cold(tiny(target), drafter, seq.tokens, n)
            assert len(expected.proposal.ids) == n
            for _ in range(2):
                self.read(drafter, seq.seq_id, seq.tokens, n).check_equal(expected)
                self.check_memory(drafter, seq)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Eagle3(RowDraft):
    """A head that is called for each token."""

    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> Eagle3:
        return Eagle3(path, max_draft or self.lengths[0], **own)

    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        return Reading(cold_proposal(model, drafter, text, n))

    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        return Reading(ask(drafter, seq, tokens, n))

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """The steps of the last draft stay until the next one begins: no more than its length."""
        last = context_of(drafter).memory.positions(seq.seq_id)[1]
        assert seq.n_decoded - 1 <= last + 1 <= seq.n_decoded + self.lengths[0]

    def faulty(self, fault: str) -> Eagle3:
        kind: type[Eagle3] = getattr(eagle3_tools, fault)
        return kind(self.perm_path(), self.n_perm)

    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        """Random single bytes: the head goes on from the last of them."""
        return [int(i) for i in np.random.default_rng(seed).integers(0, 256, size=n)]

    def further(self, text: Sequence[int], n: int) -> list[int]:
        return [*text, *self.perm_prompt(n, seed=len(text))]


@dataclass(frozen=True)
class _DFlash(RowDraft):
    """A block that is computed at once; its slots are forgotten."""

    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> DFlash:
        return DFlash(path, max_draft, **own)

    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        return Reading(*dflash_tools.cold_block(model, drafter, text, n))

    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        return Reading(*dflash_tools.block_of(drafter, seq, tokens, n))

    def faulty(self, fault: str) -> DFlash:
        kind: type[DFlash] = getattr(dflash_tools, fault)
        return kind(self.perm_path())

    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        return perm_tools.perm_prompt(n, seed)

    def further(self, text: Sequence[int], n: int) -> list[int]:
        return perm_tools.further(text, n)

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """Rows of decoded tokens alone, and all of them."""
        last = context_of(drafter).memory.positions(seq.seq_id)[1]
        assert last == seq.n_decoded - 1 == len(seq.tokens) - 2


def context_of(drafter: AnyDrafter) -> Context:
    """The context of a draft that is attached."""
    assert drafter.context is not None
    assert not drafter.context.is_closed
    return drafter.context


def memory_of(drafter: AnyDrafter) -> RowMemory:
    """What the drafter keeps account of."""
    memory: RowMemory = drafter.memory_or_fail()
    return memory


ROW_DRAFTS: dict[str, RowDraft] = {
    kind.name: kind
    for kind in (
        _Eagle3(
            name="eagle3",
            article="an EAGLE-3 draft",
            variants={
                "": {},
                "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
                "two layers": {"n_layer": 2, "qk_norm": True, "target_layers": (0, 2, 4)},
            },
            lengths=(8,),
            n_perm=4,
        ),
        _DFlash(
            name="dflash",
            article="a DFlash draft",
            variants={
                "": {},
                **{k: v for k, v in dflash_tools.KINDS.items() if k != "dflash"},
                "causal, reduced": {"causal": True, "n_draft_vocab": 200},
                "a sliding layer": {"sliding_window": 6, "window_pattern": (True, False)},
            },
            lengths=(5, 2),
            n_perm=7,
            # The mask is a token that no text comes to: it is pending never.
            perm_options={"read": "newest", "mask_token": ENDOFTEXT},
        ),
    )
}
# Each kind with its plain draft, and with every variant.
PLAIN = [(name, "") for name in ROW_DRAFTS]
VARIANTS = [(name, variant) for name, kind in ROW_DRAFTS.items() for variant in kind.variants]
