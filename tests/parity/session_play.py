"""Plays a Session twice, without drafts and with them, and compares all that came out.

    python -m tests.parity.session_play --cases N [--arch ARCH ...] [--seed S]

Each request's text, ids, finish_reason, log-probabilities and usage have to be equal, and what the
model holds behind it; the counts of drafts have to add up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from pyllama_spec import Drafter, Llama, PyllamaSpecError
from pyllama_spec.requests.generation import Generation
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.speculative.controller.base import Controller, DraftDecision, Span
from tests.models import DECODERS, EOS, model_path
from tests.models.adapter import write_adapter
from tests.parity.sessions import (
    EXACT_ROWS,
    FORMATS,
    Act,
    Ask,
    Drafting,
    Opened,
    Session,
    Together,
    sessions,
)
from tests.scripted import Hostile, Intermittent, Pattern, Perfect, ScriptedDrafter, Wrong

# Of the toys, those whose queries tests/models/adapter.py can write an adapter for.
ADAPTED = ("llama", "qwen2", "qwen3", "gemma3", "olmo2")
_N_VOCAB = 320


class BreakError(Exception):
    """What a logits processor raises."""


@dataclass
class Outcome:
    """What came of one request; of one that failed, what its error carries.

    Attributes:
        held: the ids that the model holds behind it; None where that is not one text, and after an
            error: how far a memory can go back then depends on what it is.
        stats: of the drafts; None where nothing tells.

    """

    text: str
    tokens: tuple[int, ...] | None
    logprobs: Any
    finish: str | None
    usage: Any
    error: str | None = None
    held: tuple[int, ...] | None = None
    stats: SpeculationStats | None = None
    speculation: dict[str, Any] = field(default_factory=dict)


# What of two outcomes has to be equal.
_COMPARED = ("error", "text", "tokens", "finish", "usage", "logprobs", "held")


def lasting_usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """A usage without how much of a prompt was held: that is no part of the answer."""
    return usage and {k: n for k, n in usage.items() if k != "prompt_tokens_details"}


def _unequal(one: Outcome, other: Outcome) -> list[tuple[str, Any, Any]]:
    """In what two outcomes differ, with both."""
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in _COMPARED]
    return [pair for pair in pairs if pair[1] != pair[2]]


class _Knowing(ScriptedDrafter):
    """Knows the texts of several requests: each is recognised by its beginning."""

    texts: Sequence[Sequence[int]] = ()

    def coming(self, seq: int, n: int) -> list[int]:
        """The next n tokens of the text that begins as this sequence."""
        told = self.history(seq)
        for text in self.texts:
            if len(text) > len(told) and list(text[: len(told)]) == told:
                return list(text[len(told) : len(told) + n])
        return []


class _Perfect(_Knowing, Perfect):
    pass


class _Wrong(_Knowing, Wrong):
    pass


class _Pattern(_Knowing, Pattern):
    pass


class _Hostile(_Knowing, Hostile):
    pass


class RandomLengths(Controller):
    """Asks for any number of tokens, and has any number of what came verified."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        """Any number, lookups alone now and then."""
        rng = self._random
        return [
            DraftDecision(
                rng.randrange(span.max_draft + 2), rng.choice((0, 0, 3, 50)), rng.random() < 0.2
            )
            for span in spans
        ]

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        """Any number, more than there are too."""
        return [self._random.randrange(len(span.draft.ids) + 2) for span in spans]


def _drafter(drafting: Drafting) -> tuple[Drafter | Path | str, ScriptedDrafter | None]:
    """What `draft=` takes, and who is to be told the texts."""
    n, seed = drafting.n_draft or 8, drafting.seed
    rng = random.Random(seed)
    accepts = [rng.randrange(n + 1) for _ in range(7)]
    made: dict[str, Any] = {
        "perfect": lambda: _Perfect((), n),
        "wrong": lambda: _Wrong((), n),
        "pattern": lambda: _Pattern((), accepts, n),
        "hostile": lambda: _Hostile((), _N_VOCAB, EOS, n, 0.0, seed),
        "failing": lambda: _Hostile((), _N_VOCAB, EOS, n, 0.1, seed),
    }
    if drafting.kind in made:
        oracle = made[drafting.kind]()
        return oracle, oracle
    if drafting.kind == "intermittent":
        inner = _Pattern((), accepts, n)
        return Intermittent(inner, [rng.random() < 0.6 for _ in range(9)]), inner
    if drafting.kind in ("eagle3", "dflash"):
        return model_path(drafting.kind), None
    return drafting.kind, None


def _path(opened: Opened) -> Path:
    return model_path(
        opened.arch, output_scale=opened.output_scale, suppress_special=not opened.ends,
        quantised=opened.quantised,
    )  # fmt: skip


@cache
def takes_head(arch: str, kind: str) -> bool:
    """Whether a draft of this kind can be had for a toy: some graphs show no layer inputs."""
    try:
        Llama(model_path(arch), draft=model_path(kind), n_ctx=32, n_threads=1).close()
    except PyllamaSpecError:
        return False
    return True


@cache
def _adapter(target: Path, arch: str) -> Path:
    path = target.with_suffix(".adapter.gguf")
    if not path.exists():
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        write_adapter(target, partial, arch=arch).replace(path)
    return path


class Player:
    """An open model, and what has been asked of it.

    Args:
        session: what is played.
        is_drafted: whether with the session's drafter.
        plain: the player of the same session without; None for that itself.

    Attributes:
        prompts, texts: of each request, and the ids of the text that came, prompt and all.

    """

    def __init__(self, session: Session, plain: Player | None = None) -> None:
        opened, drafting = session.opened, session.drafting
        self.opened, self.plain = opened, plain
        self.oracle: ScriptedDrafter | None = None
        self.prompts: list[list[int]] = []
        self.texts: list[list[int]] = []
        self._state: Any = None
        options: dict[str, Any] = {}
        if plain is not None:
            draft, self.oracle = _drafter(drafting)
            options = {
                "draft": draft, "n_draft": drafting.n_draft,
                "lookup": drafting.lookup if isinstance(draft, Path) else None,
                "n_parallel": min(opened.n_parallel, opened.n_batch),
                "controller": RandomLengths(drafting.seed)
                if drafting.controller == "random"
                else drafting.controller,
            }  # fmt: skip
        self.llm = Llama(
            _path(opened), n_ctx=opened.n_ctx, n_batch=opened.n_batch, n_ubatch=opened.n_ubatch,
            n_threads=opened.n_threads, flash_attn=opened.flash_attn, type_k=opened.cache,
            type_v=opened.cache, swa_full=opened.swa_full, seed=1, **options,
        )  # fmt: skip
        self.is_single = opened.n_parallel == 1

    def play(self, act: Ask | Together | Act) -> list[Outcome]:
        """What comes of an act."""
        if isinstance(act, Act):
            self._other(act.what)
            return []
        many = act.asks if isinstance(act, Together) else (act,)
        n = len(self.prompts)
        prompts = [self._prompt(ask, n + i) for i, ask in enumerate(many)]
        self.prompts += prompts
        if self.oracle is not None and self.plain is not None:
            self.oracle.texts = self.plain.texts[n:]  # type: ignore[attr-defined]
        if isinstance(act, Ask):
            return [self._ask(act, prompts[0])]
        if self.plain is None:
            return [self._ask(replace(ask, face="steps"), p)
                    for ask, p in zip(many, prompts, strict=True)]  # fmt: skip
        running = [self._begun(ask, p) for ask, p in zip(many, prompts, strict=True)]
        for one in running:
            one.start()
        return [self._read(one, None) for one in running]

    def _prompt(self, ask: Ask, number: int) -> list[int]:
        """A request's prompt; wide ones begin anew where the place that they begin at counts."""
        if self.plain is not None:
            prompt = self.plain.prompts[number]
        else:
            base = () if ask.base is None or ask.base >= len(self.texts) else self.texts[ask.base]
            prompt = [*base[: ask.n_base], *ask.tail]
        chunk = min(self.opened.n_ubatch, self.opened.n_batch)
        if number and chunk > EXACT_ROWS and len(prompt) > EXACT_ROWS:
            self.llm.reset()
        return prompt

    def _other(self, what: str) -> None:
        llm = self.llm
        if what == "save":
            self._state = llm.save_state()
        elif what == "load" and self._state is not None:
            llm.load_state(self._state)
        elif what == "reset":
            llm.reset()
        elif self.opened.arch in ADAPTED and what in ("on", "off"):
            path = _adapter(_path(self.opened), self.opened.arch)
            llm.set_adapters([(path, 1.0)] if what == "on" else [])
            self._state = None  # of the other weights

    # ---- one request

    def _options(self, ask: Ask, prompt: Sequence[int]) -> dict[str, Any]:
        options = dict(ask.options)
        if "response_format" in options:
            options["response_format"] = FORMATS[options["response_format"]]
        if "logit_bias" in options:
            options["logit_bias"] = dict(options["logit_bias"])
        last = len(prompt) + ask.at

        def breaks(ids: Any, scores: Any) -> Any:
            if len(ids) >= last:
                raise BreakError
            return scores

        def cancels(ids: Any, scores: Any) -> Any:
            if len(ids) == last:
                self.llm.cancel()
            return scores

        if ask.fate == "raises":
            options["logits_processor"] = breaks
        elif ask.fate == "cancelled":
            options["logits_processor"] = cancels
        elif ask.fate == "stops":
            options["stopping_criteria"] = lambda ids, scores: len(ids) >= last
        return options

    def _begun(self, ask: Ask, prompt: list[int]) -> Generation:
        return self.llm.generate_steps(prompt, **self._options(ask, prompt))

    def _ask(self, ask: Ask, prompt: list[int]) -> Outcome:
        if ask.face == "steps" or ask.fate != "whole":
            n_pieces = ask.at if ask.fate == "closed" else None
            outcome = self._read(self._begun(ask, prompt), n_pieces)
        else:
            outcome = self._completed(ask, prompt)
        if self.plain is None:
            self.texts.append(list(self.llm._runtime.runner.latest().tokens))
        if self.is_single and outcome.error is None:
            outcome.held = tuple(self.llm.input_ids[: self.llm.n_tokens].tolist())
        return outcome

    def _read(self, generation: Generation, n_pieces: int | None) -> Outcome:
        """Reads a text to its end, or so many pieces of it."""
        record, error = generation.record, None
        try:
            if n_pieces is None:
                generation.read_all()
            else:
                for _, _ in zip(range(n_pieces), generation, strict=False):
                    pass
                generation.close()
        except (PyllamaSpecError, BreakError) as raised:
            said = str(raised) if type(raised).__name__ == "ContextFullError" else ""
            partial: Any = raised
            return Outcome(
                partial.partial_text, tuple(partial.partial_tokens), None, None, None,
                f"{type(raised).__name__} {said}", stats=record.stats,
            )  # fmt: skip
        return Outcome(
            record.text, tuple(record.tokens), tuple(record.logprobs), record.finish_reason,
            lasting_usage(record.usage), error, stats=record.stats,
            speculation=record.stats.as_dict() if n_pieces is None else {},
        )  # fmt: skip

    def _completed(self, ask: Ask, prompt: list[int]) -> Outcome:
        options = self._options(ask, prompt)
        try:
            if ask.face != "stream":
                answer: Any = self.llm.create_completion(prompt, echo=ask.face == "echo", **options)
                choice = answer["choices"][0]
                text, logprobs = choice["text"], choice["logprobs"]
            else:
                chunks: list[Any] = list(self.llm.create_completion(prompt, stream=True, **options))
                answer, choice = chunks[-1], chunks[-1]["choices"][0]
                text = [chunk["choices"][0]["text"] for chunk in chunks]
                logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        except PyllamaSpecError as raised:
            partial: Any = raised
            error = f"{type(raised).__name__} {raised}"
            return Outcome(
                partial.partial_text, tuple(partial.partial_tokens), None, None, None, error
            )
        finish = choice["finish_reason"]
        return Outcome(
            text,
            None,
            logprobs,
            finish,
            lasting_usage(answer["usage"]),
            speculation=answer["speculation"],
        )


def check_counts(outcome: Outcome, n_prompt: int, drafting: Drafting | None) -> None:
    """That usage and speculation of one request add up."""
    counts, usage = outcome.speculation, outcome.usage
    if usage is not None:
        assert usage["prompt_tokens"] == n_prompt
        assert usage["total_tokens"] == n_prompt + usage["completion_tokens"]
    if usage is not None and outcome.tokens is not None:
        assert usage["completion_tokens"] == len(outcome.tokens)
    if not counts:
        return
    accepted, drafted, rounds = counts["accepted"], counts["drafted"], counts["rounds"]
    assert 0 <= accepted <= drafted <= counts["proposed"], "no more is verified than was proposed"
    assert 0 <= counts["forced_accepted"] <= counts["forced"] <= drafted
    assert counts["forced_accepted"] <= accepted
    assert drafted - counts["forced"] >= accepted - counts["forced_accepted"]
    for histogram, total in ((counts["accepted_histogram"], accepted),
                             (counts["verified_histogram"], drafted)):  # fmt: skip
        assert sum(histogram) == rounds
        assert sum(i * n for i, n in enumerate(histogram)) == total
    assert sum(counts["drafted_by"].values()) in (rounds, 0)
    assert max(counts["copied"], counts["probes"]) <= counts["asked"] <= rounds
    # What the rounds committed, and the prompt's token: a stop string may cut the last one.
    assert usage is None or usage["completion_tokens"] <= accepted + rounds + 1
    if outcome.finish == "length":
        assert usage["completion_tokens"] == accepted + rounds + 1
    if drafting is None:
        assert (counts["proposed"], counts["forced"]) == (0, 0)


def _check_drafter(outcome: Outcome, drafting: Drafting) -> None:
    """A drafter that keeps to the rules stays on."""
    stats = outcome.stats
    if stats is not None and drafting.kind not in ("hostile", "failing"):
        assert stats.reason_off_error is None, f"the drafter failed: {stats.reason_off}"


def compare(session: Session) -> Counter[str]:
    """Plays a session without and with drafts; returns how much was compared."""
    counts: Counter[str] = Counter(sessions=1)
    kind = session.drafting.kind
    if kind in ("eagle3", "dflash") and not takes_head(session.opened.arch, kind):
        kind = "prompt-lookup"
    drafting = replace(session.drafting, kind=kind)
    session = replace(session, drafting=drafting)
    plain = Player(session)
    with plain.llm:
        expected = [plain.play(act) for act in session.acts]
    drafted = Player(session, plain)
    with drafted.llm:
        number = 0
        for act, wanted in zip(session.acts, expected, strict=True):
            for one, other in zip(wanted, drafted.play(act), strict=True):
                n_prompt = len(plain.prompts[number])
                number += 1
                check_counts(one, n_prompt, None)
                check_counts(other, n_prompt, drafting)
                _check_drafter(other, drafting)
                if isinstance(act, Ask) and act.fate == "cancelled":
                    # A draft goes on to the end of its batch.
                    assert other.tokens is not None and one.tokens is not None
                    assert other.tokens[: len(one.tokens)] == one.tokens
                else:
                    parts = _unequal(one, other)
                    assert not parts, f"request {number} differs in {parts}"
                counts["comparisons"] += 1
                counts[f"of {kind}"] += 1
                counts["errors"] += one.error is not None
                for key in ("drafted", "accepted", "proposed", "forced", "rounds"):
                    counts[key] += other.speculation.get(key, 0)
                counts["tokens"] += (one.usage or {}).get("completion_tokens", 0)
    return counts


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--arch", nargs="*", default=list(DECODERS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("PYLLAMA_SPEC_COSTS", "off")
    total: Counter[str] = Counter()
    failed: list[str] = []
    begin = time.monotonic()

    @seeded(options.seed)
    @settings(
        max_examples=options.cases, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(sessions(options.arch))
    def play(session: Session) -> None:
        try:
            total.update(compare(session))
        except Exception as error:  # noqa: BLE001 - all of them are shown
            failed.append(repr(session))
            print(f"{type(error).__name__}: {str(error)[:2000]}\n{session!r}\n", flush=True)

    play()
    print(json.dumps({**total, "failed": len(failed), "seconds": round(time.monotonic() - begin)}))


if __name__ == "__main__":
    main()
