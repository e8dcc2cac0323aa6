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

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyllama_spec.drafters.base import (
    NO_DRAFT,
    Committed,
    Draft,
    Drafter,
    DraftRequest,
    SequenceErrors,
    TokenPrior,
)
from pyllama_spec.drafters.eagle3.pairs import Choice, Pairs
from pyllama_spec.drafters.fingerprint import fingerprint
from pyllama_spec.engine.batch import Batch
from pyllama_spec.engine.checks import count, instance, real
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.model import Model, Progress
from pyllama_spec.errors import ArgumentError, EngineError, PyllamaSpecError


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


_Item = TypeVar("_Item", DraftRequest, _Chain)


class Eagle3(Drafter):
    """Drafts with an EAGLE-3 head, in a chain.

    Args:
        model: the head, or the path of its GGUF (docs/eagle3.md).
        max_draft: the most tokens to draft at once.
        n_ctx: pairs of a sequence that the head remembers; None for as many as the target. Fewer
            make a window: the oldest are forgotten, and the head goes on.
        p_min: end a draft before a token that the head gives a lower probability.
        n_gpu_layers, progress: for a head given as a path, as of Model.

    Raises:
        ModelLoadError: the file cannot be read, or its parts contradict each other.
        ArgumentError: it is no EAGLE-3 head, or a number is out of range.

    """

    name = "eagle3"

    def __init__(
        self,
        model: Model | str | os.PathLike[str],
        max_draft: int = 4,
        *,
        n_ctx: int | None = None,
        p_min: float = 0.0,
        n_gpu_layers: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.max_draft = count(max_draft, "max_draft", 1)
        self.p_min = real(p_min, "p_min", 0.0)
        self._n_ctx = None if n_ctx is None else count(n_ctx, "n_ctx", 1)
        instance(model, (Model, str, os.PathLike), "model", "; give a Model or a path")
        self._owns_model = not isinstance(model, Model)
        self.model = (
            model
            if isinstance(model, Model)
            else Model(model, n_gpu_layers=n_gpu_layers, progress=progress)
        )
        if self.model.info.arch != "eagle3":
            arch = self.model.info.arch
            self.close()
            raise ArgumentError(f"{self.model.path.name} is of kind {arch!r}, not an EAGLE-3 draft")
        self.target_layers = self.model.target_layers
        self._target: Context | None = None
        self._pairs: Pairs | None = None
        self._step = Batch(1)
        self._n_features = 0

    def check(self, target: Model) -> None:
        """Raises unless the head was made for the target, with the first difference."""
        self.model.check_draft_of(target)

    @property
    def attached_to(self) -> Context | None:
        """The target whose threads it shares."""
        return self._target

    def attach(self, target: Context) -> None:
        """Opens the head's context beside the target's, whose threads it shares.

        Raises:
            ArgumentError: the head was made for another target, with the first difference.
            OutOfMemoryError: there is not enough memory for it.

        """
        instance(target, Context, "target")
        self.check(target.model)
        if self._pairs is not None:
            if self._target is target:
                return
            self._pairs.context.close()
            self._target = self._pairs = None  # also where the next one cannot be opened
        params = target.params
        n_window = min(self._n_ctx or target.n_ctx_seq, target.n_ctx_seq)
        n_ctx = n_window * params.n_seq_max
        if params.kv_unified:  # together they have no more tokens than the target has room for
            n_ctx = min(n_ctx, target.n_ctx_seq)
        # The guesses of a sequence stay until its next draft.
        n_ctx += self.max_draft * params.n_seq_max
        n_batch = max(min(params.n_batch, params.n_ubatch), params.n_seq_max)
        context = Context(
            self.model, target=target, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch,
            n_seq_max=params.n_seq_max, n_outputs_max=params.n_seq_max,
            kv_unified=params.kv_unified, n_threads=target.n_threads,
            flash_attn=params.flash_attn, type_k=params.type_k,
            type_v=params.type_v, offload_kqv=params.offload_kqv, is_window=True,
        )  # fmt: skip
        info = self.model.info
        self._n_features = len(self.target_layers) * target.model.info.n_embd
        self._target, self._pairs = target, Pairs(context, self._n_features, n_window)
        self._step = Batch(params.n_seq_max, n_row=info.n_embd, n_model_row=info.n_embd_inp)
        self._step.hidden_rows = True
        self._step.logits = False

    def _opened(self) -> Pairs:
        if self._pairs is None:
            raise ArgumentError("the draft is not attached to a target: call attach() first")
        return self._pairs

    @property
    def context(self) -> Context | None:
        """The head's context; None before attach()."""
        return None if self._pairs is None else self._pairs.context

    @property
    def n_calls(self) -> int:
        """How many decodes of the head were made since attach()."""
        return 0 if self._pairs is None else self._pairs.n_calls

    def commit(self, done: Sequence[Committed]) -> None:
        """Notes tokens and their rows. Pairs of a prompt are fed; others wait for propose()."""
        self._opened().commit(done)

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Feeds the pairs that were committed since the last draft, and drafts from the last ones.

        One call of the head feeds all sequences, and one more drafts each further token of all.

        Raises:
            SequenceErrors: with the drafts of those sequences that did not fail.

        """
        pairs = self._opened()
        errors: dict[int, Exception] = {}
        asked = _passed(requests, self._can_draft, errors)
        found = pairs.ask(r.seq for r in asked) if asked else {}
        chains = [_Chain(r, pairs.n_fed(r.seq), found[r.seq]) for r in asked]
        going = _passed(chains, self._extend, errors)
        while going:
            self._step_all(going)
            going = _passed(going, self._extend, errors)
        drafts = {c.seq: Draft(c.ids, c.p, c.candidates) for c in chains if c.seq not in errors}
        if errors:
            raise SequenceErrors(errors, drafts)
        return [drafts.get(request.seq, NO_DRAFT) for request in requests]

    def _can_draft(self, request: DraftRequest) -> bool:
        tokens = self._opened().of(request.seq).tokens
        if request.n < 1 or len(tokens) < 2:
            return False
        if tokens[-1] != request.tokens[-1]:
            raise ArgumentError(
                f"token {request.tokens[-1]} is pending, and {tokens[-1]} was committed last"
            )
        return True

    def _extend(self, chain: _Chain) -> bool:
        """Puts the chosen token to the draft; whether another one is wanted behind it."""
        choice = chain.choice
        token, p = _choose(choice, chain.request.prior, chain.ids)
        if p < self.p_min:
            return False
        chain.ids.append(token)
        chain.p.append(p)
        chain.candidates.append(list(zip(choice.ids, choice.p, strict=True)))
        return len(chain.ids) < min(chain.request.n, self.max_draft)

    def _step_all(self, chains: Sequence[_Chain]) -> None:
        """Feeds each chain its newest token with the head's own row of it."""
        pairs, step = self._opened(), self._step
        step.clear()
        for chain in chains:
            step.add(
                chain.ids[-1], chain.position + len(chain.ids) - 1, chain.request.seq,
                output=True, row=chain.choice.row,
            )  # fmt: skip
        pairs.decode(step)
        for i, chain in enumerate(chains):
            chain.choice = Choice(*pairs.context.draft_candidates(i))

    def resume_at(self, seq: int, n_keep: int) -> int:
        """How many of the first n_keep tokens the target may keep: those whose rows are here."""
        return self._opened().resume_at(seq, n_keep)

    def truncate(self, seq: int, n_keep: int) -> None:
        """Keeps the pairs of the first n_keep tokens."""
        if self._pairs is not None:
            self._pairs.truncate(seq, n_keep)

    def copy(self, seq: int, to: int) -> None:
        """Lets `to` begin as a copy of `seq`."""
        self._opened().copy(seq, to)

    def save(self, seq: int) -> bytes:
        """What it knows of a sequence, for restore() of a head with the same file and settings."""
        return self._opened().save(seq, fingerprint(self.model, self._n_features))

    def restore(self, seq: int, data: bytes) -> int:
        """Puts back what save() gave.

        Returns:
            The number of tokens that it knows of the sequence now.

        Raises:
            ArgumentError: the state is damaged, or of another draft or other settings. The sequence
                is forgotten then.

        """
        return self._opened().restore(seq, data, fingerprint(self.model, self._n_features))

    def describe(self) -> dict[str, Any]:
        """Its file, its sizes and the layers that it reads."""
        info = self.model.info
        return {
            "path": str(self.model.path),
            "architecture": info.arch,
            "n_params": info.n_params,
            "size_bytes": info.size_bytes,
            "n_layer": info.n_layer,
            "n_embd": info.n_embd,
            "target_layers": list(self.target_layers),
        }

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._owns_model and self.model.is_closed

    def close(self) -> None:
        """Frees the head's context, and the model if it was given as a path."""
        with contextlib.suppress(PyllamaSpecError, AttributeError):
            if self._pairs is not None:
                self._pairs.context.close()
        self._target = self._pairs = None
        if self._owns_model:
            self.model.close()


def _passed(
    items: Sequence[_Item], can_go_on: Callable[[_Item], bool], errors: dict[int, Exception]
) -> list[_Item]:
    """Those that can go on. An exception is of its sequence alone, and noted."""
    passed: list[_Item] = []
    for item in items:
        try:
            if can_go_on(item):
                passed.append(item)
        except Exception as error:  # noqa: BLE001, PERF203 - such as NaN, or a prior that fails
            errors[item.seq] = error
    return passed


def _choose(choice: Choice, prior: TokenPrior | None, drafted: Sequence[int]) -> tuple[int, float]:
    """The token to draft and its probability.

    With a prior it is the likeliest of a linear mixture, of which the head's distribution is known
    at its likeliest tokens: another one is hardly ever chosen.

    Raises:
        EngineError: the head computed NaN.

    """
    token, p = choice.ids[0], choice.p[0]
    if math.isnan(p):
        raise EngineError("the head computed NaN: rows of the target, or its own weights, have")
    votes = () if prior is None else prior(drafted)
    if not votes:
        return token, p
    scores = dict(zip(choice.ids, choice.p, strict=True))
    for vote in votes:
        scores[vote.token] = scores.get(vote.token, 0.0) + vote.weight * vote.p
    # Among equals the head's own choice.
    best = max(scores, key=lambda id_: (scores[id_], id_ == token))
    return best, scores[best] / (1.0 + sum(vote.weight for vote in votes))
