"""The cost of drafting and verifying n tokens for one sequence, and the chance that pays for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyllama_spec.speculative.controller.base import ControllerLimits

# A drafter that takes less than this share of a plain round is asked in every round: ten times less
# than the loss that the controller promises to avoid, and less than a retry would win.
FREE_SHARE = 0.01


@dataclass(slots=True)
class Prices:
    """The prices of a round, in seconds at speed 1, for each of n_seqs sequences alike.

    A token more is worth the seconds that it takes otherwise. So n tokens of a draft are worth
    token_s * (S[1] + ... + S[n]) for survivals S, the chances that all up to the i-th are right,
    and cost verify[n] - verify[0]. That is the choice of n which makes the ratio of tokens to
    seconds over many rounds largest (Dinkelbach's method, with the ratio of the last rounds).

    Attributes:
        verify: [0 .. n] the seconds of a decode with n drafted tokens.
        draft: [0 .. n] the seconds of drafting them.
        rest: the seconds of the rest of a round.
        token_s: the value of one more token, in seconds.
        ends: the results of thresholds() so far, by the kind of the last token
            (calibration.next_kind).
        n_requested: the number of tokens of a block to ask for.
        lookup_s: the seconds of a lookup, whether it hits or not.
        knows_plain: whether verify[0] was timed so often that one slow sample counts for little.
    """

    verify: Sequence[float]
    draft: Sequence[float]
    rest: float
    token_s: float
    ends: dict[int, Sequence[float]] = field(default_factory=dict)
    n_requested: int = 1
    lookup_s: float = 0.0
    knows_plain: bool = True

    @property
    def is_dear_lookup(self) -> bool:
        """Whether a request for lookups costs a notable time."""
        return self.lookup_s >= FREE_SHARE * self.plain_s > 0.0

    def drafting_s(self, n: float) -> float:
        """The seconds to draft n tokens; n may be a mean."""
        draft = self.draft
        low = min(int(n), len(draft) - 1)
        if low + 1 >= len(draft):
            return draft[-1]
        return draft[low] + (n - low) * (draft[low + 1] - draft[low])

    @property
    def most_gain(self) -> float:
        """The maximum gain per token in plain rounds, if every drafted token is accepted."""
        plain = self.plain_s
        if plain <= 0.0:
            return 0.0
        costs = enumerate(zip(self.verify, self.draft, strict=True))
        least_s = min((v + d + self.rest) / (n + 1) for n, (v, d) in costs)
        return 1.0 - least_s / plain

    def reading_s(self, n_tokens: int, step_share: float) -> float:
        """The seconds that a draft needs to read n tokens at once, by the target's cost of rows."""
        n_rows = len(self.verify) - 1
        row_s = (self.verify[-1] - self.verify[0]) / n_rows if n_rows else 0.0
        return n_tokens * row_s * step_share

    @property
    def plain_s(self) -> float:
        """The seconds of a plain round, which gives one token."""
        return self.verify[0] + self.rest

    def best(self, survivals: Sequence[float], switch_s: float, last: int) -> tuple[int, float]:
        """The number of a draft's tokens to verify, and the seconds it is expected to save.

        Args:
            survivals: for each token of the draft, the probability that it and all before it are
                accepted. The draft is there: its cost does not count.
            switch_s: the additional seconds of a batch whose width differs from the one before.
            last: the number of drafted tokens in the batch before.
        """
        verify, value = self.verify, self.token_s
        # The baseline is the cost without any verified token.
        zero = switch_s if last else 0.0
        best, best_gain, sum_ = 0, 0.0, 0.0
        for n, s in enumerate(survivals, 1):
            sum_ += s
            gain = value * sum_ - (verify[n] - verify[0]) + zero
            if n != last:
                gain -= switch_s
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain

    def length(self, drafts: Iterable[Sequence[float]], means: Sequence[float]) -> int:
        """The length of a block to request before any of its tokens is known; at least 1.

        A longer one costs more to draft, and may be cut where it turns out to be unsure: how often
        that is, the last drafts say.
        """
        max_draft = len(means)
        gains, n_drafts = [0.0] * (max_draft + 1), 0
        for survivals in (*drafts, ()):
            if not survivals and n_drafts:
                break
            n_drafts += 1
            survival, sum_, best_gain = 1.0, 0.0, 0.0
            for n in range(1, max_draft + 1):
                survival = survivals[n - 1] if n <= len(survivals) else survival * means[n - 1]
                sum_ += survival
                best_gain = max(best_gain, self.token_s * sum_ - self.verify[n] + self.verify[0])
                gains[n] += best_gain
        best, least = 1, float("inf")
        for n in range(1, max_draft + 1):
            loss = self.draft[n] - gains[n] / n_drafts
            if loss < least:
                best, least = n, loss
        return best


def thresholds(
    verify: Sequence[float], draft: Sequence[float], token_s: float, chance: float
) -> list[float]:
    """[0 .. n] the minimum survival of i drafted tokens at which drafting further tokens pays.

    Extending a draft from i to m tokens at survival P saves P * A seconds, A = token_s times the
    sum of chance, chance ** 2, ..., and costs verify[m] - verify[i] + draft[m] - draft[i]. It pays
    for some m if P is at least the smallest quotient of cost and A.
    """
    n = len(verify) - 1
    out: list[float] = []
    for i in range(n):
        least, product, worth, spent = 2.0, token_s, 0.0, verify[i] + draft[i]
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
    prices: Prices, drafts: Sequence[Sequence[float]], n_seqs: int, limits: ControllerLimits
) -> list[int]:
    """The lengths for sequences that share a batch: the likeliest tokens of all come first."""
    curve, best_gain = prices.verify, 0.0
    if limits.is_padded:
        # All are as long as the longest: what is as deep costs the others nothing.
        best = 0
        for n in range(1, min(len(curve), 1 + max(len(survivals) for survivals in drafts))):
            sum_ = sum(sum(survivals[:n]) for survivals in drafts)
            gain = prices.token_s * sum_ - n_seqs * (curve[n] - curve[0])
            if gain > best_gain:
                best, best_gain = n, gain
        return [min(best, len(survivals)) for survivals in drafts]
    ordered = sorted(
        ((s, -i) for i, survivals in enumerate(drafts) for s in survivals), reverse=True
    )[: max(limits.max_rows - n_seqs, 0)]
    total, n_best = 0.0, 0
    for n, (s, _) in enumerate(ordered, 1):
        total += s
        gain = prices.token_s * total - _batch_s(curve, n_seqs, n) + n_seqs * curve[0]
        if gain > best_gain:
            n_best, best_gain = n, gain
    lengths = [0] * len(drafts)
    # Survivals fall along a draft, so that what is taken of each is its beginning.
    for _, i in ordered[:n_best]:
        lengths[-i] += 1
    return lengths


def _batch_s(curve: Sequence[float], n_seqs: int, n_taken: int) -> float:
    """The seconds of a decode of n_seqs sequences with n_taken drafted tokens in total."""
    n, part = divmod(n_taken, n_seqs)
    if n + 1 >= len(curve):
        return n_seqs * curve[-1]
    return (n_seqs - part) * curve[n] + part * curve[n + 1]
