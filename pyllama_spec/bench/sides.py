"""The two sides of the comparison: one model, and on it what Llama opens without and with a draft.

Both are the same loop with the same parameters, as loading.open_runtime() makes them for Llama: the
plain side has no layer inputs, no draft's context and no room for a verify batch's logits. They
share the weights and nothing else; a second Llama would hold the weights twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time

from pyllama_spec.bench.config import BenchConfig, draft_file
from pyllama_spec.bench.synthetic import SyntheticDrafter
from pyllama_spec.drafters import Drafter, DraftOptions, NoDrafter
from pyllama_spec.drafters.automatic import make_drafter_for
from pyllama_spec.drafters.options import draft_place
from pyllama_spec.drafters.registry import MTP
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.engine.closeable import Closeable
from pyllama_spec.engine.transfers import NO_TRANSFERS, Transfers
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.requests.generation import Runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import (
    RoundCounts,
    RowObserver,
    SequenceState,
    SpeculativeLoop,
    make_controller,
    why_exact,
)
from pyllama_spec.speculative.draft_sources import SourceCounts
from pyllama_spec.speculative.realised_gain import RealisedGain
from pyllama_spec.speculative.rejection import accepting_sampler


@dataclass(frozen=True, slots=True)
class Run:
    """One text of one side.

    Attributes:
        tokens: all committed ids; an end token is the last of them.
        rounds: (drafted, accepted) of each round.
        is_stopped: whether an end token cut the last round.
        prompt_s: the time of the prompt, to its first token.
        decode_s: the time of all rounds.
        draft_s, verify_s: the parts of decode_s spent in the drafter and in the target's decode.
        cpu_s: processor time of all threads of the process, prompt and rounds.
        rounds_cpu_s: the part of cpu_s spent in the rounds.
        state: the state of SpeculationStats: none, used, idle or disabled.
        reason_off: why the drafter was disabled; None if it was not.
        disabled_since: the number of rounds before it was disabled.
        only_copies: whether a draft model contributed nothing beside its copies.
        transfers: the transfers between host and devices in all rounds, for target and draft.
        asked, probes, proposed, expected, gain_expected, gain_realised, by_source, probe_s,
        round_counts: see SpeculationStats.

    """

    tokens: tuple[int, ...]
    rounds: tuple[tuple[int, int], ...]
    is_stopped: bool
    prompt_s: float
    decode_s: float
    draft_s: float = 0.0
    verify_s: float = 0.0
    cpu_s: float = 0.0
    rounds_cpu_s: float = 0.0
    state: str = "none"
    reason_off: str | None = None
    disabled_since: int | None = None
    only_copies: bool = False
    transfers: Transfers = NO_TRANSFERS
    asked: int = 0
    probes: int = 0
    proposed: int = 0
    expected: float = 0.0
    gain_expected: float = 0.0
    gain_realised: RealisedGain = field(default_factory=RealisedGain)
    by_source: Mapping[str, SourceCounts] = field(default_factory=dict)
    probe_s: float = 0.0
    round_counts: tuple[RoundCounts, ...] = ()

    @property
    def n_decoded(self) -> int:
        """Tokens that rounds committed: all but the first."""
        return max(len(self.tokens) - 1, 0)


class Side(Closeable):
    """One way to generate, on a model that both sides share.

    Args:
        runtime: its context and loop.
        options: the options for every text.
        drafter: its drafter, if any; closed with it.
        synthetic: the drafter that needs each text beforehand, if there is one.

    """

    def __init__(
        self,
        runtime: Runtime,
        options: RequestOptions,
        drafter: Drafter | None = None,
        synthetic: SyntheticDrafter | None = None,
    ) -> None:
        self.runtime = runtime
        self.synthetic = synthetic
        self._drafter = drafter
        self._options = options
        self._open = OpenModel(runtime.model, runtime, own_drafter=drafter)

    @property
    def name(self) -> str:
        """The drafter's name in the statistics."""
        return self._open.drafter_name

    @property
    def draft_placement(self) -> dict[str, int] | None:
        """The number of the draft's layers by device; None for a drafter without a model."""
        placement: dict[str, int] | None = None
        if self._drafter is not None:
            placement = self._drafter.describe().get("placement")
        return placement

    @property
    def draft_path(self) -> Path | None:
        """The draft's own file; None for a head in the target's file, or without a model."""
        return draft_file(self._drafter)

    @property
    def draft_note(self) -> str:
        """The drafter's remark, such as why auto chose it; "" for none."""
        return "" if self._drafter is None else self.runtime.round.drafter.note

    def run(self, prompt: Sequence[int], n_tokens: int, observe: RowObserver | None = None) -> Run:
        """Generates once from an empty memory, without reuse of an earlier prompt.

        Args:
            prompt: token ids.
            n_tokens: the most tokens to generate.
            observe: called with each committed token and its row; for runs that are not timed.

        """
        self._open.reset()
        loop, sequence = SpeculativeLoop.of(self.runtime.round), SequenceState()
        vocab = self.runtime.model.vocab
        params, accepts = self._options.sampler_params(vocab), self.runtime.acceptance
        sampler, rejection, noise = accepting_sampler(
            self.runtime.model, params, accepts, why_exact(params, accepts)
        )
        start = process_time()
        try:
            # A second run would copy the first one.
            loop.prefill(sequence, prompt, remember=False)
            rounds = loop.generate(sequence, sampler, n_tokens, observe, rejection, noise)
            steps = [next(rounds)]  # from the prompt
            drawn = process_time()
            before = self.runtime.context.transfers_with_drafts
            steps += rounds
            transfers = self.runtime.context.transfers_with_drafts.since(before)
        finally:
            for one in (rejection, noise, sampler):
                if one is not None:
                    one.close()
        end = process_time()
        timing, stats = loop.timing, loop.stats
        return Run(
            tokens=tuple(token for step in steps for token in step.tokens),
            rounds=tuple((step.n_drafted, step.n_accepted) for step in steps[1:]),
            is_stopped=steps[-1].finish_reason == "stop",
            prompt_s=timing.prompt_s,
            decode_s=timing.decode_s,
            draft_s=timing.draft_s,
            verify_s=timing.verify_s,
            cpu_s=end - start,
            rounds_cpu_s=end - drawn,
            reason_off=stats.reason_off if stats.state == "disabled" else None,
            state=stats.state,
            disabled_since=stats.off_since,
            only_copies=bool(stats.copies_alone),
            transfers=transfers,
            asked=stats.asked,
            probes=stats.probes,
            proposed=stats.proposed,
            expected=stats.expected,
            gain_expected=stats.gain_expected,
            gain_realised=stats.gain_realised,
            by_source=stats.by_source,
            probe_s=stats.probe_s,
            round_counts=tuple(stats.round_counts),
        )

    def close(self) -> None:
        """Frees the side's context; the last side frees the weights. May be called twice."""
        self._open.close()


def open_sides(model: Model, config: BenchConfig, n_ctx: int) -> tuple[Side, list[Side]]:
    """Opens the plain side, and one side for each draft.

    Raises:
        PyllamaSpecError: what Llama() raises for the same options.

    """
    # The parameters with which Llama opens it.
    params = ContextParams(
        n_ctx=n_ctx, n_batch=512, n_threads=config.n_threads, offload_kqv=config.offload_kqv,
        flash_attn=config.flash_attn, op_offload=config.op_offload,
    )  # fmt: skip
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
    max_draft = config.max_draft
    with contextlib.ExitStack() as stack:
        # What a round costs is what is measured with made-up acceptance, and a copy costs nothing.
        is_file = not isinstance(draft, Drafter) and (draft == MTP or Path(draft).is_file())
        lookup = 0 if config.synthetic_acceptance and is_file else config.lookup
        p_min = config.p_min
        if config.also and not is_file:  # they are of the others
            lookup = p_min = None
        choice = "fixed" if config.synthetic_acceptance else config.controller
        controller = make_controller(choice, p_min)
        place = draft_place(
            config.n_gpu_layers, config.draft_gpu_layers, config.devices, config.rpc_servers
        )
        drafter = make_drafter_for(
            model,
            draft,
            DraftOptions(max_draft, p_min, lookup, is_adaptive=controller.wants_costs, **place),
        )
        own = None if drafter is draft else drafter
        if own is not None:
            stack.callback(own.close)
        synthetic = None
        if config.synthetic_acceptance:
            synthetic = SyntheticDrafter(
                drafter, config.synthetic_acceptance, model.info.n_vocab, config.seed
            )
        runtime = open_runtime(
            model, params, synthetic or drafter, max_draft, controller=controller
        )
        side = Side(runtime, options, own, synthetic)
        stack.pop_all()
    return side
