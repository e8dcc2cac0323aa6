"""A round for one sequence at a time, in which the caller makes each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyllama_spec.drafters.base import Drafter
from pyllama_spec.drafters.draws import TokenDraws
from pyllama_spec.engine.context import Context
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.acceptance import RowObserver, TokenSampler
from pyllama_spec.speculative.controller.base import Controller
from pyllama_spec.speculative.round import Round
from pyllama_spec.speculative.sequence import SequenceRun, SequenceState, Step
from pyllama_spec.speculative.stats import SpeculationStats, Timing


class SpeculativeLoop:
    """Generates on one context with one drafter: prefill(), then generate().

    Args:
        target: the target's context, opened with the drafter's target_layers.
        drafter: the drafter to ask.
        n_draft: the maximum number of tokens to draft per round; None for the drafter's max_draft.
        controller: decides how many of them are drafted and verified; None for all, in every round.

    Attributes:
        round, target, drafter, max_draft: the round, and what it has.

    Raises:
        ArgumentError: the context does not keep the layer inputs that the drafter wants, or the
            drafter was made for another target.
    """

    def __init__(
        self,
        target: Context,
        drafter: Drafter,
        n_draft: int | None = None,
        controller: Controller | None = None,
    ) -> None:
        self._use(Round(target, drafter, n_draft, controller))

    @classmethod
    def of(cls, round_: Round) -> SpeculativeLoop:
        """A loop on an existing round."""
        loop = cls.__new__(cls)
        loop._use(round_)
        return loop

    def _use(self, round_: Round) -> None:
        self.round, self.target, self.drafter = round_, round_.target, round_.drafter
        self.max_draft = round_.max_draft
        self._run = SequenceRun(SequenceState(), ())

    @property
    def stats(self) -> SpeculationStats:
        """The counts of the last request."""
        return self._run.stats

    @property
    def timing(self) -> Timing:
        """The seconds of the last request."""
        return self._run.timing

    def prefill(
        self,
        state: SequenceState,
        prompt: Sequence[int],
        *,
        remember: bool = True,
        media: Sequence[PlacedRows] = (),
    ) -> None:
        """Prepares the sequence for the prompt, and reuses the common prefix it holds.

        Afterwards the target's last batch ends with the logits of the prompt's last token.

        Args:
            state: the sequence.
            prompt: the ids of the prompt.
            remember: whether a drafter may keep the text for later requests.
            media: the rows of images in the prompt, see engine.media.joined().

        Raises:
            ContextFullError: the prompt does not fit the context.
            ArgumentError: the prompt is empty, or an id is outside the vocabulary.
        """
        run = SequenceRun(state, prompt, remember=remember, media=media)
        self.round.begin(run)
        self._run = run
        while run.n_missing:
            _raise_errors(self.round.step([run]))

    def generate(
        self,
        state: SequenceState,
        sampler: TokenSampler,
        max_tokens: int,
        observe: RowObserver | None = None,
        draws: TokenDraws | None = None,
    ) -> Iterator[Step]:
        """Generates after prefill(). Closing the generator leaves the sequence consistent.

        Args:
            state: the sequence.
            sampler: chooses tokens.
            max_tokens: the maximum number of tokens to generate.
            observe: called with each committed token and its row.
            draws: the random draws of a drafter, for rejection sampling or shared noise; None for
                greedy drafts.

        Yields:
            A Step per round, the first one with the token that the prompt's last row gave. The
            last one has a finish_reason.

        Raises:
            ArgumentError: prefill() was not called for this sequence last, or max_tokens is below
                1.
        """
        run = self._run
        if run.state is not state or run.sampler is not None or run.ready_row is None:
            raise ArgumentError(
                "sequence",
                problem="is not prepared",
                remedy="call prefill() with it right before generate()",
            )
        if max_tokens < 1:
            raise ArgumentError("max_tokens", max_tokens, "at least 1")
        run.sampler, run.max_tokens, run.observe = sampler, max_tokens, observe
        run.draws = draws
        self.round.choose_acceptance(run)
        step = self.round.draw_first(run)
        _raise_errors([(run, step)])
        while step.finish_reason is None:
            yield step
            steps = self.round.step([run])
            _raise_errors(steps)
            step = steps[0][1]
        # Before the last step goes out: with it the caller may let another thread decode.
        self.target.pause_threads()
        yield step


def _raise_errors(steps: Sequence[tuple[SequenceRun, Step]]) -> None:
    for _, step in steps:
        if step.error is not None:
            raise step.error
