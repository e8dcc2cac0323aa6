"""The shapes of requests and answers, under llama-cpp-python's names; OpenAI's API has them too."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

JsonType = int | str | bool | list[Any] | dict[str, Any] | None


class EmbeddingUsage(TypedDict):
    """Counts of an embedding."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One embedding: of a text, or of each of its tokens."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """What create_embedding() gives."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a completion."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """A text."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class PromptTokensDetails(TypedDict):
    """The handling of a prompt's tokens."""

    cached_tokens: int


class CompletionUsage(TypedDict):
    """Counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class _Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]


class CreateCompletionResponse(_Completion, total=False):
    """What create_completion() gives; chunks of a stream have no usage but for the last."""

    usage: CompletionUsage
    speculation: dict[str, Any]
    timing: dict[str, float]


class ChatCompletionResponseFunctionCall(TypedDict):
    """A call in the older form."""

    name: str
    arguments: str


class ChatCompletionMessageToolCallFunction(TypedDict):
    """The function of a call."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A call."""

    id: str
    type: Literal["function"]
    function: ChatCompletionMessageToolCallFunction


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]


class _ResponseMessage(TypedDict):
    content: str | None
    role: Literal["assistant", "function"]


class ChatCompletionResponseMessage(_ResponseMessage, total=False):
    """An answer."""

    tool_calls: ChatCompletionMessageToolCalls
    function_call: ChatCompletionResponseFunctionCall
    reasoning_content: str


class _Function(TypedDict):
    name: str
    parameters: dict[str, JsonType]


class ChatCompletionFunction(_Function, total=False):
    """A function that is offered, in the older form."""

    description: str


class ChatCompletionTopLogprobToken(TypedDict):
    """A token that could have been."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """A token that is."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """Log-probabilities of a chat."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """An answer and why it ended."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class _ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage


class CreateChatCompletionResponse(_ChatCompletion, total=False):
    """What create_chat_completion() gives."""

    speculation: dict[str, Any]
    timing: dict[str, float]


class ChatCompletionMessageToolCallChunkFunction(TypedDict, total=False):
    """Some of a call: its name comes once."""

    name: str | None
    arguments: str


class _ToolCallChunk(TypedDict):
    index: int
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionMessageToolCallChunk(_ToolCallChunk, total=False):
    """Some of a call."""

    id: str
    type: Literal["function"]


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """Nothing more."""


class ChatCompletionStreamResponseDeltaFunctionCall(TypedDict):
    """Some of a call in the older form."""

    name: str
    arguments: str


class ChatCompletionStreamResponseDelta(TypedDict, total=False):
    """What a chunk adds."""

    content: str | None
    function_call: ChatCompletionStreamResponseDeltaFunctionCall | None
    tool_calls: list[ChatCompletionMessageToolCallChunk] | None
    role: Literal["system", "user", "assistant", "tool"] | None
    reasoning_content: str


class _StreamChoice(TypedDict):
    index: int
    delta: ChatCompletionStreamResponseDelta | ChatCompletionStreamResponseDeltaEmpty
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None


class ChatCompletionStreamResponseChoice(_StreamChoice, total=False):
    """Some of an answer."""

    logprobs: ChatCompletionLogprobs | None


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of a chat."""

    id: str
    model: str
    object: Literal["chat.completion.chunk"]
    created: int
    choices: list[ChatCompletionStreamResponseChoice]


class ChatCompletionFunctionCallOption(TypedDict):
    """The function to be called."""

    name: str


class _ResponseFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]


class ChatCompletionRequestResponseFormat(_ResponseFormat, total=False):
    """The form that an answer has to have."""

    schema: JsonType
    json_schema: JsonType


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """Text of a message."""

    type: Literal["text"]
    text: str


class _ImageUrl(TypedDict):
    url: str


class ChatCompletionRequestMessageContentPartImageImageUrl(_ImageUrl, total=False):
    """Where an image is."""

    detail: Literal["auto", "low", "high"]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """An image of a message, which is refused."""

    type: Literal["image_url"]
    image_url: str | ChatCompletionRequestMessageContentPartImageImageUrl


ChatCompletionRequestMessageContentPart = (
    ChatCompletionRequestMessageContentPartText | ChatCompletionRequestMessageContentPartImage
)


class ChatCompletionRequestSystemMessage(TypedDict):
    """A system message."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPart] | None


class ChatCompletionRequestAssistantMessageFunctionCall(TypedDict):
    """A call that was made, in the older form."""

    name: str
    arguments: str


class _AssistantMessage(TypedDict):
    role: Literal["assistant"]


class ChatCompletionRequestAssistantMessage(_AssistantMessage, total=False):
    """An earlier answer."""

    content: str
    tool_calls: ChatCompletionMessageToolCalls
    function_call: ChatCompletionRequestAssistantMessageFunctionCall


class ChatCompletionRequestToolMessage(TypedDict):
    """What a call gave."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The same in the older form."""

    role: Literal["function"]
    content: str | None
    name: str


ChatCompletionRequestMessage = (
    ChatCompletionRequestSystemMessage
    | ChatCompletionRequestUserMessage
    | ChatCompletionRequestAssistantMessage
    | ChatCompletionRequestToolMessage
    | ChatCompletionRequestFunctionMessage
)


class ChatCompletionRequestFunctionCallOption(TypedDict):
    """The function to be called, in the older form."""

    name: str


ChatCompletionRequestFunctionCall = (
    Literal["none", "auto"] | ChatCompletionRequestFunctionCallOption
)
ChatCompletionFunctionParameters = dict[str, JsonType]


class _ToolFunction(TypedDict):
    name: str
    parameters: ChatCompletionFunctionParameters


class ChatCompletionToolFunction(_ToolFunction, total=False):
    """A function that is offered."""

    description: str


class ChatCompletionTool(TypedDict):
    """A tool that is offered."""

    type: Literal["function"]
    function: ChatCompletionToolFunction


class ChatCompletionNamedToolChoiceFunction(TypedDict):
    """The name of the function to be called."""

    name: str


class ChatCompletionNamedToolChoice(TypedDict):
    """The function to be called."""

    type: Literal["function"]
    function: ChatCompletionNamedToolChoiceFunction


ChatCompletionToolChoiceOption = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoice
ChatCompletionFunctions = ChatCompletionFunction
EmbeddingData = Embedding
CompletionChunk = CreateCompletionResponse
Completion = CreateCompletionResponse
CreateCompletionStreamResponse = CreateCompletionResponse
ChatCompletionMessage = ChatCompletionResponseMessage
ChatCompletionChoice = ChatCompletionResponseChoice
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChunkDeltaEmpty = ChatCompletionStreamResponseDeltaEmpty
ChatCompletionChunkChoice = ChatCompletionStreamResponseChoice
ChatCompletionChunkDelta = ChatCompletionStreamResponseDelta
ChatCompletionChunk = CreateChatCompletionStreamResponse
ChatCompletionStreamResponse = CreateChatCompletionStreamResponse
ChatCompletionResponseFunction = ChatCompletionFunction
ChatCompletionFunctionCall = ChatCompletionResponseFunctionCall
