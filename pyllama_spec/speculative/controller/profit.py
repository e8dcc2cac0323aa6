"""The profit controller: drafts where that is faster on this machine, as long as it pays.

The rule: a token more is worth the seconds that it takes otherwise. A round requests and verifies
as many tokens as are expected to save most by that, and a drafter whose rounds lose is disabled but
for retries. The costs are those of costs.py, the chances those of acceptance.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyllama_spec.drafters.base import DraftStop
from pyllama_spec.errors import ArgumentError
from pyllama_spec.speculative.controller.acceptance import (
    Acceptance,
    TextRatios,
    clipped,
    next_kind,
)
from pyllama_spec.speculative.controller.base import (
    NOT_ASKED,
    Controller,
    DraftDecision,
    FixedLength,
    Limits,
    Off,
    Span,
    Spent,
)
from pyllama_spec.speculative.controller.costs import Prices, RoundCosts

REASON = "it does not pay here: plain decoding is faster; it is retried periodically"
# Why the drafter is not asked though it is not disabled.
_NO_ROOM = DraftDecision(reason="no round had room for a drafted token")
_EARLY = "reading the text so far would take it longer than its drafts could save"

# Behind each constant: how much longer the worst group of simulated worlds takes with half of it,
# and with the double (tests/controller_world.py: chains, blocks, texts that drift, dear drafts and
# others, 296 worlds in 15 groups). Over all groups none moves more than 0.3%. Where none
# moves, a test fails without it: of test_controller_hostile.py, or of reading prompts.

# The weight of earlier rounds in the recent seconds per token and in a text's gain, and in the gain
# of all texts: half after 12 and 256 others.
_KEEP_RECENT = 0.5 ** (1 / 12)  # +1.2%, +0.4%
_KEEP_LONG = 0.5 ** (1 / 256)  # +0.1%, +0.1%
# The least chance of a draft's first token: below it a draft gains next to nothing, and where a
# wider batch seems to be as cheap as a plain one, wrong tokens would be verified in every round.
_HOPELESS = 0.06  # +0.1%, +0.6%; test_wrong_tokens_that_cost_nothing_to_draft
# After 8 rounds without a plain one, a draft that saves less than 0.15 plain rounds is not verified
# while too few plain rounds were timed: if the first of them was slow, wider batches would seem to
# cost nothing more.
_PLAIN_SOON, _CLEAR_GAIN = 8, 0.15  # +0.2%, +0.3%; +0.1%, +0.4%
# The least chance of tokens that are verified only to time a wider batch.
_SURE = 0.6  # +0.1%; with 0.99 +4.9%
# The most that the first chain may cost, in decodes of one row: it is not known before it whether
# the drafter calls its stop function.
_FIRST_DRAFT = 1.0  # 0, +0.5%; a single text up to 12%
# The weights of the gain of all texts beside that of a text, and of their prior, which is no gain.
_LONG_WEIGHT, _FIRST_WEIGHT = 2.0, 2.0  # +0.5%, +1.3%; of the other +0.2%, +0.1%
# Plain rounds that a draft may lose in a text before it is disabled. More where it had to read a
# text first, 8 times the tokens of a round: a share of what that took, and the most.
_PATIENCE = 0.5  # +0.1%, +1.5%
_READING_SHARE, _MOST_PATIENCE, _LATE = 0.15, 2.0, 8  # 0, 0 each
# Rounds to the first retry; to the next ones at most, and at most if a draft is known to be dear.
_FIRST_RETRY, _MAX_RETRY = 4, 64  # +0.2%, +1.1%; +0.7%, +0.3%
_DEAR_RETRY = 4096  # 0, 0; test_tries_of_a_dear_draft_are_rare
# The share of the time that all retries together may take.
_RETRY_SHARE = 0.015  # +0.5%, +1.0%
# The share of the most possible gain that is expected of an unknown draft, and the rounds that this
# expectation weighs as much as.
_GAIN_SHARE, _GAIN_ROUNDS = 0.5, 80.0  # +1.8%, +0.1%; 0, +0.2%
# The expected length of a new text in tokens; how many texts it weighs as much as, of the last 32;
# how fast a text counts less as its prompt's length differs: at half or double, by 2 ** -4.
# test_answers_to_prompts_of_like_length_say_how_long_one_gets fails if all texts count alike.
_LEAST_LENGTH, _LENGTH_WEIGHT, _N_LENGTHS, _UNLIKE = 64, 2.0, 32, 4.0
# Rounds after which prices are computed anew, and plain rounds of which one is timed: they save
# Python's time (0, +0.2%; +0.2%, +0.2%).
_REFRESH, _IDLE_EVERY = 12, 4


def best_length(prices: Prices, survivals: Sequence[float]) -> tuple[int, float]:
    """The number of a draft's tokens to verify, and the seconds it is expected to save.

    n tokens are worth token_s * (S[1] + ... + S[n]) for survivals S, the chances that all up to the
    i-th are right, and cost verify[n] - verify[0]: the draft is there, its cost does not count.
    That is the choice of n which makes the ratio of tokens to seconds over many rounds largest
    (Dinkelbach's method, with the ratio of the last rounds).
    """
    verify, value = prices.verify, prices.token_s
    best, best_gain, sum_ = 0, 0.0, 0.0
    for n, s in enumerate(survivals, 1):
        sum_ += s
        gain = value * sum_ - (verify[n] - verify[0])
        if gain > best_gain:
            best, best_gain = n, gain
    return best, best_gain


def block_length(prices: Prices, means: Sequence[float]) -> int:
    """The length of a block to request, by the chance at each depth; at least 1."""
    best, least, gain, sum_, survival = 1, float("inf"), 0.0, 0.0, 1.0
    for n, mean in enumerate(means, 1):
        survival *= mean
        sum_ += survival
        gain = max(gain, prices.token_s * sum_ - prices.verify[n] + prices.verify[0])
        loss = prices.draft[n] - gain
        if loss < least:
            best, least = n, loss
    return best


def thresholds(prices: Prices, chance: float) -> list[float]:
    """[0 .. n] the minimum survival of i drafted tokens at which drafting further tokens pays.

    Extending a draft from i to m tokens at survival P saves P * A seconds, A = token_s times the
    sum of chance, chance ** 2, ..., and costs verify[m] - verify[i] + draft[m] - draft[i]. It pays
    for some m if P is at least the smallest quotient of cost and A.
    """
    verify, draft = prices.verify, prices.draft
    n = len(verify) - 1
    out: list[float] = []
    for i in range(n):
        least, product, worth, spent = 2.0, prices.token_s, 0.0, verify[i] + draft[i]
        for m in range(i + 1, n + 1):
            product *= chance
            worth += product
            quotient = (verify[m] + draft[m] - spent) / worth
            if quotient < least:
                least = quotient
        out.append(least)
    out.append(2.0)  # nothing comes after the last one
    return out


def lengths_together(
    prices: Prices, drafts: Sequence[Sequence[float]], n_seqs: int, limits: Limits
) -> list[int]:
    """The lengths for sequences that share a batch: the likeliest tokens of all come first."""
    curve, best_gain = prices.verify, 0.0
    if limits.is_padded:
        # All are as long as the longest: what is as deep costs the others nothing.
        n_most = min(len(curve) - 1, max(map(len, drafts)))
        means = [sum(s[n] for s in drafts if n < len(s)) / n_seqs for n in range(n_most)]
        best, _ = best_length(prices, means)
        return [min(best, len(survivals)) for survivals in drafts]
    ordered = sorted(((s, -i) for i, draft in enumerate(drafts) for s in draft), reverse=True)
    total, n_best = 0.0, 0
    for n, (s, _) in enumerate(ordered[: max(limits.max_rows - n_seqs, 0)], 1):
        total += s
        # So many sequences verify one token more than the others.
        least, part = divmod(n, n_seqs)
        low, high = curve[min(least, len(curve) - 1)], curve[min(least + 1, len(curve) - 1)]
        gain = prices.token_s * total - (n_seqs - part) * low - part * high + n_seqs * curve[0]
        if gain > best_gain:
            n_best, best_gain = n, gain
    lengths = [0] * len(drafts)
    # Survivals fall along a draft, so that what is taken of each is its beginning.
    for _, i in ordered[:n_best]:
        lengths[-i] += 1
    return lengths


@dataclass(slots=True)
class GainEstimate:
    """Exponentially weighted sums over the rounds that asked a drafter.

    What asking costs is not in the gain but taken at today's price: one slow call, or a price that
    another program left behind, would be held against a drafter long after it is known better.
    """

    gain: float = 0.0  # tokens beyond those of plain decoding in the same time, but for drafting
    weight: float = 0.0  # rounds
    n_drafts: float = 0.0  # rounds in which a model drafted, and not copies were looked up
    n_steps: float = 0.0  # tokens that it drafted

    def add(self, gain: float, n_steps: int, keep: float) -> None:
        """Adds a round; n_steps is 0 for a lookup."""
        self.gain = self.gain * keep + gain
        self.weight = self.weight * keep + 1.0
        self.n_drafts = self.n_drafts * keep + (n_steps > 0)
        self.n_steps = self.n_steps * keep + n_steps

    def total(self, prices: Prices) -> float:
        """The gain of all rounds at these prices, in plain rounds."""
        plain = prices.plain_s
        if plain <= 0.0:
            return self.gain
        cost = (self.weight - self.n_drafts) * prices.lookup_s
        if self.n_drafts > 0.0:
            cost += self.n_drafts * prices.drafting_s(self.n_steps / self.n_drafts)
        return self.gain - cost / plain

    def per_round(self, prices: Prices) -> float:
        """The mean gain of a round."""
        return self.total(prices) / self.weight


@dataclass(slots=True)
class _Sequence:
    """The state of one sequence."""

    # How often its tokens are right, relative to all texts.
    ratios: TextRatios = field(default_factory=TextRatios)
    # The gains of rounds in which the model was asked, which it is in every round while it is on;
    # else rounds to the next retry, and between retries.
    worth: GainEstimate = field(default_factory=GainEstimate)
    is_on: bool = True
    wait: int = 0
    interval: int = _FIRST_RETRY
    # Plain rounds that the model may lose before it is disabled.
    patience: float = _PATIENCE
    # Of this round: the expected number of accepted tokens, the chance of each drafted one in an
    # average text, and both of a chain that stop_of() stops.
    n_expected: float = 0.0
    rates: Sequence[float] = ()
    chain: tuple[list[float], list[float]] | None = None
    since_plain: int = 0  # rounds since one without a draft
    n_unread: int = 0  # tokens since the model was asked
    n_prompt: int = 1  # the unread tokens at the beginning of the text
    n_tokens: int = 0  # tokens of the answer
    was_asked: bool = False  # whether the model was asked in this text


class ProfitController(Controller):
    """Chooses the draft length of each sequence and round, from 0 to the cap, that saves most.

    A drafter that loses is disabled except for retries, which become rarer.
    """

    name = "profit"
    wants_costs = True

    def __init__(self) -> None:
        self._limits = Limits(0)
        self.costs = RoundCosts()
        self.acceptance = Acceptance()
        # Whether the drafter drafts the requested length without calling the stop; None while
        # no chain of it was seen.
        self._is_silent: bool | None = None
        self._sequences: dict[int, _Sequence] = {}
        # The gain in all texts, and the lengths of their prompts and their own.
        self._worth = GainEstimate(weight=_FIRST_WEIGHT)
        self._lengths: deque[tuple[int, int]] = deque(maxlen=_N_LENGTHS)
        # The cost of retries, in plain rounds, that gains have not made up for yet.
        self._debt = 0.0
        # Seconds and tokens of the last rounds, faded.
        self._pace_s = self._pace_tokens = 0.0
        self._prices: dict[tuple[int, int, int], tuple[int, Prices]] = {}
        self._prices_of_last = Prices([0.0], [0.0], 0.0, 1e-9)
        self._n_rounds = 0

    def attach(self, limits: Limits) -> None:
        """Resets the costs for a new target."""
        self._limits = self.costs.limits = limits
        self._prices.clear()

    def learn_costs(self, seconds: dict[int, float]) -> None:
        """Starts with the costs measured when the target was opened."""
        self.costs.start(seconds)
        self._prices.clear()

    # ---- before a round

    def begin(self, seq: int) -> None:
        """Starts a new text with the statistics of all other texts."""
        last = self._sequences.get(seq)
        if last is not None and last.n_tokens:
            self._lengths.append((last.n_prompt, last.n_tokens))
        state = self._sequences[seq] = _Sequence()
        state.is_on = self._worth.per_round(self._prices_of_last) >= 0.0
        # Not every short text is worth a trial draft.
        state.wait = max(_FIRST_RETRY // 2, int(min(self._debt / _RETRY_SHARE, _DEAR_RETRY)))

    def catch_up(self, seq: int, n_tokens: int) -> None:
        """Counts the unread tokens as rounds in which the model was not asked."""
        state = self._of(seq)
        state.n_unread = max(state.n_unread, n_tokens)
        state.n_prompt = max(state.n_prompt, n_tokens)

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
        state.n_expected, state.rates = 0.0, ()
        n = min(max_draft, len(prices.verify) - 1)
        if n < 1:
            return _NO_ROOM
        state.since_plain += 1
        is_retry, reason, limits = False, "", self._limits
        if not state.is_on:
            state.wait -= 1
            is_retry = state.wait <= 0
        if state.is_on or is_retry:
            if not self._is_early(state, prices):
                # stop_of() ends a chain, and verify_lengths() what is looked up.
                n_requested = n if self._ends_chains else min(n, prices.n_requested)
                if self._is_silent is None and limits.is_stepwise and limits.step_share:
                    n_requested = min(n, max(int(_FIRST_DRAFT / limits.step_share), 1))
                return DraftDecision(n_requested, n, False, is_retry)
            reason = _EARLY
        if limits.has_lookup and not prices.is_dear_lookup:
            return DraftDecision(n, n, True, reason=reason)
        return DraftDecision(reason=reason) if reason else NOT_ASKED

    @property
    def _ends_chains(self) -> bool:
        """Whether stop_of() stops drafts; else the requested length is drafted."""
        return self._limits.is_stepwise and not self._is_silent

    def _is_early(self, state: _Sequence, prices: Prices) -> bool:
        """Whether a text is too short for the draft to read its prompt."""
        if state.was_asked or not self._limits.step_share:
            return False
        # It reads as fast as the target's rows take, by its share.
        reading_s = state.n_unread * prices.row_s * self._limits.step_share
        return reading_s > self._hoped_s(state, prices)

    def _hoped_s(self, state: _Sequence, prices: Prices) -> float:
        """The seconds that drafts are expected to save in the rest of a text.

        A text of unknown kind is expected to double, and to get 64 tokens more. What the last texts
        got beyond its length counts beside that (0 for shorter ones), most of those whose prompts
        were about as long. The gain per token begins with half of what it would be if every drafted
        token were accepted, and follows the gain in all texts.
        """
        n_tokens, weights = state.n_tokens, _LENGTH_WEIGHT
        n_further = weights * (n_tokens + _LEAST_LENGTH)
        for n_prompt, n in self._lengths:
            likeness = 0.5 ** (_UNLIKE * math.log2(n_prompt / state.n_prompt) ** 2)
            n_further += likeness * max(n - n_tokens, 0)
            weights += likeness
        n_further /= weights
        gain, weight = self._worth.per_round(prices), self._worth.weight
        if gain > 0.0:
            gain /= 1.0 + gain  # of a round, which has more than one token
        gain = _GAIN_ROUNDS * _GAIN_SHARE * prices.most_gain + weight * gain
        return gain / (_GAIN_ROUNDS + weight) * n_further * prices.plain_s

    def stop_of(self, span: Span) -> DraftStop | None:
        """The stop function of a sequence's chain: it ends where another step does not pay."""
        decision = span.decision or NOT_ASKED
        if not self._limits.is_stepwise or decision.lookup_only:
            return None
        state, acceptance = self._of(span.seq), self.acceptance
        prices, n_most, ratio = (
            self._prices_of_last,
            span.n_requested,
            state.ratios.model.after(1.0),
        )
        ends, rates, survivals = prices.ends, list[float](), list[float]()
        state.chain = rates, survivals

        def stop(p: float) -> bool:
            depth = len(rates)
            rate = acceptance.rate(depth, p)
            survival = clipped(rate * ratio)
            if depth:
                survival *= survivals[-1]
            rates.append(rate)
            survivals.append(survival)
            depth += 1
            if depth >= n_most:
                return True
            kind = next_kind(rate)
            least = ends.get(kind)
            if least is None:
                least = ends[kind] = thresholds(prices, acceptance.next_rate(kind))
            return survival < least[depth]

        return stop

    def _priced(self, spans: Sequence[Span]) -> Prices:
        """The prices for a number of sequences with such contexts."""
        n_seqs, n_on, n_past = len(spans), 1, spans[0].n_past
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
        max_draft = max(min(limits.max_draft, limits.max_rows // n_seqs - 1), 0)
        verify = costs.verify(n_seqs, n_past, max_draft)
        draft, rest = costs.draft(n_on, max_draft), costs.rest(n_seqs)
        plain = verify[0] + rest
        pace = self._pace_s / self._pace_tokens if self._pace_tokens > 1.0 else plain
        # Before the first measurement nothing counts as slow.
        token_s = min(plain, pace) or 1e-9
        prices = Prices(
            verify, draft, rest, token_s, n_requested=max_draft, lookup_s=costs.lookup_s,
            knows_plain=costs.curve(n_seqs, n_past).is_known(n_seqs),
            plain_error=costs.plain_error(n_seqs, n_past),
        )  # fmt: skip
        if not self._ends_chains and draft[-1]:
            means = [self.acceptance.mean(i) for i in range(max_draft)]
            prices.n_requested = block_length(prices, means)
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
            survivals = survivals_of[0] = survivals_of[0][: len(prices.verify) - 1]
            n, saved_s = best_length(prices, survivals)
            is_due = self._of(spans[0].seq).since_plain > _PLAIN_SOON and not prices.knows_plain
            chosen = [0 if is_due and saved_s < _CLEAR_GAIN * prices.plain_s else n]
        else:
            chosen = lengths_together(prices, survivals_of, len(spans), self._limits)
        chosen = self._lengths_to_try(spans, survivals_of, chosen)
        for i, survivals, n in zip(drafted, survivals_of, chosen, strict=True):
            lengths[i] = n = n if survivals[0] >= _HOPELESS else 0
            is_drawn = spans[i].draft.distributions is not None  # all of it is verified
            self._of(spans[i].seq).n_expected = sum(survivals if is_drawn else survivals[:n])
        return lengths

    def _lengths_to_try(
        self, spans: Sequence[Span], survivals_of: Sequence[Sequence[float]], chosen: list[int]
    ) -> list[int]:
        """The lengths that pay, or longer ones of sure drafts, to time such a batch.

        A batch that was timed in a bad moment, as when a model was opened beside a busy program,
        may look so slow that it is never verified again, and so never timed again. So a width with
        few samples is tried. A model that drafts for several sequences has too many widths for it.
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
        return tried if tried != chosen and self.costs.is_worth_timing(spans, tried) else chosen

    def _survivals(self, span: Span) -> list[float]:
        """For each token of a draft, the chance that it and all before are accepted."""
        state, draft = self._of(span.seq), span.draft
        chain, state.chain = state.chain, None
        if chain is not None and not draft.match_length:
            state.rates, survivals = chain
            if self._is_silent is bool(survivals) or self._is_silent is None:
                self._is_silent = not survivals
                self._prices.clear()
            if len(survivals) >= len(draft.ids):
                return survivals[: len(draft.ids)]
        state.rates = self.acceptance.rates(draft)
        return self.acceptance.survivals(draft, state.rates, state.ratios)

    # ---- after a round

    def weigh(self, spans: Sequence[Span], spent: Spent) -> None:
        """Compares a round with plain ones that give as many tokens.

        What the target took for this round's rows says how fast the machine is just now: a plain
        round would have taken it in the ratio of their prices.
        """
        prices, lengths = self._prices_of_last, [span.n_verified for span in spans]
        if prices.plain_s <= 0.0:
            return
        if self._limits.is_padded:
            lengths = [max(lengths)] * len(lengths)
        cost = sum(prices.verify[min(n, len(prices.verify) - 1)] + prices.rest for n in lengths)
        plain_s = (spent.verify_s + spent.rest_s) * len(spans) * prices.plain_s / cost
        error_s = plain_s * prices.plain_error if any(lengths) else 0.0
        for span in spans:
            span.saved_s = len(span.tokens) * plain_s - spent.total_s
            span.saved_error_s = len(span.tokens) * error_s

    def learn(self, spans: Sequence[Span], spent: Spent) -> None:
        """Learns the costs, the acceptance, and whether the model pays."""
        n_done = len([span for span in spans if span.tokens])
        if not n_done:
            return
        prices = self._prices_of_last
        is_idle = not any(span.n_verified or span.asks_model for span in spans)
        is_timed = not is_idle or self._n_rounds % _IDLE_EVERY == 0
        if is_timed and spent.is_pure and n_done == len(spans):
            self.costs.learn(spans, spent, [self._of(span.seq).n_unread for span in spans])
        # What this round took of each, as if the machine ran as fast as the prices say.
        seconds = spent.total_s / (len(spans) * self.costs.speed)
        for span in spans:
            if span.tokens:
                self._learn_text(span, prices, seconds)
        self._n_rounds += 1

    def _learn_text(self, span: Span, prices: Prices, seconds: float) -> None:
        state, n, tokens, draft = self._of(span.seq), span.n_verified, span.tokens, span.draft
        if state.rates:
            self.acceptance.learn(draft, state.rates, state.ratios, tokens)
        state.n_tokens += len(tokens)
        if not n:
            state.since_plain = 0
        by_model, n_steps = span.asks_model and not draft.match_length, 0
        if by_model:
            n_steps = max(len(draft.ids), 1) if self._limits.is_stepwise else span.n_requested
        cost = prices.verify[n] + prices.rest + prices.draft[n_steps]
        self._debt = max(self._debt - _RETRY_SHARE, 0.0)
        self._pace_s = self._pace_s * _KEEP_RECENT + cost
        self._pace_tokens = self._pace_tokens * _KEEP_RECENT + len(tokens)
        plain = prices.plain_s
        if not by_model:
            state.n_unread += len(tokens)
        if plain > 0.0 and (by_model or (draft.match_length and prices.is_dear_lookup)):
            if by_model and state.n_unread > _LATE * (1 + n):
                self._note_reading(state, span.is_retry, max(seconds - cost, 0.0) / plain)
            if self._is_silent and prices.n_requested >= len(prices.draft) - 1:
                # It drafted all that may be drafted: the next time it is asked for what pays.
                n_steps = min(n_steps, max(n, 1))
            n_tokens = 1.0 + max(state.n_expected, self._now_expected(span, state))
            without = n_tokens - (prices.verify[n] + prices.rest) / plain
            self._learn_gain(state, span.is_retry, without, n_steps, prices)
        if by_model:
            state.n_unread, state.was_asked = len(tokens), True

    def _now_expected(self, span: Span, state: _Sequence) -> float:
        """The expected number of accepted tokens by what this round has shown, too.

        Before the first rounds of a draft little is expected of it. To hold that against a slow one
        which is always right would end it before it is known.
        """
        rates = self.acceptance.rates(span.draft)[: span.n_verified]
        return sum(self.acceptance.survivals(span.draft, rates, state.ratios))

    def _note_reading(self, state: _Sequence, is_retry: bool, read: float) -> None:
        """Notes the cost of reading missed tokens, in plain rounds, which drafts have to earn."""
        state.patience = _PATIENCE + min(_READING_SHARE * read, _MOST_PATIENCE)
        if is_retry:
            self._debt += read

    def _learn_gain(
        self, state: _Sequence, is_retry: bool, gain: float, n_steps: int, prices: Prices
    ) -> None:
        """Enables or disables drafting, by the gain of this text's last rounds and of all texts."""
        state.worth.add(gain, n_steps, _KEEP_RECENT)
        self._worth.add(gain, n_steps, _KEEP_LONG)
        if is_retry:
            asking_s = prices.drafting_s(n_steps) if n_steps else prices.lookup_s
            self._debt += max(asking_s / prices.plain_s - gain, 0.0)
        gain_of_text = state.worth.total(prices)
        if gain_of_text + _LONG_WEIGHT * self._worth.per_round(prices) > 0.0:
            state.is_on = True
        elif is_retry:
            state.interval = min(2 * state.interval, _MAX_RETRY)
            state.wait = self._rounds_to_retry(state, prices)
        elif state.is_on and -gain_of_text >= state.patience:
            state.is_on, state.interval = False, _FIRST_RETRY
            state.wait = self._rounds_to_retry(state, prices)

    def _rounds_to_retry(self, state: _Sequence, prices: Prices) -> int:
        """The rounds to the next retry, so that retries take a small share of the time."""
        n = 1 if self._ends_chains else prices.n_requested
        share = max(prices.draft[n], prices.lookup_s) / (_RETRY_SHARE * prices.plain_s)
        most = _DEAR_RETRY if self.costs.knows_drafts else _MAX_RETRY
        return max(state.interval, int(min(share, most)))

    def reason_off(self, seq: int) -> str | None:
        """The reason while drafting is disabled."""
        state = self._sequences.get(seq)
        return None if state is None or state.is_on else REASON


# "profit", "fixed", "off", or an object; None for profit, but fixed where p_min is given.
ControllerChoice = str | Controller | None

NAMES: Mapping[str, Callable[[], Controller]] = {
    "profit": ProfitController,
    "fixed": FixedLength,
    "off": Off,
}


def make_controller(choice: ControllerChoice, p_min: float | None = None) -> Controller:
    """The controller of `controller=`."""
    if choice is None:
        return ProfitController() if p_min is None else FixedLength()
    if isinstance(choice, Controller):
        return choice
    if not isinstance(choice, str) or choice not in NAMES:
        raise ArgumentError("controller", choice, f"{', '.join(map(repr, NAMES))} or a Controller")
    return NAMES[choice]()
