"""The measurement: plain and speculative by turns, prompt by prompt, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec.bench import machine
from pyllama_spec.bench.config import BenchConfig
from pyllama_spec.bench.figures import Fork, Pair, PromptResult, find_fork
from pyllama_spec.bench.peer import Peer, PeerError, PeerRun, PeerUnreachableError
from pyllama_spec.bench.prompt_file import load_prompts
from pyllama_spec.bench.result import BenchResult, Setup
from pyllama_spec.bench.sides import Run, Side, open_sides
from pyllama_spec.bench.weights import weight_bytes
from pyllama_spec.drafters import Drafter
from pyllama_spec.engine import Model
from pyllama_spec.errors import ContextFullError, PyllamaSpecError
from pyllama_spec.generation.chat_template import ChatTemplate
from pyllama_spec.generation.prompt_file import Prompt
from pyllama_spec.llama.loading import check_target

Progress = Callable[[float], None]
_WARM_UP_TOKENS = 32
# Attention reads the KV cache in steps of this many positions.
_N_CTX_STEP = 256


def run(config: BenchConfig, progress: Progress | None = None) -> BenchResult:
    """Measures.

    Each repeat goes through all prompts; of each prompt both sides are run directly after each
    other, in an order that changes with every repeat, from an empty memory. A short run of both
    comes first and is not counted. Ctrl-C, and an error while measuring, end it early: the result
    holds what was measured, and says so.

    Args:
        config: what to measure.
        progress: called with 0.0 .. 1.0.

    Raises:
        ArgumentError: the prompts file is malformed, or a prompt does not fit.
        PeerError: nothing answers at the peer's address.
        PyllamaSpecError: what Llama() raises when the files are opened.

    """
    span = {"started": machine.now(), "load_average_start": machine.load_average()}
    prompts = [prompt.as_chat(config.chat) for prompt in load_prompts(config.prompts)]
    peer = None
    if config.peer is not None:
        peer = Peer(config.peer)
        peer.connect()
    with Model(config.model_path, n_gpu_layers=config.n_gpu_layers) as model:
        check_target(model)
        template = ChatTemplate.of_model(model)
        ids = [prompt.tokens(model.vocab, template) for prompt in prompts]
        n_ctx = _n_ctx(config, prompts, ids)
        plain, spec = open_sides(model, config, n_ctx)
        with plain, spec:
            setup = _setup(config, model, spec, n_ctx)
            if template.note and any(prompt.messages for prompt in prompts):
                setup = replace(setup, notes=(*setup.notes, template.note))
            measurement = _Measurement(config, plain, spec, peer, progress, span)
            measurement.measure(prompts, ids)
            return measurement.result(setup)


def _n_ctx(config: BenchConfig, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> int:
    """The context's length; raises where a prompt and its text do not fit."""
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    need = len(ids[longest]) + config.n_tokens
    if config.n_ctx is None:
        return -(-need // _N_CTX_STEP) * _N_CTX_STEP
    if need > config.n_ctx:
        raise ContextFullError(
            f"prompt {prompts[longest].id!r} has {len(ids[longest])} tokens and is to be followed "
            f"by {config.n_tokens}, more than n_ctx={config.n_ctx} holds; choose {need}, or leave "
            "it out"
        )
    return config.n_ctx


def _setup(config: BenchConfig, model: Model, spec: Side, n_ctx: int) -> Setup:
    n_threads = spec.runtime.context.n_threads
    files = {"target": machine.describe_file(model.path)}
    if not isinstance(config.draft, Drafter) and Path(config.draft).is_file():
        files["draft"] = machine.describe_file(Path(config.draft))
    n_bytes, basis = weight_bytes(model)
    return Setup(
        target=model.description,
        drafter=spec.name,
        n_ctx=n_ctx,
        n_threads=n_threads,
        n_draft=spec.runtime.round.n_draft,
        weight_bytes=n_bytes,
        weight_basis=basis,
        streaming=None if model.is_on_gpu else machine.measure_streaming(n_threads),
        provenance={
            "versions": machine.versions(),
            "machine": machine.describe_machine(),
            "command": config.command,
            "files": files,
        },
    )


@dataclass(slots=True)
class _Measurement:
    """The runs as they come."""

    config: BenchConfig
    plain: Side
    spec: Side
    peer: Peer | None
    progress: Progress | None
    span: dict[str, Any]
    results: dict[str, PromptResult] = field(default_factory=dict)
    peer_failures: dict[str, str] = field(default_factory=dict)
    is_interrupted: bool = False
    failure: str | None = None
    _n_done: int = 0

    def measure(self, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> None:
        """Everything; an interruption or an error is noted."""
        n_steps = len(prompts) * self.config.repeats * (2 if self.peer is None else 3) + 1
        with self._ending():
            self._warm_up(prompts[0], ids[0])
            self._step(n_steps)
            for repeat in range(self.config.repeats):
                for prompt, tokens in zip(prompts, ids, strict=True):
                    self._measure_one(prompt, tokens, repeat, n_steps)
            for prompt, tokens in zip(prompts, ids, strict=True):
                self._explain_fork(prompt, tokens)
        self.span["finished"] = machine.now()
        self.span["load_average_end"] = machine.load_average()
        if self.progress is not None:
            self.progress(1.0)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True
        except PyllamaSpecError as error:
            self.failure = str(error)

    def _step(self, n_steps: int) -> None:
        self._n_done += 1
        if self.progress is not None:
            self.progress(min(self._n_done / n_steps, 0.999))

    def _warm_up(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        n = min(_WARM_UP_TOKENS, self.config.n_tokens)
        answer = self.plain.run(tokens, n)
        self._speculate(tokens, n, answer, "warm-up")
        self._ask(prompt, n)

    def _speculate(self, tokens: Sequence[int], n: int, answer: Run, key: str) -> Run:
        if self.spec.synthetic is not None:
            self.spec.synthetic.follow(len(tokens), answer.tokens, key)
        return self.spec.run(tokens, n)

    def _measure_one(
        self, prompt: Prompt, tokens: Sequence[int], repeat: int, n_steps: int
    ) -> None:
        """One pair of a prompt, and the peer's answer."""
        n, key = self.config.n_tokens, f"{prompt.id}/{repeat}"
        found = self.results.get(prompt.id)
        if repeat % 2 == 0:
            plain = self.plain.run(tokens, n)
            self._step(n_steps)
            spec = self._speculate(tokens, n, plain, key)
        else:
            assert found is not None, "the first repeat begins with plain decoding"
            spec = self._speculate(tokens, n, found.pairs[-1].plain, key)
            self._step(n_steps)
            plain = self.plain.run(tokens, n)
        self._step(n_steps)
        if found is None:
            found = PromptResult(prompt.id, prompt.category, len(tokens), ())
        pairs = (*found.pairs, Pair(plain, spec))
        # Kept before the peer is asked: its answer may never come.
        found = self.results[prompt.id] = replace(found, pairs=pairs, fork=find_fork(pairs))
        if self.config.peer is not None:
            answer = self._ask(prompt, n)
            if answer is not None:
                self.results[prompt.id] = replace(found, peer=(*found.peer, answer))
            self._step(n_steps)

    def _ask(self, prompt: Prompt, n: int) -> PeerRun | None:
        """The peer's answer; None where it has none, which is noted."""
        if self.peer is None:
            return None
        try:
            return self.peer.ask(prompt, n, self.config.temperature, self.config.seed)
        except PeerUnreachableError as error:
            self.peer = None
            self.peer_failures[prompt.id] = f"{error} It was not asked again"
        except PeerError as error:
            self.peer_failures.setdefault(prompt.id, str(error))
        return None

    def _explain_fork(self, prompt: Prompt, tokens: Sequence[int]) -> None:
        """Where a prompt's texts part, looks at the gap between plain decoding's top two."""
        found = self.results[prompt.id]
        if found.fork is not None:
            gap = self._top2_gap(found.pairs[found.fork.repeat], found.fork, tokens)
            fork = replace(found.fork, top2_gap=gap)
            self.results[prompt.id] = replace(found, fork=fork)

    def _top2_gap(self, pair: Pair, fork: Fork, tokens: Sequence[int]) -> float | None:
        """Decodes plainly once more up to the fork, and looks at the logits there."""
        gaps: list[float] = []

        def observe(row: int, token: int) -> None:
            second, first = np.partition(self.plain.runtime.context.logits(row), -2)[-2:]
            gaps.append(float(first - second))

        again = self.plain.run(tokens, fork.position + 1, observe)
        if again.tokens[: fork.position] != pair.plain.tokens[: fork.position]:
            return None  # plain decoding does not repeat itself here
        return gaps[fork.position] if fork.position < len(gaps) else None

    def result(self, setup: Setup) -> BenchResult:
        """What there is."""
        synthetic = self.spec.synthetic
        return BenchResult(
            config=self.config,
            setup=setup,
            prompts=tuple(self.results.values()),
            n_off_script=synthetic.n_off_script if synthetic is not None else 0,
            is_interrupted=self.is_interrupted,
            failure=self.failure,
            peer_failures=dict(self.peer_failures),
            span=self.span,
        )
