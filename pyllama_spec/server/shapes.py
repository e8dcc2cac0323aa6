"""The accepted request bodies, as OpenAI and llama-server publish them.

Unknown fields are ignored, as clients send many without effect; the log names them. The library
checks values beyond their type, so that HTTP refuses a request as Python does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pyllama_spec.requests.options import Acceptance

Json = dict[str, Any]
# A token's id and what is added to its logit, false for never: llama-server's form.
Bias = tuple[int | str, float | bool]
# Lists that a request is checked against token by token, or that are gone through for each.
_MANY = Meta(max_length=10_000)
Texts = Annotated[list[str], Meta(max_length=64)]
Biases = Annotated[dict[str, float], _MANY] | Annotated[list[Bias], _MANY]
Name = Annotated[str, Meta(max_length=256)]
# One prompt, as text or ids, or a list of them.
Prompt = str | list[str | int | list[int]]


class StreamOptions(Struct, kw_only=True):
    """The options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Speculation(Struct, kw_only=True, forbid_unknown_fields=True):
    """How a request drafts, and whether its answer reports the origin of each token.

    Attributes:
        draft: False decodes plainly. The text is the same.
        n_draft: the most tokens to draft per round.
        acceptance: "exact", "noise" or "distribution", see Llama; None for the server's own.
        show_tokens: whether each choice and chunk has `token_sources`.

    """

    draft: bool = True
    n_draft: int | None = None
    acceptance: Acceptance | None = None
    show_tokens: bool = False


class Prediction(Struct, kw_only=True):
    """OpenAI's field for a text that the answer is expected to repeat."""

    content: str | list[Json]
    type: Literal["content"] = "content"


class Sampling(Struct, kw_only=True):
    """The fields that chats and texts share: RequestOptions under the APIs' names."""

    model: Name | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    n: int | None = None
    stop: str | Texts | None = None
    stop_token_ids: Annotated[list[int], _MANY] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: str | Annotated[list[str], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: Biases | None = None
    grammar: str | None = None
    json_schema: Json | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], _MANY] | None = None
    guided_grammar: str | None = None
    context_shift: bool | None = None
    n_keep: int | None = None
    return_token_ids: bool | None = None
    timeout: Annotated[float, Meta(ge=0)] | None = None
    user: str | None = None
    remember: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None
    prediction: Prediction | None = None


class ChatRequest(Sampling, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Json]
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    functions: list[Json] | None = None
    function_call: str | Json | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: Json | None = None
    continue_final_message: bool | str | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(Sampling, kw_only=True):
    """The body of /v1/completions."""

    prompt: Prompt
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class EmbeddingRequest(Struct, kw_only=True):
    """The body of /v1/embeddings."""

    input: Prompt
    model: Name | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class RerankRequest(Struct, kw_only=True):
    """The body of /v1/rerank; `texts` and `return_text` are the names of another published form."""

    query: str
    documents: list[str | Json] | None = None
    texts: list[str] | None = None
    model: Name | None = None
    top_n: int | None = None
    return_documents: bool = False
    return_text: bool = False


class TokenizeRequest(Struct, kw_only=True):
    """The body of /tokenize."""

    content: str
    model: Name | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Struct, kw_only=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: Name | None = None


class NativeSampling(Sampling, kw_only=True):
    """The fields that llama-server's own forms of a text request share."""

    n_predict: int | None = None
    n_probs: int | None = None
    return_tokens: bool = False


class NativeRequest(NativeSampling, kw_only=True):
    """The body of llama-server's /completion."""

    prompt: Prompt


class InfillExtra(Struct, kw_only=True):
    """A further file for a fill-in-the-middle request."""

    text: str
    filename: str = ""


class InfillRequest(NativeSampling, kw_only=True):
    """The body of llama-server's /infill."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    input_extra: Annotated[list[InfillExtra], Meta(max_length=1024)] = []
