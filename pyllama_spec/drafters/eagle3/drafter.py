"""EAGLE-3: a small head that drafts from the target's own hidden rows (arXiv 2503.01840).

At position P the head reads the token x[P+1] and the row of x[P], its *pair*:

    position        0          1          2          3
    token         x[1]       x[2]       x[3]       x[4] = pending
    row of        x[0]       x[1]       x[2]       x[3]        from the target, as features
                                                     |
                                                     +-> first drafted token d[1], row h[1]
    then            4: (d[1], h[1]) -> d[2], h[2]    5: (d[2], h[2]) -> ...

Pairs with a row of the target stay in the head's memory. Those with a row of its own are guesses:
they are forgotten before the next draft, the accepted ones too, since the target's row is better.
So a rejected token costs nothing, and the call that feeds the accepted pairs is the first step of
the next draft: n drafted tokens are n calls, however many sequences draft together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyllama_spec.drafters.base import NO_DRAFT, Draft, Drafter, DraftRequest, SequenceErrors
from pyllama_spec.drafters.choice import Choice, choose
from pyllama_spec.drafters.eagle3.memory import Eagle3Memory
from pyllama_spec.drafters.model_drafter import ModelDrafter, add_lookup, passed
from pyllama_spec.drafters.options import DraftOptions
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.checks import count
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model, Progress

# Tokens that a head drafts per round where nothing else is said: each costs a decode of its own.
_MAX_DRAFT = 4
# And where only those are drafted that pay.
_MAX_ADAPTIVE = 8


@dataclass(slots=True)
class _Chain:
    """A draft on its way: what was drafted, and what the head says next."""

    request: DraftRequest
    position: int
    choice: Choice
    ids: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def seq(self) -> int:
        """Whose it is."""
        return self.request.seq


class Eagle3(ModelDrafter[Eagle3Memory]):
    """Drafts with an EAGLE-3 head, in a chain.

    Args:
        model: the head, or the path of its GGUF (docs/eagle3.md).
        max_draft: the most tokens to draft at once.
        n_ctx: pairs of a sequence that the head remembers; None for as many as the target. Fewer
            make a window: the oldest are forgotten, and the head goes on.
        p_min: end a draft before a token that the head gives a lower probability.
        n_gpu_layers, devices, rpc_servers, progress: for a head given as a path, as of Model.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: it is no EAGLE-3 head, or a number is out of range.

    """

    is_stepwise = True

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int = 4,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_gpu_layers: int = 0,
        devices: Sequence[str] | None = None,
        rpc_servers: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.max_draft = count(max_draft, "max_draft", 1)
        super().__init__(
            model, "eagle3", "an EAGLE-3 draft", n_ctx=n_ctx, p_min=p_min,
            n_gpu_layers=n_gpu_layers, devices=devices, rpc_servers=rpc_servers,
            progress=progress,
        )  # fmt: skip
        self._step = Batch(1)

    def open_memory(self, target: Context) -> Eagle3Memory:
        """Room for as many pairs as the target has tokens, and for the guesses behind them."""
        params, info = target.params, self.model.info
        n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        n_batch = max(min(params.n_batch, params.n_ubatch), params.n_seq_max)
        # The guesses of a sequence stay until its next draft.
        context = self.open_context(target, n_window, self.max_draft, n_batch, params.n_seq_max)
        self._step = Batch(params.n_seq_max, n_row=info.n_embd, n_model_row=info.n_embd_inp)
        self._step.hidden_rows = True
        self._step.logits = False
        return Eagle3Memory(context, self._n_features, n_window)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Feeds the pairs that were committed since the last draft, and drafts from the last ones.

        One call of the head feeds all sequences, and one more drafts each further token of all.

        Raises:
            SequenceErrors: with the drafts of those sequences that did not fail.

        """
        pairs = self.memory_or_fail()
        errors: dict[int, Exception] = {}
        asked = passed(requests, self.can_draft, errors)
        choices = pairs.ask(r.seq for r in asked) if asked else {}
        chains = [_Chain(r, pairs.n_fed(r.seq), choices[r.seq]) for r in asked]
        going = passed(chains, self._extend, errors)
        while going:
            self._step_all(going)
            going = passed(going, self._extend, errors)
        drafts = {c.seq: Draft(c.ids, c.p, c.candidates) for c in chains if c.seq not in errors}
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts.get(request.seq, NO_DRAFT) for request in requests]

    def _extend(self, chain: _Chain) -> bool:
        """Puts the chosen token to the draft; whether another one is wanted behind it."""
        choice = chain.choice
        token, p = choose(choice, chain.request.prior, chain.ids)
        if p < self.p_min:
            return False
        chain.ids.append(token)
        chain.p.append(p)
        chain.candidates.append(choice.candidates)
        stop = chain.request.stop
        if stop is not None and stop(p):
            return False
        return len(chain.ids) < min(chain.request.n_requested, self.max_draft)

    def _step_all(self, chains: Sequence[_Chain]) -> None:
        """Feeds each chain its newest token with the head's own row of it."""
        pairs, step = self.memory_or_fail(), self._step
        step.clear()
        for chain in chains:
            step.add(
                chain.ids[-1], chain.position + len(chain.ids) - 1, chain.request.seq,
                output=True, row=chain.choice.row,
            )  # fmt: skip
        pairs.decode(step)
        for i, chain in enumerate(chains):
            chain.choice = Choice(*pairs.context.draft_candidates(i))


def open_eagle3(path: Path, options: DraftOptions) -> Drafter:
    """The head of a file, with lookups and n-grams beside it unless options.lookup is 0.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.

    """
    own = _MAX_ADAPTIVE if options.is_adaptive else _MAX_DRAFT
    head = Eagle3(
        path,
        own if options.max_draft is None else max(options.max_draft, 1),
        p_min=options.p_min or 0.0,
        n_gpu_layers=options.n_gpu_layers,
        devices=options.devices,
        rpc_servers=options.rpc_servers,
        progress=options.progress,
    )
    return add_lookup(head, options)
