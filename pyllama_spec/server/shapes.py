"""The accepted request bodies, as OpenAI and llama-server publish them.

Unknown fields are ignored, as clients send many without effect; the log names them. The library
checks values beyond their type, so that HTTP refuses a request as Python does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct

from pyllama_spec.options import Option, options_of
from pyllama_spec.requests.options import RequestOptions

Json = dict[str, Any]
# A token's id, or a text, and what is added to the logits, false for never: llama-server's form.
_Word = Annotated[str, Meta(max_length=64)]
Bias = tuple[int | _Word, float | bool]
# Lists that a request is checked against token by token, or that are gone through for each.
_MANY = Meta(max_length=10_000)
Biases = Annotated[dict[_Word, float], _MANY] | Annotated[list[Bias], _MANY]
Name = Annotated[str, Meta(max_length=256)]
Texts = Annotated[list[str], Meta(max_length=64)]
# One prompt, as text or ids, or a list of them; the longest contexts have as many ids.
_LONG = Meta(max_length=1 << 20)
Prompt = str | Annotated[list[str | int | list[int]], _LONG]


class PromptPart(Struct, tag_field="type", tag="text"):
    """A text of a prompt in parts."""

    text: str


class PromptObject(Struct, forbid_unknown_fields=True):
    """llama-server's form of a prompt that may have images, here without any."""

    prompt_string: str = ""
    content: list[PromptPart] = []


# llama-server's forms of prompts: an object, and texts between ids too.
NativeEntry = str | PromptObject | list[int | str]
NativePrompt = str | PromptObject | Annotated[list[int | NativeEntry], _LONG]


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
    acceptance: str | None = None
    show_tokens: bool = False


class Prediction(Struct, kw_only=True):
    """OpenAI's field for a text that the answer is expected to repeat."""

    content: str | list[Json]
    type: Literal["content"] = "content"


_Shape = TypeVar("_Shape", bound=Struct)


def with_options(table: type, *, of_chats: bool) -> Callable[[type[_Shape]], type[_Shape]]:
    """A decorator: adds the options of a table, of chats or of all requests, to a body."""

    def decorate(shape: type[_Shape]) -> type[_Shape]:
        hints = get_type_hints(table)
        added = [
            (name, _field_type(one, hints[one.name]), None)
            for one in options_of(table).values()
            for name in one.body_names
            if one.of_chats == of_chats and name not in shape.__struct_fields__
        ]
        return defstruct(
            shape.__name__, added, bases=(shape,), module=shape.__module__, kw_only=True
        )  # type: ignore[return-value]

    return decorate


def _field_type(one: Option, hint: Any) -> Any:
    """The type of an option in a body: null is its default, and a list has a bound."""
    kinds: list[Any] = [type(None)]
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if get_origin(kind) is Sequence:
            kinds.append(Annotated[list[get_args(kind)], Meta(max_length=one.most)])  # type: ignore[misc]
        elif kind is float and one.low is not None:
            kinds.append(Annotated[float, Meta(ge=one.low)])
        else:
            kinds.append(kind)
    return Union[tuple(kinds)]  # noqa: UP007 - of a tuple


@with_options(RequestOptions, of_chats=False)
class Sampling(Struct, kw_only=True):
    """The fields that chats and texts share: RequestOptions under the APIs' names, and these."""

    model: Name | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | Texts | None = None
    return_token_ids: bool | None = None
    logit_bias: Biases | None = None
    grammar: str | None = None
    json_schema: Json | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], _MANY] | None = None
    guided_grammar: str | None = None
    # Of other servers; a value that would change the text is refused: see service.py.
    lora: Any = None
    dynatemp_range: Any = None
    t_max_predict_ms: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    use_beam_search: Any = None
    user: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None
    prediction: Prediction | None = None


@with_options(RequestOptions, of_chats=True)
class ChatRequest(Sampling, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Json]
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    functions: list[Json] | None = None
    function_call: str | Json | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    thinking_token_budget: int | None = None
    reasoning_effort: str | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: Json | None = None
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

    input: NativePrompt
    model: Name | None = None
    encoding_format: str = "float"
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

    prompt: NativePrompt


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
