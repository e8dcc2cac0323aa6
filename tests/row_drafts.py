"""The kinds of drafts that read the target's rows, under one interface for shared tests.

A new kind needs one object in ROW_DRAFTS: the tests of paths
(tests/parity/test_row_draft_paths.py), of acceptance (test_row_draft_acceptance.py) and of files
(tests/drafters/test_row_draft_files.py) then cover it like the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Committed, DFlash, Drafter, Eagle3, Mtp
from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.engine.model import HEAD_ROWS
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests import dflash_tools, eagle3_tools, mtp_tools, perm_tools
from tests.dflash_tools import Guessed
from tests.eagle3_tools import Proposal, ask, cold_proposal, target_context
from tests.models import ENDOFTEXT, model_path
from tests.mtp_tools import mtp_context
from tests.oracles import tiny
from tests.tampering import Decoding

AnyDrafter = ModelDrafter[Any]


@dataclass(frozen=True)
class Reading:
    """A draft's results after a text, to be compared bit for bit.

    Attributes:
        proposal: ids and probabilities.
        block: all numbers behind them, for a draft that computes a block at once.

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
    """One kind of draft.

    Attributes:
        name: its name in tests; for a draft in its own file, the file's architecture and the
            drafter's name.
        variants: options of its builder; each uses another path of its code.
        lengths: the lengths of the compared drafts.
        n_perm: the length of the longest draft for PERM.
        perm_options: the options of the builder of the draft for PERM.
        tier: the tier of its tests, if they are not quick: they take as long as all others.
        article: the drafter's name in messages.
        n_ubatches: the sizes of physical batches in which prompts are read.

    """

    name: str
    article: str
    variants: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    n_perm: int
    perm_options: Mapping[str, Any] = field(default_factory=dict)
    tier: str = ""
    n_ubatches: tuple[int, ...] = (1, 3, 7, 32)

    @property
    def drafter_name(self) -> str:
        """The drafter's, as a result has it."""
        return self.name

    def target_for(self, drafter: AnyDrafter) -> Model:
        """The target of a draft with random weights."""
        return tiny("llama")

    def pair(self, **options: Any) -> tuple[Path, Path | str]:
        """A target's file and the draft for it, as draft= of Llama; `options` of its builder."""
        return model_path("llama"), model_path(self.name, **options)

    def perm_target(self) -> Path:
        """The file that a draft which knows PERM drafts for."""
        return model_path("perm")

    def perm_draft(self) -> Path | str:
        """That draft, as draft= of Llama."""
        return self.perm_path()

    def context(self, model: Model, drafter: Drafter, **params: Any) -> Context:
        """A small context of a target."""
        return target_context(model, drafter, **params)

    @abstractmethod
    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> AnyDrafter:
        """A drafter with a draft's file."""

    @abstractmethod
    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        """A draft's results for a text that it is given at once, from nothing."""

    @abstractmethod
    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        """The results of a drafter with these tokens."""

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
        """Checks that no trace of a draft's computation stays that the drafter does not report."""

    def random(self, variant: str = "", **own: Any) -> AnyDrafter:
        """A drafter of random weights; `own` are the drafter's options."""
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

    def loop(self, drafter: AnyDrafter, **params: Any) -> SpeculativeLoop:
        """A loop on what a draft of random weights drafts for."""
        return SpeculativeLoop(self.context(self.target_for(drafter), drafter, **params), drafter)

    def perm_loop(self, drafter: Drafter, **params: Any) -> SpeculativeLoop:
        """A loop on PERM with a drafter."""
        return SpeculativeLoop(self.context(opened(self.perm_target()), drafter, **params), drafter)

    def check_says_the_same(self, loop: SpeculativeLoop, seq: SequenceState) -> None:
        """Bit for bit what one says that begins anew, and again when asked again."""
        drafter = loop.drafter._drafter
        failure = loop.drafter.failure(seq.seq_id)
        assert failure is None, failure
        for n in self.lengths:
            expected = self.cold(loop.target.model, drafter, seq.tokens, n)
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
        """Random single bytes: the head continues from the last one."""
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


@dataclass(frozen=True)
class _Mtp(RowDraft):
    """A head of the target's own file, or several; each variant has another target.

    Attributes:
        kind: the model with random weights.
        n_heads: the number of its heads.
        perm_arch: the architecture of PERM.

    """

    kind: str = "glm4moe"
    n_heads: int = 1
    perm_arch: str = "qwen35"

    @property
    def drafter_name(self) -> str:
        return "mtp"

    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> Mtp:
        return Mtp(path, max_draft or self.lengths[0], **own)

    def random(self, variant: str = "", **own: Any) -> Mtp:
        options = {"kind": self.kind, "n_heads": self.n_heads, **self.variants[variant]}
        return self.open(model_path(**options), **own)

    def other(self) -> Mtp:
        return self.open(model_path(self.kind, n_heads=self.n_heads, seed=5))

    def target_for(self, drafter: AnyDrafter) -> Model:
        return opened(drafter.model.path)

    def pair(self, **options: Any) -> tuple[Path, Path | str]:
        return model_path(self.kind, n_heads=self.n_heads, **options), "mtp"

    def perm_path(self, **options: Any) -> Path:
        return model_path("perm_mtp", arch=self.perm_arch, n_heads=self.n_heads, **options)

    def perm_target(self) -> Path:
        return self.perm_path()

    def perm_draft(self) -> str:
        return "mtp"

    def context(self, model: Model, drafter: Drafter, **params: Any) -> Context:
        return mtp_context(model, drafter, **params)

    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        with (
            mtp_context(model, drafter, n_ctx=512, n_batch=512, n_ubatch=512) as context,
            Mtp(drafter.model, drafter.max_draft) as fresh,
        ):
            fresh.attach(context)
            batch = Batch(len(text))
            batch.extend(text[:-1], 0)
            context.decode(batch)
            fresh.commit([Committed(0, text, 0, [context.layer_input(HEAD_ROWS)])])
            return Reading(ask(fresh, 0, text, n))

    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        return Reading(ask(drafter, seq, tokens, n))

    def faulty(self, fault: str) -> Mtp:
        kind: type[Mtp] = getattr(mtp_tools, fault)
        return kind(self.perm_path(), self.n_perm)

    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        """Random single bytes, as for EAGLE-3."""
        return [int(i) for i in np.random.default_rng(seed).integers(0, 256, size=n)]

    def further(self, text: Sequence[int], n: int) -> list[int]:
        return [*text, *self.perm_prompt(n, seed=len(text))]

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """A pair of every token, and the first head's guesses: none, where each has its own."""
        last = context_of(drafter).memory.positions(seq.seq_id * self.n_heads)[1]
        n_guesses = self.lengths[0] - 1 if self.n_heads == 1 else 0
        assert len(seq.tokens) - 1 <= last <= len(seq.tokens) - 1 + n_guesses


@cache
def opened(path: Path) -> Model:
    """A model that tests share, without its head."""
    return Model(path)


def context_of(drafter: AnyDrafter) -> Context:
    """The context of a draft that is attached."""
    assert drafter.context is not None
    assert not drafter.context.is_closed
    return drafter.context


def memory_of(drafter: AnyDrafter) -> Decoding:
    """The drafter's account of its memory."""
    memory: Decoding = drafter.memory_or_fail()
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
        _Mtp(
            name="mtp",
            article="an MTP head",
            variants={"": {}, "cohere2moe": {"kind": "cohere2moe"}},
            lengths=(8,),
            n_perm=4,
            perm_arch="glm4moe",
            tier="release",
        ),
        _Mtp(
            name="several heads",
            article="an MTP head",
            variants={"": {}, "hy_v3": {"kind": "hy_v3"}, "mimo2": {"kind": "mimo2"}},
            lengths=(3,),
            n_perm=3,
            kind="step35",
            n_heads=3,
            perm_arch="step35",
            tier="slow",
        ),
    )
}
# Those that lie in a file of their own, of an architecture of its own.
OWN_FILES = [name for name, kind in ROW_DRAFTS.items() if not isinstance(kind, _Mtp)]
# Each kind with its plain draft, and with every variant.
PLAIN = [(name, "") for name in ROW_DRAFTS]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    tier = ROW_DRAFTS[name].tier
    return [getattr(pytest.mark, tier)] if tier else []


def marked(name: str, *more: object, is_release: bool = False) -> Any:
    """A case of a kind with the mark of its tier."""
    marks = [pytest.mark.release] if is_release else _marks(name)
    return pytest.param(name, *more, marks=marks)


each_kind = pytest.mark.parametrize("name", [marked(name) for name in ROW_DRAFTS])
VARIANTS = [(name, variant) for name, kind in ROW_DRAFTS.items() for variant in kind.variants]
