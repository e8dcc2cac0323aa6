"""Texts continued: completions of one prompt, or of a list of them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypedDict

from pyllama_spec.chat.prompts import fim_tokens, prompt_tokens
from pyllama_spec.engine.checks import instance
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama import responses
from pyllama_spec.llama.batch import check_lengths, complete_all, each_prompt, is_list_of_prompts
from pyllama_spec.llama.caches import longest_token_prefix
from pyllama_spec.llama.low_level import LowLevel
from pyllama_spec.llama.open_model import OpenModel
from pyllama_spec.llama.overridable import Overridable
from pyllama_spec.llama.responses import Envelope, Response, Stream, answering_model
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import RequestOptions

# One prompt, as text or as ids; or a list of them.
Prompts = str | bytes | Sequence[int] | Sequence[str | bytes] | Sequence[Sequence[int]]


class MoreOptions(TypedDict, total=False):
    """Options of a request beside llama-cpp-python's: see RequestOptions."""

    min_keep: int
    top_n_sigma: float
    penalty_last_n: int | None
    penalize_prompt: bool | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_breakers: Sequence[str]
    xtc_probability: float
    xtc_threshold: float


class Completions:
    """Requests for completions, and what happens around every request.

    Args:
        opened: the model.
        low_level: begins the generations.

    """

    def __init__(self, opened: OpenModel, low_level: LowLevel) -> None:
        self._opened, self._low_level = opened, low_level

    def create(
        self,
        llm: Overridable,
        prompt: Any,
        suffix: str | None,
        options: Mapping[str, Any],
        *,
        model: str | None,
        echo: bool,
        stream: bool,
        progress: bool | None,
    ) -> Response | Stream:
        """See Llama.create_completion; `options` are those of RequestOptions."""
        instance(stream, bool, "stream")
        instance(echo, bool, "echo")
        request = RequestOptions.from_keywords(options)
        name = answering_model(llm.model_path, model)
        if is_list_of_prompts(prompt):
            if stream:
                raise UnsupportedError("stream=True is for one prompt; make a stream for each")
            completions = each_prompt(
                prompt, lambda one: self._completion(llm, one, suffix, request, echo=echo)
            )
            check_lengths(completions, llm.n_ctx())
            is_shown = llm.verbose if progress is None else progress
            return complete_all(completions, Envelope.make("cmpl", name), is_shown)
        completion = self._completion(llm, prompt, suffix, request, echo=echo)
        self.restore_cached(llm, completion.generation.record.prompt_tokens)
        envelope = Envelope.make("cmpl", name)
        if stream:
            chunks = self.noting(llm, completion.chunks(envelope), completion.generation)
            return Stream(completion.generation, chunks)
        response = completion.whole(envelope)
        self.note(llm, completion.generation)
        return response

    def _completion(
        self,
        llm: Overridable,
        prompt: object,
        suffix: str | None,
        request: RequestOptions,
        *,
        echo: bool,
    ) -> responses.Completion:
        """A text completion that has not begun."""
        vocab, has_logprobs = self._opened.model.vocab, request.logprobs is not None
        if suffix is None:
            tokens = prompt_tokens(vocab, prompt)
        else:
            tokens = fim_tokens(vocab, prompt, suffix, is_spm=llm.spm_infill)
        head = ""
        if echo or has_logprobs:
            is_text = isinstance(prompt, str)
            head = str(prompt) if is_text else vocab.detokenize(tokens).decode(errors="replace")
        generation = self._low_level.generation(llm, tokens, request)
        echoed = head if echo else ""
        completion = responses.Completion(generation, vocab, echoed, has_logprobs, len(head))
        if echo and has_logprobs:
            n_top = request.logprobs or 0
            completion.prompt_logprobs = self._low_level.prompt_logprobs(tokens, n_top)
        return completion

    def generate_steps(
        self,
        llm: Overridable,
        prompt: str | Sequence[int],
        options: RequestOptions | None,
        keywords: Mapping[str, Any],
    ) -> Generation:
        """See Llama.generate_steps."""
        if options is not None and keywords:
            raise ArgumentError("give options or keywords, not both")
        instance(options, (RequestOptions, type(None)), "options")
        request = options if options is not None else RequestOptions.from_keywords(keywords)
        tokens = prompt_tokens(self._opened.model.vocab, prompt)
        return self._low_level.generation(llm, tokens, request)

    # ---- what happens around a request, a chat's too

    def restore_cached(self, llm: Overridable, prompt: Sequence[int]) -> None:
        """Goes back to a state of the cache that holds more of the prompt than the memory does."""
        if llm.cache is None:
            return
        try:
            state = llm.cache[prompt]
        except KeyError:
            return
        sequence = self._low_level.state()
        n_held = longest_token_prefix(sequence.tokens[: sequence.n_decoded], prompt)
        if longest_token_prefix(state.tokens[: state.n_decoded], prompt) > n_held:
            seed = self._opened.seeds.state  # a cache is no going back in time
            llm.load_state(state)
            self._opened.seeds.state = seed

    def note(self, llm: Overridable, generation: Generation) -> None:
        """Keeps the state behind a request in the cache, and says what it took."""
        record = generation.record
        if llm.cache is not None:
            llm.cache[[*record.prompt_tokens, *record.tokens]] = llm.save_state()
        if llm.verbose:
            timing, usage = record.timing.as_dict(), record.usage
            sys.stderr.write(
                f"{usage['prompt_tokens']} tokens read in {timing['prompt_s']:.3f} s, "
                f"{usage['completion_tokens']} generated in {timing['decode_s']:.3f} s "
                f"({timing['decode_tps']:.1f} per second), "
                f"{record.stats.tokens_per_round:.2f} per round\n"
            )

    def noting(
        self, llm: Overridable, chunks: Generator[Response, None, None], generation: Generation
    ) -> Generator[Response, None, None]:
        """The chunks of a stream, and note() behind the last one."""
        yield from chunks
        self.note(llm, generation)
