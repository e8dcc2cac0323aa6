"""Measures plain and speculative decoding alternately, prompt by prompt, in one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyllama_spec.bench import machine
from pyllama_spec.bench.config import BenchConfig, load_prompts
from pyllama_spec.bench.figures import BenchResult, Pair, PromptResult, Setup, find_fork
from pyllama_spec.bench.sides import Side, open_sides
from pyllama_spec.chat.media_urls import MediaReader
from pyllama_spec.chat.pictures import take_pictures
from pyllama_spec.chat.prompt_file import Prompt
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import Drafter
from pyllama_spec.drafters.registry import AUTO, check_before, wants_head
from pyllama_spec.engine import Model
from pyllama_spec.engine.media import PlacedRows
from pyllama_spec.errors import ContextFullError, PyllamaSpecError
from pyllama_spec.llama.eyes import Eyes
from pyllama_spec.llama.eyes import Prompt as PromptRows
from pyllama_spec.llama.open_model import check_target, open_model

Progress = Callable[[float], None]
# Called with all measurements so far, as if the run had been interrupted, and the id of the prompt
# that was measured last.
OnPart = Callable[[BenchResult, str], None]
_WARM_UP_TOKENS = 32
# Attention reads the KV cache in steps of this many positions.
_N_CTX_STEP = 256


def run(
    config: BenchConfig,
    progress: Progress | None = None,
    on_part: OnPart | None = None,
) -> BenchResult:
    """Runs the benchmark.

    Each repeat goes through all prompts; of each prompt all sides are run directly after each
    other, in an order that changes with every repeat, from an empty memory. A short run of each
    comes first and is not counted. Ctrl-C, and an error while measuring, end it early: the result
    holds what was measured, and says so.

    Args:
        config: what to measure.
        progress: called with 0.0 .. 1.0.
        on_part: called after each measured prompt with the result so far, for callers that keep it
            on disk, and with the prompt's id.
    """
    span = {"started": machine.now(), "load_average_start": machine.load_average()}
    prompts = [prompt.as_chat(config.chat) for prompt in load_prompts(config.prompts)]
    drafts = (config.draft, *config.also)
    for one in drafts:
        check_before(one, config.model_path)
    is_head = any(wants_head(one, config.model_path) for one in drafts)
    with open_model(config, load_mtp=is_head) as model:
        check_target(model)
        template = ChatTemplate.of_model(model)
        # What is longer by its bytes alone needs -c: its tokens take much more memory.
        most = config.n_ctx or max(model.info.n_ctx_train, _N_CTX_STEP)
        read = _read(config, prompts, model, template, most)
        n_ctx = _n_ctx(config, prompts, [ids for ids, _ in read])
        plain, specs = open_sides(model, config, n_ctx)
        with contextlib.ExitStack() as stack:
            for side in (plain, *specs):
                stack.enter_context(side)
            setups = [
                _setup(config, draft, model, spec, n_ctx)
                for draft, spec in zip(drafts, specs, strict=True)
            ]
            if template.note and any(prompt.messages for prompt in prompts):
                setups = [replace(one, notes=(*one.notes, template.note)) for one in setups]
            measurement = _Measurement(config, setups, plain, specs, progress, on_part, span)
            measurement.measure(prompts, read)
            return measurement.result()


def _read(
    config: BenchConfig, prompts: Sequence[Prompt], model: Model, template: ChatTemplate, most: int
) -> list[PromptRows]:
    """The ids of each prompt, and the rows of its pictures."""
    taken = [take_pictures(prompt.messages, MediaReader()) for prompt in prompts]
    path, eyes = config.mmproj_path, None
    if path is not None and any(pictures for _, pictures in taken):
        options = config.arguments("projector")
        eyes = Eyes.open(model, path, n_threads=config.n_threads, **options)
    read: list[PromptRows] = []
    for prompt, (messages, pictures) in zip(prompts, taken, strict=True):
        if eyes is None or not pictures:
            read.append((tuple(prompt.tokens(model.vocab, template, most)), ()))
        else:
            rendered = template.render(messages, tools=prompt.tools or None)
            read.append(eyes.prompt(rendered, pictures, most, user=""))
    if eyes is not None:
        eyes.close()
    return read


def _n_ctx(config: BenchConfig, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> int:
    """The context length; raises where a prompt and its text do not fit."""
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    need = len(ids[longest]) + config.n_tokens
    if config.n_ctx is None:
        return -(-need // _N_CTX_STEP) * _N_CTX_STEP
    if need > config.n_ctx:
        raise ContextFullError(
            f": prompt {prompts[longest].id!r} asks for {config.n_tokens} of them", n_tokens=need,
            n_ctx=config.n_ctx, setup=f"give `n_ctx={need}`, or omit it",
        )  # fmt: skip
    return config.n_ctx


def _setup(
    config: BenchConfig,
    draft: str | os.PathLike[str] | Drafter,
    model: Model,
    spec: Side,
    n_ctx: int,
) -> Setup:
    files = {"target": machine.describe_file(model.path)}
    is_auto = isinstance(draft, str) and draft == AUTO
    file = spec.draft_path
    if file is not None:
        files["draft"] = machine.describe_file(file)
    name = spec.name if file is None else file.name
    return Setup(
        target=model.description,
        drafter=spec.name,
        draft=f"auto: {name}" if is_auto else name,
        n_ctx=n_ctx,
        n_threads=spec.runtime.context.n_threads,
        max_draft=spec.runtime.round.max_draft,
        placement=model.placement,
        draft_placement=spec.draft_placement,
        provenance={
            "versions": machine.versions(),
            "machine": machine.describe_machine(),
            "command": config.command,
            "files": files,
        },
        notes=(spec.draft_note,) if is_auto and spec.draft_note else (),
    )


@dataclass(slots=True)
class _Measurement:
    """The runs measured so far."""

    config: BenchConfig
    setups: Sequence[Setup]
    plain: Side
    specs: Sequence[Side]
    progress: Progress | None
    on_part: OnPart | None
    span: dict[str, Any]
    # The results of each draft, by prompt.
    results: list[dict[str, PromptResult]] = field(default_factory=list)
    is_interrupted: bool = False
    failure: str | None = None
    _n_done: int = 0

    def measure(self, prompts: Sequence[Prompt], read: Sequence[PromptRows]) -> None:
        """Measures all prompts; notes an interruption or an error."""
        n_sides = 1 + len(self.specs)
        n_steps = len(prompts) * self.config.repeats * n_sides + 1
        self.results = [{} for _ in self.specs]
        with self._ending():
            self._warm_up(*read[0])
            self._step(n_steps)
            for repeat in range(self.config.repeats):
                for prompt, (ids, media) in zip(prompts, read, strict=True):
                    self._measure_one(prompt, ids, media, repeat, n_steps)
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

    def _warm_up(self, tokens: Sequence[int], media: Sequence[PlacedRows]) -> None:
        n = min(_WARM_UP_TOKENS, self.config.n_tokens)
        self.plain.run(tokens, n, media)
        for side in self.specs:
            side.run(tokens, n, media)

    def _measure_one(
        self,
        prompt: Prompt,
        tokens: Sequence[int],
        media: Sequence[PlacedRows],
        repeat: int,
        n_steps: int,
    ) -> None:
        """Measures one text of each side."""
        n, plain = self.config.n_tokens, None
        if repeat % 2 == 0:
            plain = self.plain.run(tokens, n, media)
            self._step(n_steps)
        specs = []
        for side in self.specs:
            specs.append(side.run(tokens, n, media))
            self._step(n_steps)
        if plain is None:
            plain = self.plain.run(tokens, n, media)
            self._step(n_steps)
        for results, spec in zip(self.results, specs, strict=True):
            result = results.get(prompt.id)
            if result is None:
                result = PromptResult(prompt.id, prompt.category, len(tokens), ())
            pairs = (*result.pairs, Pair(plain, spec))
            results[prompt.id] = replace(result, pairs=pairs, fork=find_fork(pairs))
        if self.on_part is not None:
            self.on_part(self.result(is_part=True), prompt.id)

    def result(self, *, is_part: bool = False) -> BenchResult:
        """The result so far; is_part: as if the measurement had been interrupted here."""
        by_setup = [
            BenchResult(
                config=self.config,
                setup=setup,
                prompts=tuple(results.values()),
                is_interrupted=self.is_interrupted or is_part,
                failure=self.failure,
                span=self.span,
            )
            for setup, results in zip(self.setups, self.results, strict=True)
        ]
        return replace(by_setup[0], others=tuple(by_setup[1:]))
