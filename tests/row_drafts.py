"""The kinds of drafts that a model computes, under one interface for shared tests.

A new kind needs one object in ROW_DRAFTS: the tests of paths
(tests/parity/test_row_draft_paths.py), of acceptance (test_row_draft_acceptance.py) and of files
(tests/drafters/test_row_draft_files.py) then cover it like the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama_spec.drafters import Committed, DFlash, Drafter, Eagle3, Mtp, SmallModel
from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.speculative import Round, SequenceState, SpeculativeLoop
from tests import dflash_tools, tampering
from tests.dflash_tools import Guessed
from tests.eagle3_tools import Proposal, ask, target_context
from tests.models import ENDOFTEXT, model_path, perm_continuation, perm_next
from tests.mtp_tools import mtp_context
from tests.oracles import LoopRun, forked, generate, run_once, tiny, tiny_context
from tests.tampering import Decoding
from tests.traffic import Request, Traffic

SUCCESSOR = perm_next()


def perm_prompt(n: int, seed: int = 0) -> list[int]:
    """Text that follows PERM, as a spread of rows needs it, from a random byte on."""
    first = int(np.random.default_rng(seed).integers(0, 256))
    return [first, *perm_continuation(first, n - 1, SUCCESSOR)] if n > 1 else [first]


def further(text: Sequence[int], n: int) -> list[int]:
    return [*text, *perm_continuation(text[-1], n, SUCCESSOR)]


def check_perfect(run: LoopRun, n_drafted: int | None = None) -> None:
    """The text is PERM's, and every drafted token was accepted."""
    assert run.tokens == perm_continuation(run.prompt[-1], len(run.tokens), SUCCESSOR)
    check_accepted(run, n_drafted)


def check_accepted(run: LoopRun, n_drafted: int | None = None) -> None:
    assert run.stats.reason_off is None
    assert run.stats.drafted > 0
    assert run.stats.accepted == run.stats.drafted
    if n_drafted is not None:
        assert max(step.n_drafted for step in run.steps) == n_drafted


AnyDrafter = ModelDrafter[Any]


@dataclass(frozen=True)
class Reading:
    """A draft's results after a text, to be compared bit for bit, or as close as rtol says.

    Attributes:
        proposal: ids and probabilities.
        block: all numbers behind them, for a draft that computes a block at once.

    """

    proposal: Proposal
    block: Guessed | None = None
    rtol: float = 0.0

    def check_equal(self, other: Reading) -> None:
        if self.rtol:
            near = pytest.approx(other.proposal.probabilities, rel=self.rtol)
            assert self.proposal.ids == other.proposal.ids
            assert self.proposal.probabilities == near
            return
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
        article: the drafter's name in messages.
        drafter: its class.
        variants: options of its builder; each uses another path of its code.
        lengths: the lengths of the compared drafts.
        n_perm: the length of the longest draft for PERM.
        n_open: the max_draft of other drafters; None for the file's own.
        perm_options: the options of the builder of the draft for PERM.
        perm_variants: further options of it; each uses another path of the code.
        perm_lengths: the lengths of drafts of which each is accepted as a whole.
        tier: the tier of its tests, if they are not quick: they take as long as all others.
        n_ubatches: the sizes of physical batches in which prompts are read.
        faults: the classes of tests/tampering.py that each path has to notice.
        unified: whether the caches of several sequences are apart, or one, or tested both ways.
        rtol: how far probabilities may differ that a text's other ways give.

    """

    name: str
    article: str
    drafter: type[Any]
    variants: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    n_perm: int
    n_open: int | None
    perm_options: Mapping[str, Any] = field(default_factory=dict)
    perm_variants: tuple[Mapping[str, Any], ...] = ()
    perm_lengths: tuple[int, ...] = (1,)
    tier: str = ""
    n_ubatches: tuple[int, ...] = (1, 3, 7, 32)
    faults: tuple[str, ...] = ("Shifted", "Permuted", "NotANumber")
    unified: tuple[bool, ...] = (False, True)
    rtol: float = 0.0

    @abstractmethod
    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """Checks that no trace of a draft's computation stays that the drafter does not report."""

    @property
    def drafter_name(self) -> str:
        """The drafter's, as a result has it."""
        return self.name

    def open(self, path: Path | Model, max_draft: int | None = None, **own: Any) -> AnyDrafter:
        """A drafter with a draft's file; `own` are the drafter's options."""
        drafter: AnyDrafter = self.drafter(path, max_draft or self.n_open, **own)
        return drafter

    def context(self, model: Model, drafter: Drafter, **params: Any) -> Context:
        return target_context(model, drafter, **params)

    # ---- random weights
    def path(self, **options: Any) -> Path:
        """The file of a draft with random weights."""
        return model_path(self.name, **options)

    def target_for(self, drafter: AnyDrafter) -> Model:
        return tiny("llama")

    def pair(self, **options: Any) -> tuple[Path, Path | str]:
        """A target's file and the draft for it, as draft= of Llama; `options` of its builder."""
        return model_path("llama"), self.path(**options)

    def random(self, variant: str = "", **own: Any) -> AnyDrafter:
        return self.open(self.path(**self.variants[variant]), **own)

    def other(self) -> AnyDrafter:
        return self.open(self.path(seed=5))

    def loop(self, drafter: AnyDrafter, **params: Any) -> SpeculativeLoop:
        return SpeculativeLoop(self.context(self.target_for(drafter), drafter, **params), drafter)

    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        """The results of a drafter with these tokens."""
        return Reading(ask(drafter, seq, tokens, n), rtol=self.rtol)

    def cold(self, model: Model, drafter: Any, text: Sequence[int], n: int) -> Reading:
        """O3's yardstick: the results for a text that a draft gets at once, from nothing."""
        with (
            self.context(model, drafter, n_ctx=512, n_batch=512, n_ubatch=512) as context,
            self.open(drafter.model, drafter.max_draft) as fresh,
        ):
            self.read_text(fresh, context, text)
            return self.read(fresh, 0, text, n)

    def read_text(self, drafter: AnyDrafter, context: Context, text: Sequence[int]) -> None:
        """Gives a draft a text at once."""
        drafter.attach(context)
        batch = Batch(len(text))
        batch.extend(text[:-1], 0)
        context.decode(batch)
        rows = [context.layer_input(layer) for layer in drafter.target_layers]
        drafter.commit([Committed(0, text, 0, rows)])

    def check_says_the_same(self, loop: SpeculativeLoop, seq: SequenceState) -> None:
        """Bit for bit what one says that begins anew, and again when asked again."""
        drafter: Any = loop.drafter._drafter
        assert not loop.drafter.failures
        for n in self.lengths:
            expected = self.cold(loop.target.model, drafter, seq.tokens, n)
            assert len(expected.proposal.ids) == n
            for _ in range(2):
                self.read(drafter, seq.seq_id, seq.tokens, n).check_equal(expected)
                self.check_memory(drafter, seq)

    # ---- PERM
    def perm_target(self) -> Path:
        """The file that a draft which knows PERM drafts for."""
        return model_path("perm")

    def perm_path(self, **options: Any) -> Path:
        """The file of a draft that knows PERM."""
        return model_path(f"perm_{self.name}", **{**self.perm_options, **options})

    def perm_draft(self) -> Path | str:
        return self.perm_path()

    def perm(self, max_draft: int | None = None, **own: Any) -> AnyDrafter:
        return self.open(self.perm_path(), max_draft or self.n_perm, **own)

    def faulty(self, fault: str) -> AnyDrafter:
        """A drafter for PERM that something happens to: a class of tests/tampering.py."""
        kind = type(fault, (getattr(tampering, fault), self.drafter), {})
        drafter: AnyDrafter = kind(self.perm_path(), self.n_perm)
        return drafter

    def perm_loop(self, drafter: Drafter, **params: Any) -> SpeculativeLoop:
        return SpeculativeLoop(self.context(opened(self.perm_target()), drafter, **params), drafter)

    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        """Random single bytes: the draft continues from the last one."""
        return [int(i) for i in np.random.default_rng(seed).integers(0, 256, size=n)]

    def further(self, text: Sequence[int], n: int) -> list[int]:
        """The text with n more tokens, which a draft for PERM can follow."""
        return [*text, *self.perm_prompt(n, seed=len(text))]

    def text(self, prompt: Sequence[int], n: int) -> list[int]:
        """The n tokens that the target of perm() says after a prompt."""
        return perm_continuation(prompt[-1], n, SUCCESSOR)

    def check_perfect(self, run: LoopRun, n_drafted: int | None = None) -> None:
        """The text is the target's, and every drafted token was accepted."""
        check_perfect(run, n_drafted)


@dataclass(frozen=True)
class _Eagle3(RowDraft):
    """A head that is called for each token."""

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """The steps of the last draft stay until the next one begins: no more than its length."""
        last = context_of(drafter).memory.positions(seq.seq_id)[1]
        assert seq.n_decoded - 1 <= last + 1 <= seq.n_decoded + self.lengths[0]


@dataclass(frozen=True)
class _DFlash(RowDraft):
    """A block that is computed at once; its slots are forgotten."""

    def read(self, drafter: Any, seq: int, tokens: Sequence[int], n: int) -> Reading:
        return Reading(*dflash_tools.block_of(drafter, seq, tokens, n))

    def perm_prompt(self, n: int, seed: int = 0) -> list[int]:
        return perm_prompt(n, seed)

    def further(self, text: Sequence[int], n: int) -> list[int]:
        return further(text, n)

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

    def path(self, **options: Any) -> Path:
        return model_path(**{"kind": self.kind, "n_heads": self.n_heads, **options})

    def target_for(self, drafter: AnyDrafter) -> Model:
        return opened(drafter.model.path)

    def pair(self, **options: Any) -> tuple[Path, Path | str]:
        return self.path(**options), "mtp"

    def perm_path(self, **options: Any) -> Path:
        return model_path("perm_mtp", arch=self.perm_arch, n_heads=self.n_heads, **options)

    def perm_target(self) -> Path:
        return self.perm_path()

    def perm_draft(self) -> str:
        return "mtp"

    def context(self, model: Model, drafter: Drafter, **params: Any) -> Context:
        return mtp_context(model, drafter, **params)

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """A pair of every token, and the first head's guesses: none, where each has its own."""
        last = context_of(drafter).memory.positions(seq.seq_id * self.n_heads)[1]
        n_guesses = self.lengths[0] - 1 if self.n_heads == 1 else 0
        assert len(seq.tokens) - 1 <= last <= len(seq.tokens) - 1 + n_guesses


@dataclass(frozen=True)
class _SmallModel(RowDraft):
    """A model that reads the text itself.

    In place of PERM the target is one of random weights, and the draft a copy of it: it drafts
    exactly the target's tokens, unless it read something else than the text.

    Attributes:
        arch: the architecture of the two.

    """

    arch: str = "llama"

    def path(self, **options: Any) -> Path:
        return model_path(**{"kind": "llama", "seed": 9, **options})

    def perm_path(self, **options: Any) -> Path:
        return model_path(self.arch, **options)

    def perm_target(self) -> Path:
        return self.perm_path()

    def context(self, model: Model, drafter: Drafter, **params: Any) -> Context:
        # Of a sliding window a state holds what the window does.
        params = {"n_rs_seq": 10, "swa_full": not model.info.n_swa, **params}
        return target_context(model, drafter, **params)

    def text(self, prompt: Sequence[int], n: int) -> list[int]:
        with tiny_context(opened(self.perm_target())) as context:
            return run_once(context, None, prompt, n).tokens

    def check_perfect(self, run: LoopRun, n_drafted: int | None = None) -> None:
        check_accepted(run, n_drafted)

    def check_memory(self, drafter: AnyDrafter, seq: SequenceState) -> None:
        """The text, and guesses of the last draft: all but its last."""
        last = context_of(drafter).memory.positions(seq.seq_id)[1]
        assert len(seq.tokens) - 1 <= last < len(seq.tokens) - 1 + self.lengths[0]


@cache
def opened(path: Path) -> Model:
    return Model(path)


def context_of(drafter: AnyDrafter) -> Context:
    assert drafter.context is not None
    assert not drafter.context.is_closed
    return drafter.context


def memory_of(drafter: AnyDrafter) -> Decoding:
    memory: Decoding = drafter.memory_or_fail()
    return memory


ROW_DRAFTS: dict[str, RowDraft] = {
    kind.name: kind
    for kind in (
        _Eagle3(
            name="eagle3",
            article="an EAGLE-3 draft",
            drafter=Eagle3,
            n_open=8,
            variants={
                "": {},
                "eagle3.1": {"fc_norm": True, "norm_output": True, "n_draft_vocab": 200},
                "two layers": {"n_layer": 2, "qk_norm": True, "target_layers": (0, 2, 4)},
            },
            lengths=(8,),
            n_perm=4,
            perm_variants=(
                {"norm_output": True},
                {"reduced": True},
                {"read_token": True},
                {"target_layers": (0, 2, 4)},
                {"target_layers": (4,)},
                {"target_layers": (0, 1, 2, 3, 4)},
            ),
            perm_lengths=tuple(range(1, 17)),
        ),
        _DFlash(
            name="dflash",
            article="a DFlash draft",
            drafter=DFlash,
            n_open=None,
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
            perm_variants=(
                *dflash_tools.KINDS.values(),
                {"reduced": True},
                {"reduced": True, **dflash_tools.KINDS["dflash2"]},
                {"reduced": True, **dflash_tools.KINDS["dspark"]},
                {"target_layers": (0, 2, 4)},
                {"target_layers": (4,)},
                {"causal": True},
                {"sliding_window": 17},
                {"sliding_window": 17, "window_pattern": (True, False)},
            ),
            perm_lengths=tuple(range(1, 8)),
            faults=("Shifted", "Permuted", "NotANumber", "Swapped"),
        ),
        _Mtp(
            name="mtp",
            article="an MTP head",
            drafter=Mtp,
            n_open=8,
            variants={"": {}, "cohere2moe": {"kind": "cohere2moe"}},
            lengths=(8,),
            n_perm=4,
            perm_arch="glm4moe",
            perm_lengths=tuple(range(1, 9)),
            tier="release",
        ),
        _Mtp(
            name="several heads",
            article="an MTP head",
            drafter=Mtp,
            n_open=3,
            variants={"": {}, "hy_v3": {"kind": "hy_v3"}, "mimo2": {"kind": "mimo2"}},
            lengths=(3,),
            n_perm=3,
            kind="step35",
            n_heads=3,
            perm_arch="step35",
            perm_lengths=(1, 2, 3),
            tier="slow",
        ),
        _SmallModel(
            name="draft-model",
            article="a model that generates text",
            drafter=SmallModel,
            n_open=4,
            variants={"": {}, **{k: {"kind": k} for k in ("gemma3", "qwen35", "mamba", "rwkv7")}},
            lengths=(4,),
            n_perm=4,
            n_ubatches=(12, 32),
            faults=("Deaf",),
            # Where rows are summed over other sequences' cells, near ties are another token.
            unified=(False,),
            rtol=1e-4,
        ),
    )
}
# Those that lie in a file of their own, of an architecture of its own.
OWN_FILES = ["eagle3", "dflash"]
READ_ROWS = [name for name, kind in ROW_DRAFTS.items() if not isinstance(kind, _SmallModel)]
# Each kind with its plain draft, and with every variant.
PLAIN = [(name, "") for name in ROW_DRAFTS]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    tier = ROW_DRAFTS[name].tier
    return [getattr(pytest.mark, tier)] if tier else []


def marked(name: str, *more: object, is_release: bool = False) -> Any:
    marks = [pytest.mark.release] if is_release else _marks(name)
    return pytest.param(name, *more, marks=marks)


each_kind = pytest.mark.parametrize("name", [marked(name) for name in ROW_DRAFTS])
each_that_reads_rows = pytest.mark.parametrize("name", [marked(name) for name in READ_ROWS])
VARIANTS = [(name, variant) for name, kind in ROW_DRAFTS.items() for variant in kind.variants]


Make = Callable[[], AnyDrafter]
Way = Callable[[RowDraft, Make], None]


def along_rounds(kind: RowDraft, make: Make) -> None:
    kind.check_perfect(generate(kind.perm_loop(make()), SequenceState(), kind.perm_prompt(20), 40))


def along_ubatches(kind: RowDraft, make: Make) -> None:
    for n_ubatch in kind.n_ubatches:
        loop, seq = kind.perm_loop(make(), n_batch=64, n_ubatch=n_ubatch), SequenceState()
        for size in (9, 31, 32, 33, 64, 65):
            kind.check_perfect(generate(loop, seq, kind.perm_prompt(size, seed=size), 12))


def along_a_conversation(kind: RowDraft, make: Make) -> None:
    """A text that continues from before its end, and the same again."""
    loop, seq = kind.perm_loop(make()), SequenceState()
    run = generate(loop, seq, kind.perm_prompt(40), 31)
    for cut in (0, 1, 2, 5, 31, 32, 33, 50):
        kept = run.text[: len(run.text) - cut]
        for _ in range(2):
            kind.check_perfect(generate(loop, seq, kept, 22))
        for _ in range(2):
            kind.check_perfect(generate(loop, seq, kind.further(kept, 3), 22))
        run = generate(loop, seq, kind.perm_prompt(40), 31)


def along_restored_states(kind: RowDraft, make: Make) -> None:
    """Saved, then others, then there again and in another context."""
    loop, seq = kind.perm_loop(make()), SequenceState()
    run = generate(loop, seq, kind.perm_prompt(40), 21)
    saved, state = loop.target.memory.save(), loop.drafter.save(0)
    generate(loop, seq, kind.perm_prompt(60, seed=5), 9)
    for into in (loop, kind.perm_loop(make())):
        into.target.memory.restore(0, saved)
        into.drafter.restore(0, state, len(run.text))
        there = SequenceState(0, list(run.text), len(run.text) - 1)
        kind.check_perfect(generate(into, there, kind.further(run.text, 1), 21))


def along_forks(kind: RowDraft, make: Make) -> None:
    """Copies that go on from the text, and from before its end."""
    for kv_unified in kind.unified:
        loop = kind.perm_loop(make(), n_ctx=1024, n_seq_max=4, kv_unified=kv_unified)
        first = SequenceState()
        run = generate(loop, first, kind.perm_prompt(40), 20)
        for i in range(1, 4):
            seq = forked(loop, first, i)
            assert loop.target.memory.positions(i)[1] == len(run.text) - 2
            shared = run.text[: 52 - i]
            kind.check_perfect(
                generate(loop, seq, shared if i % 2 else kind.further(shared, 3), 15)
            )
        kind.check_perfect(generate(loop, first, kind.further(run.text, 2), 15))


def along_sequences_in_turn(kind: RowDraft, make: Make) -> None:
    """Each comes back to its own conversation, after all the others."""
    for kv_unified in kind.unified:
        for n_seqs in (1, 2, 5, 8):
            loop = kind.perm_loop(make(), n_ctx=1024, n_seq_max=n_seqs, kv_unified=kv_unified)
            texts = [kind.perm_prompt(9 + 7 * i, seed=i) for i in range(n_seqs)]
            for seq in [SequenceState(i) for i in range(n_seqs)] * 2:
                run = generate(loop, seq, texts[seq.seq_id], 9 + seq.seq_id)
                kind.check_perfect(run)
                texts[seq.seq_id] = kind.further(run.text, 5)


def along_shared_rounds(kind: RowDraft, make: Make) -> None:
    """Drafts of 1 to 8 sequences in one decode, of which each has another length left."""
    for n_seqs in range(1, 9):
        requests = [
            Request(
                tuple(kind.perm_prompt(9 + 7 * i % 40, seed=i)), 5 + 11 * i % 37, arrival=i // 2
            )
            for i in range(2 * n_seqs)
        ]
        texts = [kind.text(r.prompt, r.max_tokens) for r in requests]
        drafter = make()
        with kind.context(
            opened(kind.perm_target()), drafter, n_ctx=128 * n_seqs, n_seq_max=n_seqs, n_batch=256,
            kv_unified=kind.unified[(n_seqs + 1) % len(kind.unified)],
        ) as context:  # fmt: skip
            traffic = Traffic(Round(context, drafter), requests, texts, n_seqs)
            answers = traffic.serve()
            traffic.check()
        for answer in answers:
            assert answer.stats.reason_off is None
            assert answer.stats.accepted == answer.stats.drafted
        assert sum(answer.stats.drafted for answer in answers) > 10 * n_seqs
        drafter.close()


PATHS = (
    along_rounds, along_ubatches, along_a_conversation, along_restored_states, along_forks,
    along_sequences_in_turn, along_shared_rounds,
)  # fmt: skip
