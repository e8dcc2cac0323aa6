"""Texts continued: Llama's requests for completions."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from pyllama_spec.chat.prompts import fim_tokens, prompt_tokens
from pyllama_spec.engine.checks import instance
from pyllama_spec.errors import UnsupportedError
from pyllama_spec.llama import responses
from pyllama_spec.llama.batch import check_lengths, complete_all, each_prompt, is_list_of_prompts
from pyllama_spec.llama.caches import BaseLlamaCache, longest_token_prefix
from pyllama_spec.llama.low_level import LowLevel
from pyllama_spec.llama.responses import Envelope, Response, Stream
from pyllama_spec.requests.generation import Generation
from pyllama_spec.requests.options import RequestOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

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


class Completions(LowLevel):
    """What Llama does with prompts."""

    model_path: str
    verbose = False
    spm_infill = False
    cache: BaseLlamaCache | None = None

    # fmt: off
    @overload
    def create_completion(
        self, prompt: Prompts, suffix: str | None = ..., max_tokens: int | None = ..., temperature:
        float = ..., top_p: float = ..., min_p: float = ..., typical_p: float = ..., logprobs: int |
        None = ..., echo: bool = ..., stop: str | Sequence[str] | None = ..., frequency_penalty:
        float = ..., presence_penalty: float = ..., repeat_penalty: float = ..., top_k: int = ...,
        stream: Literal[False] = ..., seed: int | None = ..., tfs_z: float = ..., mirostat_mode: int
        = ..., mirostat_tau: float = ..., mirostat_eta: float = ..., model: str | None = ...,
        stopping_criteria: Any = ..., logits_processor: Any = ..., grammar: Any = ..., logit_bias:
        Mapping[Any, float] | None = ..., *, response_format: Mapping[str, Any] | None = ...,
        progress: bool | None = ..., **more: Unpack[MoreOptions],
    ) -> Response: ...

    @overload
    def create_completion(
        self, prompt: Prompts, suffix: str | None = ..., max_tokens: int | None = ..., temperature:
        float = ..., top_p: float = ..., min_p: float = ..., typical_p: float = ..., logprobs: int |
        None = ..., echo: bool = ..., stop: str | Sequence[str] | None = ..., frequency_penalty:
        float = ..., presence_penalty: float = ..., repeat_penalty: float = ..., top_k: int = ...,
        *, stream: Literal[True], seed: int | None = ..., tfs_z: float = ..., mirostat_mode: int =
        ..., mirostat_tau: float = ..., mirostat_eta: float = ..., model: str | None = ...,
        stopping_criteria: Any = ..., logits_processor: Any = ..., grammar: Any = ..., logit_bias:
        Mapping[Any, float] | None = ..., response_format: Mapping[str, Any] | None = ..., progress:
        bool | None = ..., **more: Unpack[MoreOptions],
    ) -> Stream: ...

    @overload
    def create_completion(
        self, prompt: Prompts, *options: Any, **more: Any
    ) -> Response | Stream: ...

    def create_completion(  # noqa: D417 - the like share a line
        self, prompt: Prompts, suffix: str | None = None, max_tokens: int | None = 16,
        temperature: float = 0.8, top_p: float = 0.95, min_p: float = 0.05, typical_p: float = 1.0,
        logprobs: int | None = None, echo: bool = False, stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0, presence_penalty: float = 0.0, repeat_penalty: float = 1.0,
        top_k: int = 40, stream: bool = False, seed: int | None = None, tfs_z: float = 1.0,
        mirostat_mode: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
        model: str | None = None, stopping_criteria: Any = None, logits_processor: Any = None,
        grammar: Any = None, logit_bias: Mapping[Any, float] | None = None, *,
        response_format: Mapping[str, Any] | None = None, progress: bool | None = None,
        **more: Unpack[MoreOptions],
    ) -> Response | Stream:
        # fmt: on
        """Continues a text, or each text of a list.

        Args:
            prompt: text or token ids. In text, names of control tokens are those tokens. Of a list
                of prompts as many are computed side by side as n_parallel says; the result has a
                choice for each, in their order, and the options, `seed` too, are those of each.
                Where one fails the others are answered all the same; the error has them in its
                `partial_choices`, and None in the place of what failed.
            suffix: text that comes after what is generated, for models with fill-in-the-middle.
            echo: begin the text with the prompt; with logprobs, those of the prompt are there too.
            stream: give chunks as they come instead of one result; for one prompt.
            progress: show a bar while a list is answered; None for what verbose says.
            model: the name in the result; the path by default.
            more: any other field of RequestOptions, which also says what the rest is.

        Returns:
            A dict as OpenAI's text completion, with `speculation` and `timing`; or a Stream of
            such dicts, the last one with finish_reason, `usage`, `speculation` and `timing`.

        Raises:
            ArgumentError: an option does not exist or is out of range.
            UnsupportedError: the model has no fill-in-the-middle tokens, and suffix is given.
            PyllamaSpecError: whatever Generation raises.

        """
        options: dict[str, Any] = {
            "max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "top_k": top_k,
            "min_p": min_p, "typical_p": typical_p, "logprobs": logprobs, "stop": stop,
            "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty,
            "repeat_penalty": repeat_penalty, "seed": seed, "tfs_z": tfs_z, "grammar": grammar,
            "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau, "logit_bias": logit_bias,
            "mirostat_eta": mirostat_eta, "stopping_criteria": stopping_criteria,
            "logits_processor": logits_processor, "response_format": response_format, **more,
        }  # fmt: skip
        instance(stream, bool, "stream")
        instance(echo, bool, "echo")
        request = RequestOptions.from_keywords(options)
        return self._complete(prompt, suffix, request, model, echo, stream, progress)

    if TYPE_CHECKING:
        __call__ = create_completion
    else:

        @wraps(create_completion)
        def __call__(self, *options: Any, **more: Any) -> Any:
            """create_completion(), also where a subclass has its own."""
            return self.create_completion(*options, **more)

    def _complete(
        self,
        prompt: Any,
        suffix: str | None,
        request: RequestOptions,
        model: str | None,
        echo: bool,
        stream: bool,
        progress: bool | None,
    ) -> Response | Stream:
        name = self.model_path if model is None else model
        if is_list_of_prompts(prompt):
            if stream:
                raise UnsupportedError("stream=True is for one prompt; make a stream for each")
            found = each_prompt(
                prompt, lambda one: self._completion(one, suffix, request, echo=echo)
            )
            check_lengths(found, self.n_ctx())
            is_shown = self.verbose if progress is None else progress
            return complete_all(found, Envelope.make("cmpl", name), is_shown)
        completion = self._completion(prompt, suffix, request, echo=echo)
        self._look_up(completion.generation.record.prompt_tokens)
        envelope = Envelope.make("cmpl", name)
        if stream:
            chunks = self._noted(completion.chunks(envelope), completion.generation)
            return Stream(completion.generation, chunks)
        response = completion.whole(envelope)
        self._note(completion.generation)
        return response

    def _completion(
        self, prompt: object, suffix: str | None, request: RequestOptions, *, echo: bool
    ) -> responses.Completion:
        """A text completion that has not begun."""
        vocab, has_logprobs = self._open.vocab, request.logprobs is not None
        if suffix is None:
            tokens = prompt_tokens(vocab, prompt)
        else:
            tokens = fim_tokens(vocab, prompt, suffix, is_spm=self.spm_infill)
        head = ""
        if echo or has_logprobs:
            is_text = isinstance(prompt, str)
            head = str(prompt) if is_text else vocab.detokenize(tokens).decode(errors="replace")
        generation = self._generation(tokens, request)
        own = head if echo else ""
        completion = responses.Completion(generation, vocab, own, has_logprobs, len(head))
        if echo and has_logprobs:
            completion.prompt_logprobs = self._prompt_logprobs(tokens, request.logprobs or 0)
        return completion

    # ---- what happens around a request

    def set_cache(self, cache: BaseLlamaCache | None) -> None:
        """Keeps states of past requests, beside the last one, which is always kept.

        A state is a copy of the memory: large, and worth it where long beginnings take turns.
        """
        if cache is not None:
            instance(cache, BaseLlamaCache, "the cache")
        self.cache = cache

    def _look_up(self, prompt: Sequence[int]) -> None:
        """Goes back to a kept state that holds more of the prompt than the memory does."""
        if self.cache is None:
            return
        try:
            state = self.cache[prompt]
        except KeyError:
            return
        held = self._state()
        n_held = longest_token_prefix(held.tokens[: held.n_decoded], prompt)
        if longest_token_prefix(state.tokens[: state.n_decoded], prompt) > n_held:
            seed = self._seeds.state  # a cache is no going back in time
            self.load_state(state)
            self._seeds.state = seed

    def _note(self, generation: Generation) -> None:
        """Keeps the state behind a request, and says what it took."""
        record = generation.record
        if self.cache is not None:
            self.cache[[*record.prompt_tokens, *record.tokens]] = self.save_state()
        if self.verbose:
            timing, usage = record.timing.as_dict(), record.usage
            sys.stderr.write(
                f"{usage['prompt_tokens']} tokens read in {timing['prompt_s']:.3f} s, "
                f"{usage['completion_tokens']} generated in {timing['decode_s']:.3f} s "
                f"({timing['decode_tps']:.1f} per second), "
                f"{record.stats.tokens_per_round:.2f} per round\n"
            )

    def _noted(
        self, chunks: Generator[Response, None, None], generation: Generation
    ) -> Generator[Response, None, None]:
        yield from chunks
        self._note(generation)
