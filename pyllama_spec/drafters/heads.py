"""The drafter that runs a head of any kind (kinds.py), and a class for each kind of today."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyllama_spec.drafters.base import DraftRequest
from pyllama_spec.drafters.draft_memory import Chain, passed
from pyllama_spec.drafters.kinds import DFLASH, EAGLE3, INSTEAD, MTP, HeadKind
from pyllama_spec.drafters.model_drafter import ModelDrafter
from pyllama_spec.drafters.options import FileOptions
from pyllama_spec.drafters.output_part import reduced_output
from pyllama_spec.drafters.row_memory import BlockMemory, HeadsMemory, Lane, RowMemory
from pyllama_spec.engine.closeable import closed_on_failure
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import HEAD_ROWS, Model
from pyllama_spec.engine.model_info import DraftBlock
from pyllama_spec.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The engine's limit of a context.
_MAX_SEQUENCES = 256


class Head(ModelDrafter[RowMemory]):
    """Drafts with a head that reads the target's rows: in a chain, or a block at a time.

    Attributes:
        kind: the kind of the head.
        block: the layout of its blocks; None for a head that drafts in a chain.
    """

    kind: HeadKind
    block: DraftBlock | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        kind = cls.kind
        cls.name, cls.lengths = kind.name, (kind.max_draft, kind.max_adaptive)

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None,
        max_draft: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(model, max_draft, **options)
        if self._model is not None:
            self.block = self._model.draft_block
        if self.block is not None:
            self.is_stepwise = False
            self.max_draft = min(self.max_draft, self.block.max_draft)

    def check_kind(self, model: Model) -> None:
        """Raises unless a model is a head of this kind."""
        arch = model.info.arch
        if arch != self.kind.arch:
            problem = f"is of kind {arch!r}, not {self.kind.title}"
            raise ArgumentError("draft", model.path.name, problem=problem)

    def can_draft(self, request: DraftRequest) -> bool:
        """Whether tokens are requested, and the draft has the pending one.

        A block's draft may lack the target's last ids: nothing is guessed after one.
        """
        has_last = self.block is None or request.tokens[-1] < self.model.info.n_vocab
        return has_last and super().can_draft(request)

    def open_memory(self, target: Context) -> RowMemory:
        """Opens room for the rows that the head reads, and for guesses after them."""
        params, block = target.params, self.block
        n_heads, n_seqs = max(self.model.info.n_heads, 1), params.n_seq_max
        if n_seqs * n_heads > _MAX_SEQUENCES:
            raise ArgumentError(
                "n_parallel", n_seqs,
                f"at most {_MAX_SEQUENCES // n_heads} sequences with {n_heads} MTP heads each",
            )  # fmt: skip
        n_window = target.n_ctx_seq
        if block is not None and block.n_window is not None:
            # An eighth is forgotten at a time, and a window still remains.
            n_window = min(n_window, -(-block.n_window * 8 // 7) + 8)
        n_window = min(self._n_ctx or n_window, n_window)
        n_outputs = n_seqs * (n_heads if block is None else block.n_slots)
        context = self.open_context(
            target, n_window, self.max_draft if block is None else block.n_slots,
            max(min(params.n_batch, params.n_ubatch), n_outputs), n_outputs,
            n_lanes=n_heads, is_head=not self.kind.arch,
        )  # fmt: skip
        with closed_on_failure(context):
            what = (context, self.kind, self._n_features, n_window, n_heads)
            kind = RowMemory if block is None else BlockMemory
            memory = HeadsMemory(*what) if n_heads > 1 else kind(*what)
            if isinstance(memory, HeadsMemory):
                memory.follow([Lane(*what, i) for i in range(1, n_heads)])
            self._draft_ids = reduced_output(context, self._n_output, target.model)
        return memory

    def draft(self, chains: list[Chain], errors: dict[int, Exception]) -> None:
        """Drafts the tokens of chains, those of a block from left to right."""
        if self.block is None:
            super().draft(chains, errors)
        else:
            passed(chains, self._read_block, errors)

    def _read_block(self, chain: Chain) -> bool:
        memory = self.memory_or_fail()
        assert isinstance(memory, BlockMemory)
        seq, ids = chain.seq, chain.ids
        chain.choice = memory.read(seq, 0, chain.request.tokens[-1])
        while self.extend(chain):
            chain.choice = memory.read(seq, len(ids), ids[-1])
        return False

    def describe(self) -> dict[str, Any]:
        """The head's file, sizes, target layers and block length."""
        block = {} if self.block is None else {"block_size": self.block.n_slots}
        return {**super().describe(), **block}


class Eagle3(Head):
    """Drafts with an EAGLE-3 head, in a chain (docs/eagle3.md).

    Args:
        model: the head, or the path of its GGUF.
        max_draft: the maximum number of tokens of a draft, 4 by default.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file is not an EAGLE-3 head, or a number is out of range.
    """

    kind = EAGLE3


class DFlash(Head):
    """Drafts a block at a time with a DFlash draft; DFlash2 and DSpark are recognised by the file.

    Args:
        model: the draft, or the path of its GGUF (docs/dflash.md).
        max_draft: the maximum number of tokens of a draft, 15 by default. It never has more than a
            block in training.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file is not a DFlash draft, or a number is out of range.

    Attributes:
        block: the layout of its blocks.
    """

    kind = DFLASH
    block: DraftBlock


class Mtp(Head):
    """Drafts with the MTP heads of the target's own file, in a chain.

    Args:
        model: None for the target's own head, which has to be loaded with load_mtp=True; or a file
            with the head of such a target, with the same embedding and output.
        max_draft: the maximum number of tokens of a draft, 3 by default. If the file has several
            heads, each drafts one token, and check() lowers max_draft to their number.
        options: see FileOptions.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file has no head that this version knows, or a number is out of range.
    """

    kind = MTP
    loads_head = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None = None,
        max_draft: int | None = None,
        **options: Unpack[FileOptions],
    ) -> None:
        super().__init__(model, max_draft, **options)
        self.wants_head, self.target_layers = model is None, (HEAD_ROWS,)
        self._max_draft = self.max_draft

    def check_kind(self, model: Model) -> None:
        """Raises unless a model has a head to draft with."""
        info = model.info
        if not info.n_heads:
            problem = f"is not for {model.path.name} ({info.arch}): it has no MTP head"
            raise ArgumentError("draft", "mtp", problem=problem, remedy=INSTEAD)
        if not info.has_head:
            model.check_draft_of(model)

    def check(self, target: Model) -> None:
        """Raises unless the target has a head, or this head was made for it.

        From here on max_draft is known: of several heads each drafts one token, and buffers, bounds
        and costs depend on it before attach(). With copies beside the heads they depend on the
        given one, since a copy may be longer than what the heads draft.
        """
        if self.wants_head:
            self.check_kind(target)
        else:
            super().check(target)
        n_heads = (target if self.wants_head else self.model).info.n_heads
        self.max_draft = self._max_draft if n_heads == 1 else min(self._max_draft, n_heads)

    def attach(self, target: Context) -> None:
        """Opens the head's context, which shares the target's threads."""
        if self.wants_head and isinstance(target, Context):
            self.check(target.model)
            self._model = target.model
        super().attach(target)

    def describe(self) -> dict[str, Any]:
        """The head's file, sizes and devices; {} for a target's head before attach()."""
        if self._model is None:
            return {}
        weights = self._model.head_weights
        return {
            **super().describe(),
            "size_bytes": weights.n_bytes if weights else 0,
            "weights": weights.type if weights else "",
            "n_layer": self._model.info.n_heads,
            "target_layers": [],
            "reads": "the rows that the target's graph has for its MTP head",
        }


def head_class(kind: HeadKind) -> type[Head]:
    """The drafter of a kind: its own class, or one made of its entry."""
    own = {EAGLE3: Eagle3, DFLASH: DFlash, MTP: Mtp}
    return own.get(kind) or type(kind.name, (Head,), {"kind": kind})
