"""Plays a Session twice, without drafts and with them, and compares all that came out.

    python -m tests.parity.session_play --cases N [--arch ARCH ...] [--seed S]

Each request's text, ids, finish_reason, log-probabilities and usage must be equal, and the model's
memory after it; the counts of drafts must add up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from pyllama_spec import Drafter, Llama, PyllamaSpecError
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama_cpp import LlamaRAMCache
from pyllama_spec.requests.run import Piece
from pyllama_spec.requests.stream import Stream
from pyllama_spec.speculative import SpeculationStats
from pyllama_spec.speculative.controller.base import Controller, DraftDecision, Span
from tests.models import EOS, model_path
from tests.models.adapter import write_adapter
from tests.models.mtp import HEADS
from tests.parity.latent_files import latent_path
from tests.parity.sessions import (
    ARCHS,
    CUT_SHORT,
    EXACT_ROWS,
    FORMATS,
    QUANTISED_CACHES,
    Act,
    Ask,
    Drafting,
    Session,
    Together,
    sessions,
)
from tests.scripted import Hostile, Intermittent, Pattern, Perfect, ScriptedDrafter, Wrong

# Of the toys, those whose queries tests/models/adapter.py can write an adapter for.
ADAPTED = (
    "llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "granite", "glm4", "olmo2",
    "stablelm", "command-r", "starcoder2", "gpt-oss", "qwen35", "lfm2", "qwen35moe", "qwen3next",
    "falcon-h1", "granitehybrid", "nemotron_h", "jamba", "glm4moe", "cohere2moe", "nemotron_h_moe",
)  # fmt: skip
_SMALL_TARGETS = ("llama", "gemma3", "mamba", "qwen35")
_N_VOCAB = 320


class BreakError(Exception):
    """The error of a logits processor."""


@dataclass
class Outcome:
    """The outcome of one request; of a failed one, the contents of its error.

    Attributes:
        held: the ids in the model's memory afterwards; None if that is not one text, and after an
            error: how far a memory can be rolled back then depends on its kind.
        stats: the statistics of the drafts; None if there are none.

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
    """A usage without how much of a prompt was held: that is not part of the answer."""
    return usage and {k: n for k, n in usage.items() if k != "prompt_tokens_details"}


def _unequal(one: Outcome, other: Outcome) -> list[tuple[str, Any, Any]]:
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


class RandomLengths(Controller):
    """Asks for any number of tokens, and has any number of what came verified."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def decide(self, spans: Sequence[Span]) -> Sequence[DraftDecision]:
        rng = self._random
        return [
            DraftDecision(
                rng.randrange(span.max_draft + 2), rng.choice((0, 0, 3, 50)), rng.random() < 0.2
            )
            for span in spans
        ]

    def verify_lengths(self, spans: Sequence[Span]) -> Sequence[int]:
        return [self._random.randrange(len(span.draft.ids) + 2) for span in spans]


def _drafter(session: Session) -> tuple[Drafter | Path | str, ScriptedDrafter | None]:
    drafting = session.drafting
    n, seed = drafting.n_draft or 8, drafting.seed
    rng = random.Random(seed)
    accepts = [rng.randrange(n + 1) for _ in range(7)]
    made: dict[str, tuple[Any, ...]] = {
        "perfect": (Perfect, n),
        "wrong": (Wrong, n),
        "pattern": (Pattern, accepts, n),
        "intermittent": (Pattern, accepts, n),
        "hostile": (Hostile, _N_VOCAB, EOS, n, 0.0, seed),
        "failing": (Hostile, _N_VOCAB, EOS, n, 0.1, seed),
    }
    if drafting.kind in made:
        kind, *values = made[drafting.kind]
        oracle: ScriptedDrafter = type(kind.__name__, (_Knowing, kind), {})((), *values)
        is_on = [rng.random() < 0.6 for _ in range(9)]
        return (Intermittent(oracle, is_on) if drafting.kind == "intermittent" else oracle), oracle
    # A draft's cache has the target's type, and so heads that it fits.
    small: dict[str, Any] = {
        "n_layer": 2, "output_scale": 3.0, "n_head": session.opened.n_head
    }  # fmt: skip
    files: dict[str, Any] = {
        "eagle3": lambda: model_path("eagle3", n_head=session.opened.n_head),
        "dflash": lambda: model_path("dflash", n_head=session.opened.n_head),
        "copy": lambda: _path(session),
        "small": lambda: model_path(_SMALL_TARGETS[seed % 4], seed=1, **small),
        "foreign": lambda: model_path("llama", shuffle=3, **small),
    }
    if drafting.kind in files:
        return files[drafting.kind](), None
    return ("mtp" if drafting.kind == "certain-mtp" else drafting.kind), None


def _path(session: Session) -> Path:
    """The target's file, with a head where that drafts."""
    opened, kind = session.opened, session.drafting.kind
    if opened.sizes:
        return latent_path(opened.arch, opened.sizes)
    options: dict[str, Any] = {
        "suppress_special": not opened.ends, "quantised": opened.quantised, "n_head": opened.n_head
    }  # fmt: skip
    if kind == "certain-mtp":
        return model_path("perm_mtp", arch=opened.arch, output_scale=8.0, mixing=0.1, **options)
    return model_path(
        opened.arch, output_scale=opened.output_scale, n_heads=int(kind == "mtp"), **options
    )


@cache
def takes_head(arch: str, kind: str) -> bool:
    """Whether a toy supports this kind of draft: some graphs expose no layer inputs."""
    try:
        Llama(model_path(arch), draft=model_path(kind), n_ctx=32, n_threads=1).close()
    except PyllamaSpecError:
        return False
    return True


def _fitting(session: Session) -> Session:
    """The session, with prompt lookup where there is no such draft for its target."""
    opened, kind = session.opened, session.drafting.kind
    fits = True
    if kind in ("eagle3", "dflash"):
        fits = not opened.sizes and takes_head(opened.arch, kind)
    elif kind in ("mtp", "certain-mtp"):
        # PERM's heads are as wide as its vocabulary allows, and fit no blocks of a cache.
        fits = opened.arch in HEADS and not opened.sizes
        fits = fits and (kind == "mtp" or opened.cache not in QUANTISED_CACHES)
    if fits:
        return session
    return replace(session, drafting=replace(session.drafting, kind="prompt-lookup"))


@cache
def _adapter(target: Path, arch: str) -> Path:
    path = target.with_suffix(".adapter.gguf")
    if not path.exists():
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        write_adapter(target, partial, arch=arch).replace(path)
    return path


def _values(options: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Translates a request's options whose values a Session names."""
    values = dict(options)
    if "response_format" in values:
        values["response_format"] = FORMATS[values["response_format"]]
    if "logit_bias" in values:
        values["logit_bias"] = dict(values["logit_bias"])
    return values


class Player:
    """An open model, and what has been asked of it.

    Attributes:
        prompts, texts: for each request its prompt, and the ids of the whole text.

    """

    def __init__(self, session: Session, plain: Player | None = None) -> None:
        self.session, self.opened, self.plain = session, session.opened, plain
        self.oracle: ScriptedDrafter | None = None
        self.prompts: list[list[int]] = []
        self.texts: list[list[int]] = []
        self._state: Any = None
        self._is_adapted = False
        self.llm = self._open()
        self.is_single = self.opened.n_parallel == 1
        # Whether it rolls back by a copy of its state, which may be from before the batch.

    def _open(self) -> Llama:
        opened, drafting = self.opened, self.session.drafting
        options: dict[str, Any] = {}
        if self.plain is not None:
            draft, self.oracle = _drafter(self.session)
            options = {
                "draft": draft, "n_draft": drafting.n_draft,
                "lookup": drafting.lookup if isinstance(draft, Path) or draft == "mtp" else None,
                "n_parallel": min(opened.n_parallel, opened.n_batch),
                "controller": RandomLengths(drafting.seed)
                if drafting.controller == "random"
                else drafting.controller,
            }  # fmt: skip
        return Llama(
            _path(self.session), n_ctx=opened.n_ctx, n_batch=opened.n_batch,
            n_ubatch=opened.n_ubatch, n_threads=opened.n_threads, flash_attn=opened.flash_attn,
            type_k=opened.cache, type_v=opened.cache, swa_full=opened.swa_full, seed=1,
            prefix_cache_bytes=opened.store, **options,
        )  # fmt: skip

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()

    def play(self, act: Ask | Together | Act) -> list[Outcome]:
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
        return [self._read(one, ask) for ask, one in zip(many, running, strict=True)]

    @property
    def _has_wide_chunks(self) -> bool:
        return min(self.opened.n_ubatch, self.opened.n_batch) > EXACT_ROWS

    def _prompt(self, ask: Ask, number: int) -> list[int]:
        """A request's prompt; wide ones begin anew where the place that they begin at counts."""
        if self.plain is not None:
            prompt = self.plain.prompts[number]
        else:
            base = () if ask.base is None or ask.base >= len(self.texts) else self.texts[ask.base]
            prompt = [*base[: ask.n_base], *ask.tail]
        if number and self._has_wide_chunks and len(prompt) > EXACT_ROWS:
            self.llm.reset()
        return prompt

    def _other(self, what: str) -> None:
        if what == "save":
            self._state = self.llm.save_state()
        elif what == "load" and self._state is not None:
            self._load(self._state)
        elif what == "reset":
            self.llm.reset()
        elif what == "move":
            state = self.llm.save_state()
            self.llm.close()
            self.llm = self._open()
            self._set_adapter(self._is_adapted)
            self._load(state)
        elif what == "cache" and not self._has_wide_chunks:
            # What it holds depends on which of several requests ends first.
            self.llm.set_cache(LlamaRAMCache())
        elif what in ("on", "off") and self.opened.arch in ADAPTED:
            self._is_adapted = what == "on"
            self._set_adapter(self._is_adapted)

    def _load(self, state: Any) -> None:
        # A state is of the adapter that its request had, and refused beside another one.
        with suppress(*(ArgumentError,) if self.opened.arch in ADAPTED else ()):
            self.llm.load_state(state)

    def _set_adapter(self, is_on: bool) -> None:
        if self.opened.arch in ADAPTED:
            path = _adapter(_path(self.session), self.opened.arch)
            self.llm.set_adapters([(path, 1.0)] if is_on else [])

    # ---- one request
    def _options(
        self, ask: Ask, prompt: Sequence[int], begun: Sequence[Stream[Piece]] = ()
    ) -> dict[str, Any]:
        options = _values(ask.options)
        last = len(prompt) + ask.at

        def breaks(ids: Any, scores: Any) -> Any:
            if len(ids) >= last:
                raise BreakError
            return scores

        def abort() -> None:
            begun[0].abort()

        def ends(end: Callable[[], object]) -> Any:
            def at_last(ids: Any, scores: Any) -> Any:
                if len(ids) == last:
                    end()
                return scores

            return at_last

        if ask.fate == "raises":
            options["logits_processor"] = breaks
        elif ask.fate == "cancelled":
            options["logits_processor"] = ends(self.llm.cancel)
        elif ask.fate == "aborted":
            options["logits_processor"] = ends(abort)
        elif ask.fate == "stops":
            options["stopping_criteria"] = lambda ids, scores: len(ids) >= last
        return options

    @contextmanager
    def _adapting(self, ask: Ask) -> Iterator[None]:
        """The adapter is the request's, and then that of before."""
        if ask.adapted:
            self._set_adapter(not self._is_adapted)
        yield
        if ask.adapted:
            self._set_adapter(self._is_adapted)

    def _begun(self, ask: Ask, prompt: list[int]) -> Stream[Piece]:
        begun: list[Stream[Piece]] = []
        with self._adapting(ask):
            begun.append(self.llm.generate_steps(prompt, **self._options(ask, prompt, begun)))
        return begun[0]

    def _ask(self, ask: Ask, prompt: list[int]) -> Outcome:
        if ask.face == "steps" or ask.fate != "whole":
            outcome = self._read(self._begun(ask, prompt), ask)
        else:
            with self._adapting(ask):
                outcome = self._completed(ask, prompt)
        if self.plain is None:
            self.texts.append(list(self.llm._runtime.runner.latest().tokens))
        if self.is_single and outcome.error is None:
            outcome.held = tuple(self.llm.input_ids[: self.llm.n_tokens].tolist())
        return outcome

    def _read(self, generation: Stream[Piece], ask: Ask) -> Outcome:
        """Reads a text to its end, or so many pieces of it."""
        record, error = generation.record, None
        n_pieces = ask.at if ask.fate == "closed" else None
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
        return Outcome(
            text, None, logprobs, choice["finish_reason"], lasting_usage(answer["usage"]),
            speculation=answer["speculation"],
        )  # fmt: skip


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
    forced = counts["by_source"].get("grammar", {"drafted": 0, "accepted": 0})
    assert 0 <= forced["accepted"] <= forced["drafted"] <= drafted
    assert forced["accepted"] <= accepted
    assert drafted - forced["drafted"] >= accepted - forced["accepted"]
    histogram = counts["accepted_histogram"]
    assert sum(histogram) == rounds
    assert sum(i * n for i, n in enumerate(histogram)) == accepted
    for name in ("proposed", "drafted", "accepted"):
        of_sources = [one[name] for one in counts["by_source"].values()]
        assert sum(of_sources) == counts[name], "each draft has its source"
    assert counts["asked"] <= rounds
    # What the rounds committed, and the prompt's token: a stop string may cut the last one.
    assert usage is None or usage["completion_tokens"] <= accepted + rounds + 1
    if outcome.finish == "length":
        assert usage["completion_tokens"] == accepted + rounds + 1
    if drafting is None:
        assert (counts["proposed"], forced["drafted"]) == (0, 0)


def _check_drafter(outcome: Outcome, drafting: Drafting) -> None:
    """A drafter that keeps to the rules stays on."""
    stats = outcome.stats
    if stats is not None and drafting.kind not in ("hostile", "failing"):
        assert stats.reason_off_error is None, f"the drafter failed: {stats.reason_off}"


def _check_same(act: Ask | Together | Act, ask: Ask, one: Outcome, other: Outcome) -> None:
    """That a drafted outcome is that of plain decoding."""
    is_together = isinstance(act, Together)
    if ask.fate in CUT_SHORT or (is_together and ask.fate == "closed"):
        # A draft goes on to its batch's end. Plain tokens may end within a character that stops it.
        assert one.tokens is not None and other.tokens is not None
        if len(one.tokens) + 1 >= ask.at:
            n = len(other.tokens) if other.finish == "stop" else len(one.tokens)
            assert other.tokens[: len(one.tokens)] == one.tokens[:n]
            return
    # A stream that is closed before its first token leaves what a request before it has left.
    is_begun = ask.fate != "closed" or ask.at > 0
    parts = _unequal(one, other if is_begun and not is_together else replace(other, held=one.held))
    assert not parts, f"it differs in {parts}"


def compare(session: Session) -> Counter[str]:
    """Plays a session without and with drafts; returns how much was compared."""
    session = _fitting(session)
    opened, drafting = session.opened, session.drafting
    counts: Counter[str] = Counter(sessions=1)
    with Player(session) as plain:
        expected = [plain.play(act) for act in session.acts]
    with Player(session, plain) as drafted:
        number = 0
        for act, wanted in zip(session.acts, expected, strict=True):
            several = act.asks if isinstance(act, Together) else (act,)
            for ask, one, other in zip(several, wanted, drafted.play(act), strict=False):
                assert isinstance(ask, Ask)
                n_prompt = len(plain.prompts[number])
                number += 1
                check_counts(one, n_prompt, None)
                check_counts(other, n_prompt, drafting)
                _check_drafter(other, drafting)
                _check_same(act, ask, one, other)
                counts["comparisons"] += 1
                counts[f"of {drafting.kind}"] += 1
                counts[f"in {opened.arch}"] += 1
                counts[f"with {opened.cache or 'f16'}"] += 1
                counts["adapted"] += ask.adapted and opened.arch in ADAPTED
                counts["together"] += isinstance(act, Together)
                counts["errors"] += one.error is not None
                for key in ("drafted", "accepted", "proposed", "rounds"):
                    counts[key] += other.speculation.get(key, 0)
                by_source = other.speculation.get("by_source", {})
                counts["forced"] += by_source.get("grammar", {}).get("drafted", 0)
                counts["tokens"] += (one.usage or {}).get("completion_tokens", 0)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--arch", nargs="*", default=list(ARCHS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    total, begin = Counter[str](), time.monotonic()
    failed: list[str] = []

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
