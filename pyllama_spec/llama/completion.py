"""Text completions: the ids of their prompts, and their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pyllama_spec.chat.prompts import check_fits, fim_tokens, prompt_tokens
from pyllama_spec.engine import Vocab
from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_model import SeedStream
from pyllama_spec.requests.options import Acceptance, RequestOptions

# One prompt, as text or as ids; or a list of them.
Prompts = str | bytes | Sequence[int] | Sequence[str | bytes] | Sequence[Sequence[int]]


class MoreOptions(TypedDict, total=False):
    """Request options that llama-cpp-python lacks: see RequestOptions."""

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
    n: int
    max_completion_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int] | None
    bad_words: str | Sequence[str] | None
    include_stop_str_in_output: bool
    thinking_token_budget: int | None
    reasoning_effort: str | None
    continue_final_message: bool | str | None
    add_generation_prompt: bool | None
    return_token_ids: bool
    stream_options: Mapping[str, Any] | None
    user: str | None
    remember: bool
    context_shift: bool
    n_keep: int
    return_token_sources: bool
    n_draft: int | None
    prediction: str | None
    acceptance: Acceptance | None


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
