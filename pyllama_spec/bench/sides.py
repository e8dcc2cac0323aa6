"""The two sides of the comparison: one model, and on it what Llama opens without and with a draft.

Both are the same loop with the same parameters, as open_runtime() makes them for Llama: the plain
side has no layer inputs, no draft's context and no room for a verify batch's logits. They
share the weights and nothing else; a second Llama would hold the weights twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

from pyllama_spec.bench.config import BenchConfig
from pyllama_spec.drafters import Drafter, NoDrafter
from pyllama_spec.drafters.registry import MTP, make_drafter_for
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.llama.open_model import OpenModel, open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.requests.runner import Runtime
from pyllama_spec.speculative import (
    SequenceState,
    SpeculativeLoop,
    make_controller,
    why_exact,
)
from pyllama_spec.speculative.acceptance import accepting_sampler
from pyllama_spec.speculative.stats import SpeculationStats, Timing


@dataclass(frozen=True, slots=True)
class Run:
    """One text of one side. `rounds` are (drafted, accepted); `tokens` end with the end token."""

    tokens: tuple[int, ...]
    rounds: tuple[tuple[int, int], ...]
    is_stopped: bool
    timing: Timing
    stats: SpeculationStats
    cpu_s: float = 0.0
    rounds_cpu_s: float = 0.0


class Side(Closeable):
    """One way to generate, on a model that both sides share."""

    def __init__(
        self,
        runtime: Runtime,
        options: RequestOptions,
        drafter: Drafter | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.runtime = runtime
        self._facts = facts or {}
        self._options = options
        self._open = OpenModel(runtime.model, runtime, own_drafter=drafter)

    @property
    def name(self) -> str:
        """The drafter's name in the statistics."""
        return self.runtime.round.drafter.name

    @property
    def draft_placement(self) -> dict[str, int] | None:
        """The number of the draft's layers by device; None for a drafter without a model."""
        placement: dict[str, int] | None = self._facts.get("placement")
        return placement

    @property
    def draft_path(self) -> Path | None:
        """The draft's own file; None for a head in the target's file, or without a model."""
        path = self._facts.get("path")
        return None if path is None or Path(path) == Path(self.runtime.model.path) else Path(path)

    @property
    def draft_note(self) -> str:
        """The drafter's remark, such as why auto chose it; "" for none."""
        return self.runtime.round.drafter.note

    def run(self, prompt: Sequence[int], n_tokens: int, media: Sequence[PlacedRows] = ()) -> Run:
        """Generates once from an empty memory, without reuse of an earlier prompt."""
        self._open.reset()
        loop, sequence = SpeculativeLoop.of(self.runtime.round), SequenceState()
        vocab = self.runtime.model.vocab
        params, accepts = self._options.sampler_params(vocab), self.runtime.acceptance
        sampler, draws = accepting_sampler(
            self.runtime.model, params, accepts, why_exact(params, accepts)
        )
        start = process_time()
        try:
            # A second run would copy the first one.
            loop.prefill(sequence, prompt, remember=False, media=media)
            rounds = loop.generate(sequence, sampler, n_tokens, None, draws)
            steps = [next(rounds)]  # from the prompt
            drawn = process_time()
            steps += rounds
        finally:
            if draws is not None:
                draws.close()
            sampler.close()
        end = process_time()
        return Run(
            tokens=tuple(token for step in steps for token in step.tokens),
            rounds=tuple((step.n_drafted, step.n_accepted) for step in steps[1:]),
            is_stopped=steps[-1].finish_reason == "stop",
            timing=loop.timing,
            stats=loop.stats,
            cpu_s=end - start,
            rounds_cpu_s=end - drawn,
        )

    def close(self) -> None:
        """Frees the side's context; the last side frees the weights. May be called twice."""
        self._open.close()


def open_sides(model: Model, config: BenchConfig, n_ctx: int) -> tuple[Side, list[Side]]:
    """Opens the plain side, and one side for each draft."""
    # The parameters with which Llama opens it.
    params = replace(config.context_params(), n_ctx=n_ctx)
    options = RequestOptions(
        max_tokens=config.n_tokens, temperature=config.temperature, seed=config.seed
    )
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(Side(open_runtime(model, params, NoDrafter(), None), options))
        specs = [
            stack.enter_context(_open_spec(model, config, draft, params, options))
            for draft in (config.draft, *config.also)
        ]
        stack.pop_all()
    return plain, specs


def _open_spec(
    model: Model,
    config: BenchConfig,
    draft: str | os.PathLike[str] | Drafter,
    params: ContextParams,
    options: RequestOptions,
) -> Side:
    """Opens the side of one draft."""
    with contextlib.ExitStack() as stack:
        is_file = not isinstance(draft, Drafter) and (draft == MTP or Path(draft).is_file())
        if config.also and not is_file:  # they are of the others
            config = replace(config, lookup=None, p_min=None)
        controller = make_controller(config.controller, config.p_min)
        how = config.draft_options(progress=None, is_adaptive=controller.wants_costs)
        drafter = make_drafter_for(model, draft, how)
        own = None if drafter is draft else drafter
        if own is not None:
            stack.callback(own.close)
        runtime = open_runtime(model, params, drafter, config.n_draft, controller=controller)
        side = Side(runtime, options, own, drafter.describe())
        stack.pop_all()
    return side
