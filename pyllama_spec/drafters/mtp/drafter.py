"""MTP ("nextn"): a head trained with the target, in the target's own file.

At position P the head reads the token x[P] and the row of x[P-1], its *pair*, as the engine's own
driver has it; before the first token stands a row of zeros:

    position        0          1          2          3
    token         x[0]       x[1]       x[2]       x[3] = pending
    row of       zeros       x[0]       x[1]       x[2]        from the target
                                                     |
                                                     +-> first drafted token d[1], row h[1]
    then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...

Which row of the target that is depends on the architecture: the engine's graph defines it, and
Model gives it as HEAD_ROWS. Which pairs stay, and what a draft costs: drafters/chain.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.chain import Chain, ChainDrafter
from pyllama_spec.drafters.draft_weights import note_of_few_bits
from pyllama_spec.drafters.model_drafter import add_lookup
from pyllama_spec.drafters.mtp.heads import Guesses, HeadsMemory
from pyllama_spec.drafters.mtp.memory import MtpMemory
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import HEAD_ROWS, Model, Progress
from pyllama_spec.errors import ArgumentError

# Tokens that a head drafts per round by default: each costs a layer and the whole
# output matrix.
_MAX_DRAFT = 3
# And with a controller that ends drafts where they do not pay.
_MAX_ADAPTIVE = 6
# The engine's limit of a context.
_MAX_SEQUENCES = 256


class Mtp(ChainDrafter[MtpMemory | HeadsMemory]):
    """Drafts with the MTP heads of the target's own file, in a chain.

    Args:
        model: None for the target's own head, which has to be loaded with load_mtp=True; or a file
            with the head of such a target, with the same embedding and output.
        max_draft: the maximum number of tokens of a draft. If the file has several heads, each
            drafts one token, and check() lowers max_draft to their number.
        n_ctx: the number of pairs of each sequence that the head remembers; None for as many as the
            target. With fewer, it drops the oldest pairs and continues.
        p_min: end a draft before a token with a lower probability.
        n_output: the number of vocabulary ids that the heads choose among; those of the text are
            always among them (output_part.py). 0 for all; None for a part if attach() measures that
            to be cheaper.
        n_gpu_layers, devices, rpc_servers, progress: arguments of Model, for a head given as a
            path.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file has no head that this version knows, or a number is out of range.

    """

    can_be_target = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str] | None = None,
        max_draft: int = _MAX_DRAFT,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_output: int | None = None,
        n_gpu_layers: int = 0,
        devices: Sequence[str] | None = None,
        rpc_servers: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(
            model, "mtp", "an MTP head", max_draft=max_draft, n_ctx=n_ctx, p_min=p_min,
            n_output=n_output, n_gpu_layers=n_gpu_layers, devices=devices,
            rpc_servers=rpc_servers, progress=progress,
        )  # fmt: skip
        self.wants_head = model is None
        self._max_draft = self.max_draft

    def load(self, path: Any, **how: Any) -> Model:
        """Loads a head's file."""
        return Model(path, load_mtp=True, **how)

    def why_not(self, model: Model, kind: str) -> str:
        """The reason why a model has no head to draft with; "" if it has one."""
        return "" if model.info.has_head else why_no_head(model)

    def layers_read(self) -> tuple[int, ...]:
        """The target rows that the head reads."""
        return (HEAD_ROWS,)

    def check(self, target: Model) -> None:
        """Raises unless the target has a head, or this head was made for it.

        From here on max_draft is known: of several heads each drafts one token, and buffers, bounds
        and costs depend on it before attach(). With copies beside the heads they depend on the
        given one, since a copy may be longer than what the heads draft.
        """
        if not self.wants_head:
            super().check(target)
        elif not target.info.has_head:
            raise ArgumentError(f'draft="mtp": {target.path.name} {why_no_head(target)}')
        n_heads = (target if self.wants_head else self.model).info.n_heads
        self.max_draft = self._max_draft if n_heads == 1 else min(self._max_draft, n_heads)

    def attach(self, target: Context) -> None:
        """Opens the head's context, which shares the target's threads.

        Raises:
            ArgumentError: the target has no head, or the head was made for another one.
            OutOfMemoryError: there is not enough memory for its context.

        """
        if self.wants_head and isinstance(target, Context):
            self.check(target.model)
            self._model = target.model
        super().attach(target)

    def open_memory(self, target: Context) -> MtpMemory | HeadsMemory:
        """Opens room for as many pairs as the target has tokens, and for guesses after them.

        Raises:
            ArgumentError: there are several heads, and too many sequences for them.

        """
        n_heads, n_seqs = self.model.info.n_heads, target.params.n_seq_max
        if n_heads > 1 and n_seqs * n_heads > _MAX_SEQUENCES:
            raise ArgumentError(
                f"{n_seqs} sequences with {n_heads} MTP heads each are more than the engine's "
                f"{_MAX_SEQUENCES}; {_MAX_SEQUENCES // n_heads} sequences are possible"
            )
        context, n_window = self.open_head(target, is_own=True, n_lanes=n_heads)
        weights = self.model.head_weights
        if weights is not None:
            less = "the head may be right less often than it was trained to be"
            self.add_note(note_of_few_bits("the head", weights.type, weights.bits, less))
        is_short = n_window < target.n_ctx_seq
        if n_heads > 1:
            return HeadsMemory(context, self._n_features, n_window, n_heads, is_short=is_short)
        return MtpMemory(context, self._n_features, n_window, is_short=is_short)

    def step_all(self, chains: Sequence[Chain]) -> None:
        """Feeds each chain its newest token; with several heads, to the next head."""
        memory = self.memory_or_fail()
        if not isinstance(memory, HeadsMemory):
            super().step_all(chains)
            return
        for one in chains:
            assert one.choice is not None  # it was extended
            one.rows.append(one.choice.row.copy())
        # All have been extended as often.
        head = len(chains[0].ids)
        choices = memory.guess(head, {c.seq: Guesses(c.ids, c.rows) for c in chains})
        for one in chains:
            one.choice = choices[one.seq]

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


def why_no_head(model: Model) -> str:
    """The reason why a model cannot draft with its own head, as the end of a sentence."""
    info = model.info
    if not info.n_heads:
        return f"({info.arch}) has no MTP head; {_INSTEAD}"
    try:
        model.check_draft_of(model)
    except ArgumentError as error:
        return f"cannot draft for itself: {str(error).partition(': ')[2]}; {_INSTEAD}"
    return f"was opened without its MTP head; {_INSTEAD}"


_INSTEAD = 'give a draft\'s file, or draft="suffix"'


def open_mtp(path: Path | None, options: DraftOptions) -> Drafter:
    """Opens the target's or a file's head, with lookups unless options.lookup is 0.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: the file has no head that this version knows.

    """
    head = Mtp(path, options.length(_MAX_DRAFT, _MAX_ADAPTIVE), **options.of_file())
    return add_lookup(head, options)
