"""Types of requests and answers under llama-cpp-python's names.

Their fields are those of OpenAI's API, whose reference says what they are; a field is of any type.
"""

from __future__ import annotations

from typing import Any, TypedDict

_FIELDS = {
    "EmbeddingUsage": "prompt_tokens total_tokens",
    "Embedding": "index object embedding",
    "CreateEmbeddingResponse": "object model data usage",
    "CompletionLogprobs": "text_offset token_logprobs tokens top_logprobs",
    "CompletionChoice": "text index logprobs finish_reason",
    "PromptTokensDetails": "cached_tokens",
    "CompletionUsage": "prompt_tokens completion_tokens total_tokens prompt_tokens_details",
    "CreateCompletionResponse": "id object created model choices usage speculation timing",
    "ChatCompletionResponseFunctionCall": "name arguments",
    "ChatCompletionMessageToolCall": "id type function",
    "ChatCompletionResponseMessage": "content role tool_calls function_call reasoning_content",
    "ChatCompletionFunction": "name parameters description",
    "ChatCompletionTopLogprobToken": "token logprob bytes",
    "ChatCompletionLogprobToken": "token logprob bytes top_logprobs",
    "ChatCompletionLogprobs": "content refusal",
    "ChatCompletionResponseChoice": "index message logprobs finish_reason",
    "CreateChatCompletionResponse": "id object created model choices usage speculation timing",
    "ChatCompletionMessageToolCallChunkFunction": "name arguments",
    "ChatCompletionMessageToolCallChunk": "index function id type",
    "ChatCompletionStreamResponseDeltaEmpty": "",
    "ChatCompletionStreamResponseDelta": "content function_call tool_calls role reasoning_content",
    "ChatCompletionStreamResponseChoice": "index delta finish_reason logprobs",
    "CreateChatCompletionStreamResponse": "id model object created choices",
    "ChatCompletionFunctionCallOption": "name",
    "ChatCompletionRequestResponseFormat": "type schema json_schema",
    "ChatCompletionRequestMessageContentPartText": "type text",
    "ChatCompletionRequestMessageContentPartImageImageUrl": "url detail",
    "ChatCompletionRequestMessageContentPartImage": "type image_url",
    "ChatCompletionRequestSystemMessage": "role content",
    "ChatCompletionRequestUserMessage": "role content",
    "ChatCompletionRequestAssistantMessage": "role content tool_calls function_call",
    "ChatCompletionRequestToolMessage": "role content tool_call_id",
    "ChatCompletionRequestFunctionMessage": "role content name",
    "ChatCompletionTool": "type function",
    "ChatCompletionNamedToolChoice": "type function",
}  # fmt: skip
_ALIASES = {
    "ChatCompletionResponseFunctionCall": (
        "ChatCompletionMessageToolCallFunction ChatCompletionStreamResponseDeltaFunctionCall "
        "ChatCompletionRequestAssistantMessageFunctionCall ChatCompletionFunctionCall"
    ),
    "ChatCompletionFunction": (
        "ChatCompletionToolFunction ChatCompletionFunctions ChatCompletionResponseFunction"
    ),
    "ChatCompletionFunctionCallOption": (
        "ChatCompletionRequestFunctionCallOption ChatCompletionNamedToolChoiceFunction"
    ),
    "Embedding": "EmbeddingData",
    "CreateCompletionResponse": "CompletionChunk Completion CreateCompletionStreamResponse",
    "ChatCompletionResponseMessage": "ChatCompletionMessage",
    "ChatCompletionResponseChoice": "ChatCompletionChoice",
    "CreateChatCompletionResponse": "ChatCompletion",
    "ChatCompletionStreamResponseDeltaEmpty": "ChatCompletionChunkDeltaEmpty",
    "ChatCompletionStreamResponseChoice": "ChatCompletionChunkChoice",
    "ChatCompletionStreamResponseDelta": "ChatCompletionChunkDelta",
    "CreateChatCompletionStreamResponse": "ChatCompletionChunk ChatCompletionStreamResponse",
}  # fmt: skip
_typed_dict: Any = TypedDict
for _name, _fields in _FIELDS.items():
    _made = _typed_dict(_name, dict.fromkeys(_fields.split(), Any), total=False)
    for _own in (_name, *_ALIASES.get(_name, "").split()):
        globals()[_own] = _made

JsonType = int | str | bool | list[Any] | dict[str, Any] | None
ChatCompletionFunctionParameters = dict[str, JsonType]
ChatCompletionMessageToolCalls = list[dict[str, Any]]
ChatCompletionRequestMessage = ChatCompletionRequestMessageContentPart = dict[str, Any]
ChatCompletionRequestFunctionCall = ChatCompletionToolChoiceOption = str | dict[str, Any]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
