"""TypedDicts of requests and answers under llama-cpp-python's names, as in OpenAI's API."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

JsonType = int | str | bool | list[Any] | dict[str, Any] | None


class EmbeddingUsage(TypedDict):
    """Token counts of an embedding request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One embedding: of a text, or of each of its tokens."""

    index: int
    object: str
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """The result of create_embedding()."""

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
    """A choice of a text completion."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class PromptTokensDetails(TypedDict):
    """Details of a prompt's tokens, such as those read from a cache."""

    cached_tokens: int


class CompletionUsage(TypedDict):
    """Token counts of a request."""

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
    """The result of create_completion(); of a stream's chunks only the last has usage."""

    usage: CompletionUsage
    speculation: dict[str, Any]
    timing: dict[str, float]


class ChatCompletionResponseFunctionCall(TypedDict):
    """A function call, or a part of one."""

    name: str
    arguments: str


ChatCompletionMessageToolCallFunction = ChatCompletionResponseFunctionCall
ChatCompletionStreamResponseDeltaFunctionCall = ChatCompletionResponseFunctionCall
ChatCompletionRequestAssistantMessageFunctionCall = ChatCompletionResponseFunctionCall


class ChatCompletionMessageToolCall(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: ChatCompletionMessageToolCallFunction


ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]


class _ResponseMessage(TypedDict):
    content: str | None
    role: Literal["assistant", "function"]


class ChatCompletionResponseMessage(_ResponseMessage, total=False):
    """The message of an answer."""

    tool_calls: ChatCompletionMessageToolCalls
    function_call: ChatCompletionResponseFunctionCall
    reasoning_content: str


class _Function(TypedDict):
    name: str
    parameters: dict[str, JsonType]


class ChatCompletionFunction(_Function, total=False):
    """A function offered to the model."""

    description: str


ChatCompletionToolFunction = ChatCompletionFunction


class ChatCompletionTopLogprobToken(TypedDict):
    """An alternative token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """A token with its log-probability and alternatives."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """Log-probabilities of a chat."""

    content: list[ChatCompletionLogprobToken] | None
    refusal: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """An answer with its finish reason."""

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
    """The result of create_chat_completion()."""

    speculation: dict[str, Any]
    timing: dict[str, float]


class ChatCompletionMessageToolCallChunkFunction(TypedDict, total=False):
    """A part of a tool call's function; its name comes once."""

    name: str | None
    arguments: str


class _ToolCallChunk(TypedDict):
    index: int
    function: ChatCompletionMessageToolCallChunkFunction


class ChatCompletionMessageToolCallChunk(_ToolCallChunk, total=False):
    """A part of a tool call."""

    id: str
    type: Literal["function"]


class ChatCompletionStreamResponseDeltaEmpty(TypedDict):
    """An empty delta."""


class ChatCompletionStreamResponseDelta(TypedDict, total=False):
    """The new part of an answer in a chunk."""

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
    """A choice of a chunk."""

    logprobs: ChatCompletionLogprobs | None


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of a chat."""

    id: str
    model: str
    object: Literal["chat.completion.chunk"]
    created: int
    choices: list[ChatCompletionStreamResponseChoice]


class ChatCompletionFunctionCallOption(TypedDict):
    """The function that the model has to call."""

    name: str


ChatCompletionRequestFunctionCallOption = ChatCompletionFunctionCallOption
ChatCompletionNamedToolChoiceFunction = ChatCompletionFunctionCallOption


class _ResponseFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]


class ChatCompletionRequestResponseFormat(_ResponseFormat, total=False):
    """The requested format of an answer."""

    schema: JsonType
    json_schema: JsonType


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class _ImageUrl(TypedDict):
    url: str


class ChatCompletionRequestMessageContentPartImageImageUrl(_ImageUrl, total=False):
    """The URL of an image."""

    detail: Literal["auto", "low", "high"]


class ChatCompletionRequestMessageContentPartImage(TypedDict):
    """An image part of a message, which is refused."""

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


class _AssistantMessage(TypedDict):
    role: Literal["assistant"]


class ChatCompletionRequestAssistantMessage(_AssistantMessage, total=False):
    """An earlier answer."""

    content: str
    tool_calls: ChatCompletionMessageToolCalls
    function_call: ChatCompletionRequestAssistantMessageFunctionCall


class ChatCompletionRequestToolMessage(TypedDict):
    """The result of a tool call."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The result of a function call, in the older format."""

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


ChatCompletionRequestFunctionCall = (
    Literal["none", "auto"] | ChatCompletionRequestFunctionCallOption
)
ChatCompletionFunctionParameters = dict[str, JsonType]


class ChatCompletionTool(TypedDict):
    """A tool offered to the model."""

    type: Literal["function"]
    function: ChatCompletionToolFunction


class ChatCompletionNamedToolChoice(TypedDict):
    """The tool that the model has to call."""

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
