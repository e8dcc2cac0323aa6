"""Texts continued: completions of one prompt, or of a list of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypedDict

from pyllama_spec.chat.prompts import fim_tokens, prompt_tokens
from pyllama_spec.engine.checks import instance
from pyllama_spec.errors import ArgumentError, UnsupportedError
from pyllama_spec.llama import responses
from pyllama_spec.llama.batch import check_lengths, complete_all, each_prompt, is_list_of_prompts
from pyllama_spec.llama.caches import BaseLlamaCache, longest_token_prefix
from pyllama_spec.llama.low_level import LowLevel
from pyllama_spec.llama.open_model import LlamaState, OpenModel
from pyllama_spec.llama.overridable import Overridable
from pyllama_spec.llama.responses import (
    Deferred,
    Envelope,
    Response,
    Stream,
    answering_model,
    check_stream,
)
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import SequenceState

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
        # Caches are of anyone's making; several threads come to them.
        self._cache_lock = threading.Lock()

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
        check_stream(stream)
        instance(echo, bool, "echo")
        request = RequestOptions.from_keywords(options)
        name = answering_model(llm.model_path, model)
        if is_list_of_prompts(prompt):
            if stream is True or stream is Deferred.CHUNKS:
                raise UnsupportedError("stream=True is for one prompt; make a stream for each")
            completions = each_prompt(
                prompt, lambda one: self._completion(llm, one, suffix, request, echo=echo)
            )
            check_lengths(completions, llm.n_ctx())
            is_shown = llm.verbose if progress is None else progress
            envelope = Envelope.make("cmpl", name)
            generations = [completion.generation for completion in completions]
            all_of_them = partial(complete_all, completions, envelope, is_shown)
            handle = Stream(generations, None, all_of_them, envelope.id)
        else:
            completion = self._completion(llm, prompt, suffix, request, echo=echo)
            envelope = Envelope.make("cmpl", name)
            chunks, whole = completion.chunks(envelope), partial(completion.whole, envelope)
            handle = self.handle(llm, completion.generation, chunks, whole, envelope)
        return handle if stream or isinstance(stream, Deferred) else handle.result()

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

    def handle(
        self,
        llm: Overridable,
        generation: Generation,
        chunks: Generator[Response, None, None],
        whole: Callable[[], Response],
        envelope: Envelope,
    ) -> Stream:
        """The handle of a request that has not begun: with its cache, and what it took said."""
        kept = None
        if llm.cache is not None:
            kept = _Cached(self._opened, self._cached(llm.cache, generation.record.prompt_tokens))
            generation.look_after(kept)

        def noting() -> Generator[Response, None, None]:
            yield from chunks
            self._note(llm, generation, kept)

        def noted() -> Response:
            response = whole()
            self._note(llm, generation, kept)
            return response

        return Stream([generation], noting(), noted, envelope.id)

    def _cached(self, cache: BaseLlamaCache, prompt: Sequence[int]) -> LlamaState | None:
        """The state of the cache that holds most of a prompt."""
        try:
            with self._cache_lock:
                return cache[prompt]
        except KeyError:
            return None

    def _note(self, llm: Overridable, generation: Generation, kept: _Cached | None) -> None:
        """Puts the state behind a request into the cache, and says what it took."""
        record = generation.record
        if llm.cache is not None and kept is not None and kept.behind_it is not None:
            with self._cache_lock:
                llm.cache[[*record.prompt_tokens, *record.tokens]] = kept.behind_it
        if llm.verbose:
            timing, usage = record.timing.as_dict(), record.usage
            sys.stderr.write(
                f"{usage['prompt_tokens']} tokens read in {timing['prompt_s']:.3f} s, "
                f"{usage['completion_tokens']} generated in {timing['decode_s']:.3f} s "
                f"({timing['decode_tps']:.1f} per second), "
                f"{record.stats.tokens_per_round:.2f} per round\n"
            )


class _Cached:
    """What the cache has for a request, and will have of it.

    Args:
        opened: the model.
        state: what the cache had for its prompt.

    Attributes:
        behind_it: what its own sequence held when its text had come to its end; None before.

    """

    def __init__(self, opened: OpenModel, state: LlamaState | None) -> None:
        self._opened, self._state = opened, state
        self.behind_it: LlamaState | None = None

    def before(self, state: SequenceState, prompt: Sequence[int]) -> None:
        """Goes back to the cache's state if that holds more of the prompt than the sequence."""
        cached, self._state = self._state, None
        if cached is None:
            return
        n_held = longest_token_prefix(state.tokens[: state.n_decoded], prompt)
        if longest_token_prefix(cached.tokens[: cached.n_decoded], prompt) > n_held:
            with suppress(ArgumentError):  # of other settings: the prompt is read
                self._opened.restore(state, cached)

    def behind(self, state: SequenceState) -> None:
        """Copies what the sequence holds."""
        self.behind_it = self._opened.state_of(state)
