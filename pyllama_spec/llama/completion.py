"""Text completions: of one prompt, or of a list of prompts."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pyllama_spec.chat.prompts import check_fits, fim_tokens, prompt_tokens
from pyllama_spec.engine.checks import boolean, instance
from pyllama_spec.errors import ArgumentError, ContextFullError, UnsupportedError
from pyllama_spec.llama import responses
from pyllama_spec.llama.batch import (
    check_lengths,
    choice_chunks,
    complete_all,
    each_prompt,
    is_list_of_prompts,
    options_of_choices,
)
from pyllama_spec.llama.caches import KeptState, KeptStates
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.llama.overridable import Overridable, is_overridden
from pyllama_spec.llama.report import Report
from pyllama_spec.llama.responses import (
    Deferred,
    Envelope,
    Reply,
    Response,
    Stream,
    answering_model,
    check_stream,
)
from pyllama_spec.llama.thoughts import ThoughtTags
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative.sequence import n_common


class Completions:
    """Starts completion requests, and handles the cache and log of every request."""

    def __init__(self, opened: OpenModel) -> None:
        self._opened = opened
        self._states = KeptStates(opened)
        self.thoughts = ThoughtTags(opened.model)

    def create(
        self,
        llm: Overridable,
        prompt: Any,
        suffix: str | None,
        options: Mapping[str, Any],
        *,
        model: str | None,
        echo: bool,
        stream: bool | Deferred,
        progress: bool | None,
    ) -> Response | Stream:
        """See Llama.create_completion; `options` are those of RequestOptions."""
        is_stream, echo = check_stream(stream), boolean(echo, "echo")
        request = RequestOptions.from_keywords(options)
        report = Report(request, stream=is_stream)
        name = answering_model(llm.model_path, model)

        def each(prompt: object) -> list[responses.Completion]:
            return self._completions(llm, prompt, suffix, request, echo=echo)

        is_list = is_list_of_prompts(prompt)
        if is_list and is_stream:
            raise UnsupportedError("stream=True is for one prompt; make a stream for each")
        answers = each_prompt(prompt, each) if is_list else [each(prompt)]
        completions = [one for of_prompt in answers for one in of_prompt]
        envelope = Envelope.make("cmpl", name)
        is_shown = llm.verbose if progress is None else progress
        if is_list:
            check_lengths(completions, llm.n_ctx())
            generations = [one.generation for one in completions]
            whole = partial(complete_all, completions, envelope, is_shown, request.n)
            handle = Stream(generations, None, report.of_whole(whole, generations), envelope.id)
        else:
            handle = self.handle(llm, completions, envelope, report, is_shown=is_shown)
        return handle if is_stream or isinstance(stream, Deferred) else handle.result()

    def _completions(
        self,
        llm: Overridable,
        prompt: object,
        suffix: str | None,
        request: RequestOptions,
        *,
        echo: bool,
    ) -> list[responses.Completion]:
        """Prepares the n answers to a prompt."""
        tokens = self._tokens(llm, prompt, suffix)
        request = self.thoughts.of_text(llm, tokens, request)
        vocab, n_top, head = self._opened.model.vocab, request.logprobs, ""
        if echo or n_top is not None:
            is_text = isinstance(prompt, str)
            head = str(prompt) if is_text else vocab.detokenize(tokens).decode(errors="replace")
        completions = [
            responses.Completion(
                self._opened.generation(tokens, one, last_n=llm.last_n_tokens_size), vocab,
                head if echo else "", n_top is not None, len(head),
            )
            for one in options_of_choices(request, self._opened.seeds)
        ]  # fmt: skip
        if echo and n_top is not None:
            of_prompt = self._opened.prompt_logprobs(tokens, n_top)
            for completion in completions:
                completion.prompt_logprobs = of_prompt
        return completions

    def _tokens(self, llm: Overridable, prompt: object, suffix: str | None) -> list[int]:
        vocab, n_ctx = self._opened.model.vocab, self._opened.runtime.context.n_ctx_seq
        check_fits(vocab, prompt, n_ctx)
        if suffix is None:
            return prompt_tokens(vocab, prompt)
        check_fits(vocab, suffix, n_ctx)
        return fim_tokens(vocab, prompt, suffix, is_spm=llm.spm_infill)

    def generate_steps(
        self,
        llm: Overridable,
        prompt: str | Sequence[int],
        options: RequestOptions | None,
        keywords: Mapping[str, Any],
    ) -> Generation:
        """See Llama.generate_steps."""
        if options is not None and keywords:
            raise ArgumentError(
                "options", problem="and keywords exclude each other", remedy="give one of them"
            )
        instance(options, (RequestOptions, type(None)), "options")
        request = options if options is not None else RequestOptions.from_keywords(keywords)
        tokens = self._tokens(llm, prompt, None)
        request = self.thoughts.of_text(llm, tokens, request)
        return self._opened.generation(tokens, request, last_n=llm.last_n_tokens_size)

    # ---- what happens around a request, a chat's too

    def handle(
        self,
        llm: Overridable,
        replies: Sequence[Reply],
        envelope: Envelope,
        report: Report,
        *,
        is_shown: bool = False,
    ) -> Stream:
        """The handle of a prepared request, with its cache and its log line."""
        generations = [one.generation for one in replies]
        whole = partial(replies[0].whole, envelope)
        if len(replies) > 1:
            whole = partial(complete_all, replies, envelope, is_shown, len(replies))
        kept: list[KeptState | None] = [None for _ in generations]
        if llm.cache is not None:
            prompt = generations[0].record.prompt_tokens
            state = self._states.find(llm.cache, prompt)
            if state is not None and is_overridden(llm, "load_state"):
                self._load(llm, state, prompt)
                state = None
            for i, generation in enumerate(generations):
                kept[i] = one = KeptState(self._opened, state)
                generation.look_after(one)

        def note() -> None:
            for generation, one in zip(generations, kept, strict=True):
                self._note(llm, generation, one)

        def told(i: int) -> Generator[Response, None, None]:
            return report.chunks(replies[i].chunks(envelope), generations[i].record)

        width = self._opened.runtime.context.n_seq_max
        chunks = report.with_usage(choice_chunks(generations, told, width), len(generations))

        def noting() -> Generator[Response, None, None]:
            yield from chunks
            note()

        def noted() -> Response:
            response = whole()
            note()
            return response

        return Stream(generations, noting(), report.of_whole(noted, generations), envelope.id)

    def _load(self, llm: Overridable, state: LlamaState, prompt: Sequence[int]) -> None:
        """Calls the user's own load_state() for a cached state that holds more of the prompt."""
        with self._opened.runtime.runner.visit() as sequence:
            n_held = n_common(sequence.tokens[: sequence.n_decoded], prompt)
        if n_common(state.tokens[: state.n_decoded], prompt) > n_held:
            with suppress(ContextFullError):  # as without a cache: the prompt is read
                llm.load_state(state)

    def _note(self, llm: Overridable, generation: Generation, kept: KeptState | None) -> None:
        """Stores the state after a request in the cache, and logs its figures."""
        record = generation.record
        if llm.cache is not None and kept is not None and kept.behind_it is not None:
            tokens = [*record.prompt_tokens, *record.tokens]
            self._states.keep(llm.cache, tokens, kept.behind_it)
        if llm.verbose:
            timing, usage = record.timing.as_dict(), record.usage
            sys.stderr.write(
                f"{usage['prompt_tokens']} tokens read in {timing['prompt_s']:.3f} s, "
                f"{usage['completion_tokens']} generated in {timing['decode_s']:.3f} s "
                f"({timing['decode_tps']:.1f} per second), "
                f"{record.stats.tokens_per_round:.2f} per round\n"
            )
