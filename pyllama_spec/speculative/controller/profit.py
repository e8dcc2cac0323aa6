"""The profit controller: drafts where that is faster on this machine, as long as it pays."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyllama_spec.drafters.base import DraftStop
from pyllama_spec.speculative.controller.base import (
    NO_GAIN,
    NOT_ASKED,
    Controller,
    ControllerLimits,
    DraftDecision,
    DraftGain,
    KnownCosts,
    Span,
    Spent,
)
from pyllama_spec.speculative.controller.calibration import (
    Acceptance,
    Calibration,
    TextState,
    clipped,
    next_kind,
    survivals_in,
)
from pyllama_spec.speculative.controller.gain_estimate import GainEstimate, ReadingHope, prior_gain
from pyllama_spec.speculative.controller.prices import (
    FREE_SHARE,
    Prices,
    lengths_together,
    thresholds,
)
from pyllama_spec.speculative.controller.round_costs import RoundCosts
from pyllama_spec.speculative.draft_bound import DraftBound, draft_bound

# Reasons not to ask a draft that is not off: _is_early(), and a batch without a free row or a text
# that ends with this round.
_NO_ROOM = DraftDecision(reason="no round had room for a drafted token")
_EARLY = "reading the text so far would take it longer than its drafts could save"
# On and off are this far apart, in shares of a plain round.
_HYSTERESIS = 0.02
# Rounds until a drafter that is off is tried again: the first time, the most while its price is not
# known, the most, and the most for one whose retries are expensive.
_FIRST_RETRY, _UNKNOWN_RETRY, _MAX_RETRY, _DEAR_RETRY = 4, 16, 64, 4096
# All retries together take no more than this share of the time.
_RETRY_SHARE = 0.015
# Rounds without a plain one after which there is one, so that its price stays known.
_PLAIN_EVERY = 128
# The same while it was timed too seldom, and drafts that seem to save less than this share of a
# plain round: if it looked slow once, wider batches would seem to cost nothing more.
_PLAIN_SOON, _CLEAR_GAIN = 8, 0.15
# A round counts half after so many others: of the text at hand, and of all texts.
_KEEP_LOCAL, _KEEP_LONG = 0.5 ** (1 / 12), 0.5 ** (1 / 256)
# How much what was realised counts beside what was expected, which is less noisy.
_REALISED = 0.2
# A copy is verified longer to time that only as far as its tokens are as likely right as this.
_SURE = 0.6
# A draft whose first token is less likely right is not verified. It would gain next to nothing, and
# where a batch of one row more looks as cheap as a plain one, wrong tokens would be verified on.
_HOPELESS = 0.06
# Plain rounds that a draft may lose in a text before it is off: the first drafts say little. Where
# it had to read much before, a share of what that took, up to so much more; and from how many of
# these rounds on a retry is not over with one draft.
_PATIENCE, _READING_SHARE, _MOST_PATIENCE, _READER_PATIENCE = 0.5, 0.15, 2.0, 0.75
# Rows of the target that the first chain may take at most: whether the drafter asks where to end is
# not known before.
_FIRST_DRAFT = 1.0
# Seconds per token: the memory of the last rounds.
_KEEP_PACE = 0.5 ** (1 / 16)
# Blocks that say how long the next ones should be.
_N_BLOCKS = 16
# Prices are made anew after so many rounds.
_REFRESH = 12
# One in this number of rounds without a model's draft and verified tokens is learned.
_IDLE_EVERY = 4
# A draft that was not asked for so many times the tokens of a round has something to catch up with.
_LATE = 8
# Rounds from which on what was learnt of costs is worth keeping for another program.
_KEEP_AFTER = 64
REASON = "it does not pay here: plain decoding is faster; it is retried periodically"


def _is_idle(span: Span) -> bool:
    return not span.n_verified and not span.asks_model


@dataclass(slots=True)
class _Sequence:
    """The state of one sequence.

    Attributes:
        text: how good drafts are in its text.
        worth: the gains of rounds in which the model was asked.
        is_on: whether the model is asked.
        wait, interval: the rounds until the next retry, and between retries.
        earned: the gains since it was enabled.
        last: the number of drafted tokens in the last round's batch.
        regret_s: the seconds that the batch's width has cost since it was changed, compared with
            the best widths.
        n_expected: the expected number of accepted tokens of this round.
        since_plain: the number of rounds since one without a draft.
        n_waiting: the number of tokens since the model was asked.
        n_tokens: the number of tokens of the answer.
        was_asked: whether the model was asked in this text.
        patience: the number of plain rounds that the model may lose before it is disabled.
        is_trial: whether it is enabled, or was asked, for a retry that has not paid yet.
        stop: the stop function of the chain that is being drafted.
    """

    text: TextState = field(default_factory=TextState)
    worth: GainEstimate = field(default_factory=GainEstimate)
    is_on: bool = True
    wait: int = 0
    interval: int = _FIRST_RETRY
    earned: float = 0.0
    last: int = 0
    regret_s: float = 0.0
    n_expected: float = 0.0
    since_plain: int = 0
    n_waiting: int = 0
    n_tokens: int = 0
    was_asked: bool = False
    patience: float = _PATIENCE
    is_trial: bool = False
    stop: _ChainStop | None = None


class _ChainStop:
    """Stops a chain where another step does not pay. Called with each token's probability."""

    __slots__ = ("_calibration", "_n", "_prices", "_ratio", "rates", "survivals")

    def __init__(self, calibration: Calibration, ratio: float, prices: Prices, n: int) -> None:
        self._calibration, self._ratio, self._prices, self._n = calibration, ratio, prices, n
        self.rates: list[float] = []
        self.survivals: list[float] = []

    def __call__(self, p: float) -> bool:
        depth = len(self.rates)
        rate = self._calibration.rate(depth, p)
        survival = clipped(rate * self._ratio)
        if depth:
            survival *= self.survivals[-1]
        self.rates.append(rate)
        self.survivals.append(survival)
        depth += 1
        if depth >= self._n:
            return True
        kind, prices = next_kind(rate), self._prices
        ends = prices.ends.get(kind)
        if ends is None:
            chance = self._calibration.next_rate(kind)
            ends = thresholds(prices.verify, prices.draft, prices.token_s, chance)
            prices.ends[kind] = ends
        return survival < ends[depth]


class ProfitController(Controller):
    """Chooses the draft length of each sequence and round, from 0 to the cap, that saves most.

    Chances come from the drafts' own probabilities, or the lengths of matches, calibrated by the
    outcomes until now; costs from running medians of this machine's rounds. A drafter that loses is
    disabled except for retries, which become rarer.
    """

    name = "profit"
    wants_costs = True

    def __init__(self) -> None:
        self._limits = ControllerLimits(0)
        self.costs = RoundCosts()
        self.acceptance = Acceptance()
        # Whether the drafter drafts the requested length without calling the stop; None while
        # no chain of it was seen.
        self._is_silent: bool | None = None
        # Survivals of the last blocks.
        self._blocks: deque[list[float]] = deque(maxlen=_N_BLOCKS)
        self._sequences: dict[int, _Sequence] = {}
        self._worth = prior_gain()
        self._hope = ReadingHope()
        # The cost of retries, in plain rounds, that gains have not made up for yet.
        self._debt = 0.0
        # Seconds and tokens of the last rounds, faded.
        self._pace_s = self._pace_tokens = 0.0
        self._prices: dict[tuple[int, int, int], tuple[int, Prices]] = {}
        self._prices_of_last = Prices([0.0], [0.0], 0.0, 1e-9)
        self._n_rounds = 0
        # Copies that are cut until one is verified longer to be timed, the same between two tries,
        # and how long the last try was, until it has paid.
        self._until_try = self._try_interval = _FIRST_RETRY
        self._n_last_try = 0

    def attach(self, limits: ControllerLimits) -> None:
        """Resets the costs for a new target."""
        self._limits = self.costs.limits = limits
        self._prices.clear()

    def learn_costs(self, seconds: dict[int, float]) -> None:
        """Starts with the costs measured when the target was opened."""
        self.costs.start(seconds)
        self._prices.clear()

    def known_costs(self) -> KnownCosts | None:
        """The measured costs, after some rounds."""
        return self.costs.known() if self._n_rounds >= _KEEP_AFTER else None

    def begin_with(self, known: KnownCosts) -> None:
        """Loads costs; each point counts as one sample."""
        self.costs.begin_with(known)
        self._prices.clear()

    # ---- before a round

    def begin(self, seq: int) -> None:
        """Starts a new text with the statistics of all other texts."""
        if (last := self._sequences.get(seq)) is not None:
            self._hope.end_text(last.n_tokens)
        state = self._sequences[seq] = _Sequence()
        state.is_on = self._worth.per_round(self._prices_of_last) >= 0.0
        # Not every short text is worth a trial draft.
        state.wait = max(_FIRST_RETRY // 2, int(min(self._debt / _RETRY_SHARE, _DEAR_RETRY)))

    def pause(self, seq: int) -> None:
        """Forgets the sequence: the length of its text is not known yet."""
        self._sequences.pop(seq, None)

    def resume(self, seq: int, n_tokens: int) -> None:
        """Starts as a new text does, with the length so far."""
        self.begin(seq)
        self._sequences[seq].n_tokens = n_tokens - 1  # learn() counts no prompt's first token

    def catch_up(self, seq: int, n_tokens: int) -> None:
        """Counts the unread tokens as rounds in which the model was not asked."""
        state = self._of(seq)
        state.n_waiting = max(state.n_waiting, n_tokens)

    def _of(self, seq: int) -> _Sequence:
        state = self._sequences.get(seq)
        if state is None:
            self.begin(seq)
            state = self._sequences[seq]
        return state

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        """Requests the maximum for a chain, which stop_of() stops; the best length for a block."""
        prices = self._priced(spans)
        return [self._decision(self._of(span.seq), span.max_draft, prices) for span in spans]

    def _decision(self, state: _Sequence, max_draft: int, prices: Prices) -> DraftDecision:
        state.n_expected = 0.0
        n = min(max_draft, len(prices.verify) - 1)
        if n < 1:
            return _NO_ROOM
        state.since_plain += 1
        if state.since_plain > _PLAIN_EVERY:
            return NOT_ASKED
        is_on, is_retry, limits = state.is_on or self._is_free(prices, n), False, self._limits
        if not is_on:
            state.wait -= 1
            is_retry = is_on = state.wait <= 0
        reason = _EARLY if is_on and self._is_early(state, prices) else ""
        if is_on and not reason:
            # stop_of() ends a chain, and verify_lengths() what is looked up.
            n_requested = n if self._ends_chains else min(n, prices.n_requested)
            if self._is_silent is None and limits.is_stepwise and limits.step_share:
                n_requested = min(n, max(int(_FIRST_DRAFT / limits.step_share), 1))
            return DraftDecision(n_requested, n, False, is_retry)
        if limits.has_lookup and not prices.is_dear_lookup:
            return DraftDecision(n, n, True, reason=reason)
        return DraftDecision(reason=reason) if reason else NOT_ASKED

    @property
    def _ends_chains(self) -> bool:
        """Whether stop_of() stops drafts; else the requested length is drafted."""
        return self._limits.is_stepwise and not self._is_silent

    def _is_free(self, prices: Prices, n: int) -> bool:
        """Whether a request costs next to nothing."""
        first = 1 if self._ends_chains else min(n, prices.n_requested)
        dearest = max(prices.draft[first], prices.lookup_s)
        return dearest < FREE_SHARE * prices.plain_s

    def _is_early(self, state: _Sequence, prices: Prices) -> bool:
        """Whether a text is too short for the draft to read its prompt."""
        if state.was_asked or not self._limits.step_share:
            return False
        hoped_s = self._hope.seconds(state.n_tokens, self._worth, prices)
        return prices.reading_s(state.n_waiting, self._limits.step_share) > hoped_s

    def stop_of(self, span: Span) -> DraftStop | None:
        """The stop function of a sequence's chain."""
        decision = span.decision or NOT_ASKED
        if not self._limits.is_stepwise or decision.lookup_only:
            return None
        state = self._of(span.seq)
        state.stop = _ChainStop(
            self.acceptance.model, state.text.model.ratio, self._prices_of_last, span.n_requested
        )
        return state.stop

    def _priced(self, spans: Sequence[Span]) -> Prices:
        """The prices for a number of sequences with such contexts."""
        n_seqs, n_on = len(spans), 1
        n_past = spans[0].n_past
        if n_seqs > 1:
            n_past = sum(span.n_past for span in spans) // n_seqs
            # Sequences that draft together share the cost.
            n_on = max(sum(self._of(span.seq).is_on for span in spans), 1)
        key = (n_seqs, n_on, n_past.bit_length())
        kept = self._prices.get(key)
        if kept is None or self._n_rounds >= kept[0]:
            prices = self._make_prices(n_seqs, n_on, n_past)
            # While little is known, every round changes much.
            self._prices[key] = kept = (self._n_rounds + min(_REFRESH, self._n_rounds // 4), prices)
        self._prices_of_last = kept[1]
        return kept[1]

    def _make_prices(self, n_seqs: int, n_on: int, n_past: int) -> Prices:
        limits, costs = self._limits, self.costs
        bound = DraftBound(limits.max_draft, "the round")
        max_draft = draft_bound(bound, n_rows=limits.max_rows, n_seqs=n_seqs).max_draft
        verify = costs.verify(n_seqs, n_past, max_draft)
        draft, rest = costs.draft(n_on, max_draft), costs.rest(n_seqs)
        plain = verify[0] + rest
        pace = self._pace_s / self._pace_tokens if self._pace_tokens > 1.0 else plain
        # Before the first measurement nothing counts as slow.
        token_s = min(plain, pace) or 1e-9
        prices = Prices(
            verify, draft, rest, token_s, n_requested=max_draft, lookup_s=costs.lookup_s,
            knows_plain=costs.is_known(n_seqs, n_past, n_seqs),
        )  # fmt: skip
        if not self._ends_chains and draft[-1]:
            means = [self.acceptance.model.mean(i) for i in range(max_draft)]
            prices.n_requested = prices.length(self._blocks, means)
        return prices

    # ---- once drafts are there

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """The number of each draft's tokens that pays."""
        prices = self._prices_of_last
        drafted = [i for i, span in enumerate(spans) if span.draft.ids]
        lengths = [0] * len(spans)
        if not drafted:
            return lengths
        survivals_of = [self._survivals(spans[i]) for i in drafted]
        if len(spans) == 1:
            survivals_of = [survivals_of[0][: len(prices.verify) - 1]]
            chosen = [self._best_alone(self._of(spans[0].seq), survivals_of[0], prices)]
        else:
            chosen = lengths_together(prices, survivals_of, len(spans), self._limits)
        chosen = self._lengths_to_try(spans, survivals_of, chosen)
        chosen = [
            n if survivals[0] >= _HOPELESS else 0
            for n, survivals in zip(chosen, survivals_of, strict=True)
        ]
        for i, survivals, n in zip(drafted, survivals_of, chosen, strict=True):
            lengths[i] = n
            is_drawn = spans[i].draft.distributions is not None  # all of it is verified
            self._of(spans[i].seq).n_expected = sum(survivals if is_drawn else survivals[:n])
        return lengths

    def _best_alone(self, state: _Sequence, survivals: Sequence[float], prices: Prices) -> int:
        """How many tokens of the only sequence's draft pay.

        A change of width costs once and lasts for many rounds. So a width that is not the best one
        is kept until it has cost as much as the change (as one rents skis before one buys them).
        """
        switch_s, last = self.costs.switch_s, state.last
        n, gain = prices.best(survivals, switch_s, last)
        best, most = prices.best(survivals, 0.0, last)
        # A draft that costs something is disabled where it gains nothing; then rounds are plain.
        is_due = state.since_plain > _PLAIN_SOON and self._is_free(prices, len(survivals))
        if is_due and not prices.knows_plain and most < _CLEAR_GAIN * prices.plain_s:
            n = best = 0
        if n != last:
            state.regret_s = 0.0
            return n
        state.regret_s += most - (gain if not last else gain - switch_s)
        if state.regret_s <= switch_s:
            return n
        state.regret_s = 0.0
        return best

    def _lengths_to_try(
        self, spans: Sequence[Span], survivals_of: Sequence[Sequence[float]], chosen: list[int]
    ) -> list[int]:
        """The lengths that pay, or longer ones of sure drafts, to time such a batch.

        A batch that was timed in a bad moment, as when a model was opened beside a busy program,
        may look so slow that it is never verified again, and so never timed again. The curve of
        costs cannot tell it from one that is slow. Copies come in many rounds, so that one in some
        is tried. A model whose drafts are not verified is soon disabled, so that each is tried
        where it drafts for a single sequence; several together have too many widths to time.
        """
        drafts = [span.draft for span in spans if span.draft.ids]
        copies = [i for i, draft in enumerate(drafts) if draft.match_length]
        if not copies and len(spans) > 1:
            return chosen
        # A row more for each sequence, as prices are made, and two rows for a single one. Not more:
        # a good sample of each of two sizes outweighs their bad ones.
        n_rows = max(len(spans), 2)
        n_longer = len(spans) if self._limits.is_padded else len(copies) or len(drafts)
        tried = list(chosen)
        for i in copies or range(len(drafts)):
            n_sure = sum(s >= _SURE for s in survivals_of[i])
            tried[i] = max(chosen[i], min(n_sure, chosen[i] + -(-n_rows // n_longer)))
        if copies and max(chosen[i] for i in copies) >= self._n_last_try > 0:
            # The last try paid: longer ones may pay too.
            self._until_try = self._try_interval = _FIRST_RETRY
            self._n_last_try = 0
        if tried == chosen or not self.costs.is_worth_timing(spans, tried):
            return chosen
        if not copies:
            return tried
        self._until_try -= 1
        if self._until_try > 0:
            return chosen
        self._try_interval = min(2 * self._try_interval, _MAX_RETRY)
        self._until_try, self._n_last_try = self._try_interval, max(tried[i] for i in copies)
        return tried

    def _survivals(self, span: Span) -> list[float]:
        """For each token of a draft, the chance that it and all before are accepted."""
        state, draft = self._of(span.seq), span.draft
        stop, state.stop = state.stop, None
        n = len(draft.ids)
        if stop is not None and n and not draft.match_length:
            self._hear(bool(stop.rates))
            if len(stop.rates) >= n:
                self.acceptance.watch(state.text, draft, stop.rates)
                return stop.survivals[:n]
        rates = self.acceptance.rates(draft)
        self.acceptance.watch(state.text, draft, rates)
        out = survivals_in(rates, state.text, draft)
        if not draft.match_length and draft.probabilities is not None:
            self._blocks.append(out)  # without probabilities the means by depth say all, and newer
        return out

    def _hear(self, was_asked: bool) -> None:
        """Notes of a chain whether its drafter called the stop function."""
        if self._is_silent is None or self._is_silent is was_asked:
            self._is_silent = not was_asked
            self._prices.clear()

    def _now_expected(self, state: _Sequence, span: Span) -> float:
        """The expected number of accepted tokens among the verified ones, with today's calibration.

        Before the first rounds of a draft little is expected of it. To hold that against a slow one
        which is always right would end it before it is known.
        """
        draft = span.draft
        return sum(survivals_in(self.acceptance.rates(draft)[: span.n_verified], state.text, draft))

    # ---- after a round

    def learn(self, spans: Sequence[Span], spent: Spent) -> Sequence[DraftGain]:
        """Learns the costs, the acceptance, and whether the model pays."""
        n_done = len([span for span in spans if span.tokens])
        if not n_done:
            return ()
        prices = self._prices_of_last
        if spent.is_pure and n_done == len(spans):
            if self._n_rounds % _IDLE_EVERY and all(map(_is_idle, spans)):
                self.costs.skip(len(spans))
            else:
                self.costs.learn(spans, spent, [self._of(span.seq).n_waiting for span in spans])
        # What this round took of each, as if the machine ran as fast as the prices say.
        seconds = spent.total_s / (len(spans) * self.costs.speed)
        gains = [
            self._learn_text(span, prices, seconds) if span.tokens else NO_GAIN for span in spans
        ]
        self._n_rounds += 1
        return gains

    def _learn_text(self, span: Span, prices: Prices, seconds: float) -> DraftGain:
        state, n, tokens = self._of(span.seq), span.n_verified, span.tokens
        self.acceptance.meet(state.text, tokens)
        state.n_tokens += len(tokens)
        state.last = n
        if not n:
            state.since_plain = 0
        n_steps = 0
        by_model = span.asks_model and not span.draft.match_length
        if by_model:
            is_stepwise = self._limits.is_stepwise
            n_steps = max(len(span.draft.ids), 1) if is_stepwise else span.n_requested
        cost = prices.verify[n] + prices.rest + prices.draft[n_steps]
        self._debt = max(self._debt - _RETRY_SHARE, 0.0)
        self._pace_s = self._pace_s * _KEEP_PACE + cost
        self._pace_tokens = self._pace_tokens * _KEEP_PACE + len(tokens)
        plain, n_expected, gain = prices.plain_s, state.n_expected, NO_GAIN
        if plain > 0.0 and (by_model or n):
            gain_expected = 1.0 + n_expected - cost / plain
            gain = DraftGain(n_expected, gain_expected, len(tokens) - seconds / plain)
        elif n:
            gain = DraftGain(n_expected)
        if not by_model:
            state.n_waiting += len(tokens)
            if not (span.draft.match_length and prices.is_dear_lookup):
                return gain
        n_waited = state.n_waiting if by_model else 0
        if plain > 0.0:
            if n_waited > _LATE * (1 + n):  # it read what it had missed
                self._note_reading(state, span.is_retry, max(seconds - cost, 0.0) / plain)
            # What was expected is less noisy than what was realised, but may be wrong: both count.
            n_tokens = 1.0 + max(n_expected, self._now_expected(state, span) if n else 0.0)
            n_tokens += _REALISED * (len(tokens) - n_tokens)
            without = n_tokens - (prices.verify[n] + prices.rest) / plain
            if self._is_silent and prices.n_requested >= len(prices.draft) - 1:
                # It drafted all that may be drafted: the next time it is asked for what pays.
                n_steps = min(n_steps, max(n, 1))
            self._note_gain(state, span.is_retry, without, n_steps, prices)
        if by_model:
            state.n_waiting, state.was_asked = len(tokens), True
        return gain

    def _note_reading(self, state: _Sequence, is_retry: bool, read: float) -> None:
        """Notes that a draft read missed tokens, a cost that some drafts have to earn."""
        state.patience = _PATIENCE + min(_READING_SHARE * read, _MOST_PATIENCE)
        if is_retry:
            self._debt += read
            if state.patience >= _READER_PATIENCE:
                state.worth = GainEstimate()  # what it lost before is not held against these drafts

    def _note_gain(
        self, state: _Sequence, is_retry: bool, gain: float, n_steps: int, prices: Prices
    ) -> None:
        """Enables or disables drafting, by the gain of this text's last rounds and of all texts."""
        state.worth.add(gain, n_steps, _KEEP_LOCAL)
        self._worth.add(gain, n_steps, _KEEP_LONG)
        value = state.worth.with_long(self._worth).per_round(prices)
        now = GainEstimate(gain, 1.0, float(n_steps > 0), n_steps).per_round(prices)
        if is_retry:
            state.is_trial = True
        if state.is_trial:
            self._debt += max(-now, 0.0)
        may_lose = -state.worth.per_round(prices) * state.worth.weight < state.patience
        if value > _HYSTERESIS:
            state.is_trial = False
        if state.is_on:
            state.earned += now
            if value < 0.0 and not may_lose:
                if state.is_trial:
                    state.interval = min(2 * state.interval, _MAX_RETRY)
                elif state.earned > 0.0:  # else it should not have been on: no sooner than before
                    state.interval = _FIRST_RETRY
                state.is_on = state.is_trial = False
                state.wait = self._interval(state, prices)
        elif value > _HYSTERESIS or (is_retry and may_lose and state.patience >= _READER_PATIENCE):
            # A retry that had to read much continues: the reading is paid, and drafts are cheap.
            state.is_on, state.earned = True, 0.0
        elif is_retry:
            state.is_trial = False
            state.interval = min(2 * state.interval, _MAX_RETRY)
            state.wait = self._interval(state, prices)

    def _interval(self, state: _Sequence, prices: Prices) -> int:
        """The rounds to the next retry, so that retries cost a small share of the time."""
        if prices.plain_s <= 0.0:
            return state.interval
        share = _RETRY_SHARE * prices.plain_s
        n = 1 if self._ends_chains else prices.n_requested
        first = max(prices.draft[n], prices.lookup_s)
        beside = self.costs.catch_up_s(state.interval) + 2 * self.costs.switch_s
        most = _DEAR_RETRY if self.costs.knows_drafts else _UNKNOWN_RETRY
        alone, all_ = min(first / share, most), min((first + beside) / share, _MAX_RETRY)
        return max(state.interval, int(alone), int(all_))

    # ---- for people

    def reason_off(self, seq: int) -> str | None:
        """The reason while drafting is disabled."""
        state = self._sequences.get(seq)
        if state is None or state.is_on:
            return None
        return REASON

    def describe(self) -> dict[str, Any]:
        """The curves, the calibration and the gain of a round."""
        return {
            **self.costs.describe(),
            "gain": self._worth.per_round(self._prices_of_last),
            "calibration": [list(row) for row in self.acceptance.model.table()],
        }
