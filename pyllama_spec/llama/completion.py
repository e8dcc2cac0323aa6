"""Text completions: the ids of their prompts, and their options."""

from __future__ import annotations

from collections.abc import Sequence

from pyllama_spec.chat.prompts import check_fits, fim_tokens, prompt_tokens
from pyllama_spec.engine import Vocab
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_model import SeedStream
from pyllama_spec.requests.options import RequestOptions


def is_list_of_prompts(prompt: object) -> bool:
    """Whether a value is a list of texts or of lists of ids, not one prompt."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return isinstance(prompt[0], (str, bytes, list, tuple))


def completion_tokens(
    vocab: Vocab, n_ctx: int, prompt: object, suffix: str | None = None, *, is_spm: bool = False
) -> list[int]:
    """The ids of a prompt, or of the gap between it and a suffix."""
    check_fits(vocab, prompt, n_ctx)
    if suffix is None:
        return prompt_tokens(vocab, prompt)
    check_fits(vocab, suffix, n_ctx)
    return fim_tokens(vocab, prompt, suffix, is_spm=is_spm)


def options_of_choices(request: RequestOptions, seeds: SeedStream) -> list[RequestOptions]:
    """The options of each answer; a request draws one seed from the model's stream."""
    if request.n == 1:
        return [request]
    seed = seeds.draw() if request.seed is None else None
    return [request.of_choice(i, seed) for i in range(request.n)]


def check_usage_options(request: RequestOptions, *, is_stream: bool) -> None:
    """Refuses options of a stream for a whole answer."""
    if request.stream_options is not None and not is_stream:
        raise ArgumentError(
            "stream_options", request.stream_options, problem="is for `stream=True`",
            remedy="leave it out: a whole answer has its usage anyway",
        )  # fmt: skip
