"""Small programs on libraries that import llama_cpp; each returns its calls by name.

Each environment has only one library, so each app imports its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Calls = dict[str, Callable[[], Any]]
# {"draft": "prompt-lookup"} on our side with a draft: the only new line.
Extra = dict[str, Any]

# Prompts whose next tokens have high probabilities, see calls.py.
PROMPT = "1, 2, 3, 4, 5, 6, 7, 8,"
ASKED = "What is the capital of France?"
YES = 'root ::= "yes" | "no"'
PERSON: dict[str, Any] = {
    "title": "Person", "description": "A person.", "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}  # fmt: skip


def langchain(model: str, extra: Extra) -> Calls:
    """langchain-community: texts, streams, chats, grammars, structured output, embeddings."""
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.embeddings import LlamaCppEmbeddings
    from langchain_community.llms import LlamaCpp

    options: dict[str, Any] = {
        "model_path": model, "n_ctx": 512, "n_batch": 512, "n_threads": 1, "temperature": 0.0,
        "max_tokens": 7, "rope_freq_base": 100000.0, "verbose": False, "seed": 1,
        "model_kwargs": extra,
    }  # fmt: skip
    llm, chat = LlamaCpp(**options), ChatLlamaCpp(**options)
    ruled = LlamaCpp(**options, grammar=YES)
    embedded = LlamaCppEmbeddings(model_path=model, n_ctx=128, n_threads=1, verbose=False)
    longer = ChatLlamaCpp(**{**options, "max_tokens": 64})
    structured = longer.with_structured_output(PERSON)
    with_tools = longer.bind_tools(
        [{"type": "function", "function": {"name": "Person", "parameters": PERSON}}],
        tool_choice={"type": "function", "function": {"name": "Person"}},
    )

    def message(reply: Any) -> dict[str, Any]:
        return {
            "content": reply.content, "metadata": reply.response_metadata,
            "calls": [(one["name"], one["args"]) for one in reply.tool_calls],
        }  # fmt: skip

    return {
        "text": lambda: llm.invoke(PROMPT),
        "stop": lambda: llm.invoke(PROMPT, stop=["."]),
        "several": lambda: [one[0].text for one in llm.generate([PROMPT, "Hello"]).generations],
        "stream": lambda: "".join(llm.stream(PROMPT)),
        "count": lambda: llm.get_num_tokens(PROMPT),
        "grammar": lambda: ruled.invoke(PROMPT),
        "chat": lambda: message(chat.invoke(ASKED)),
        "chat stream": lambda: "".join(str(c.content) for c in chat.stream(ASKED)),
        "tools": lambda: message(with_tools.invoke("Ann is not old.")),
        "structured": lambda: structured.invoke("Ann is not old."),
        "embed query": lambda: embedded.embed_query("Hello world"),
        "embed documents": lambda: embedded.embed_documents(["Hello", "world"]),
    }


def llama_index(model: str, extra: Extra) -> Calls:
    """llama-index-llms-llama-cpp: completions and chats, whole and in streams."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.llama_cpp import LlamaCPP

    llm = LlamaCPP(
        model_path=model, temperature=0.0, max_new_tokens=7, context_window=512, verbose=False,
        model_kwargs={"n_threads": 1, **extra},
        messages_to_prompt=lambda ms: "\n".join(str(m.content) for m in ms) + "\n",
        completion_to_prompt=str,
    )  # fmt: skip
    hello = [ChatMessage(role="user", content=ASKED)]
    return {
        "text": lambda: llm.complete(PROMPT).text,
        "raw": lambda: llm.complete(PROMPT).raw,
        "stream": lambda: [one.text for one in llm.stream_complete(PROMPT)][-1],
        "chat": lambda: llm.chat(hello).message.content,
        "chat stream": lambda: [one.message.content for one in llm.stream_chat(hello)][-1],
        "metadata": llm.metadata.model_dump,
    }


def instructor(model: str, extra: Extra) -> Calls:
    """Instructor: a patched chat completion that gives pydantic models."""
    import instructor as library
    from llama_cpp import Llama
    from pydantic import create_model

    person = create_model("Person", name=(str, ...), age=(int, ...))
    llm = Llama(model, n_ctx=1024, n_threads=1, verbose=False, logits_all=False, **extra)
    messages = [{"role": "user", "content": "Extract: Jason is 25 years old."}]

    def extracted(mode: Any) -> dict[str, Any]:
        create = library.patch(create=llm.create_chat_completion_openai_v1, mode=mode)
        extraction = create(
            messages=messages, response_model=person, temperature=0.0, max_tokens=128, max_retries=1
        )
        return dict(extraction.model_dump())

    return {
        "schema": lambda: extracted(library.Mode.JSON_SCHEMA),
        "openai_v1": lambda: llm.create_chat_completion_openai_v1(
            messages, temperature=0.0, max_tokens=7
        ),
    }


def haystack(model: str, extra: Extra) -> Calls:
    """llama-cpp-haystack: chats, tools, streams."""
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator

    more = {"n_threads": 1, "verbose": False, **extra}
    greedy = {"temperature": 0.0, "max_tokens": 7}
    sizes = {"n_ctx": 1024, "n_batch": 512}
    chat = LlamaCppChatGenerator(model=model, model_kwargs=more, generation_kwargs=greedy, **sizes)
    chat.warm_up()
    weather = Tool(
        name="get_weather", description="The weather of a city.", function=lambda city: city,
        parameters={
            "type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"],
        },
    )  # fmt: skip
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    messages = [ChatMessage.from_user(ASKED)]
    pieces: list[str] = []

    def tools() -> Any:
        reply = chat.run(
            messages, tools=[weather],
            generation_kwargs={"tool_choice": chosen, "temperature": 0.0, "max_tokens": 48},
        )["replies"][0]  # fmt: skip
        return [(one.tool_name, one.arguments) for one in reply.tool_calls]

    def streamed() -> str:
        chat.run(messages, streaming_callback=lambda chunk: pieces.append(chunk.content))
        return "".join(pieces)

    return {
        "chat": lambda: chat.run(messages)["replies"][0].text,
        "chat meta": lambda: chat.run(messages)["replies"][0].meta,
        "tools": tools,
        "stream": streamed,
    }


def outlines(model: str, extra: Extra) -> Calls:
    """Outlines: texts, choices, regular expressions and JSON by its own logits processors."""
    import outlines as library
    from llama_cpp import Llama
    from pydantic import create_model

    llm = Llama(model, n_ctx=512, n_threads=1, verbose=False, **extra)
    wrapped = library.from_llamacpp(llm)
    person = create_model("Person", age=(int, ...))
    options = {"temperature": 0.0, "max_tokens": 7}
    return {
        "text": lambda: wrapped(ASKED, **options),
        "stream": lambda: "".join(wrapped.stream(ASKED, **options)),
        "regex": lambda: wrapped("A year: ", library.types.Regex("[0-9]{4}"), **options),
        "json": lambda: wrapped(
            "Ann is 25 years old. Her age as JSON:", person, temperature=0.0, max_tokens=24
        ),
    }


def llm_gguf(model: str, extra: Extra) -> Calls:
    """llm-gguf: chats and embeddings of the command line tool llm."""
    import llm_gguf as library

    del extra  # its models pass no keywords to Llama()
    chat = library.GgufChatModel("small", model, n_ctx=64)
    embedded = library.GgufEmbeddingModel("small-embed", model)

    def reply_text(stream: bool) -> str:
        # Only the context limits the text; the model is not sure of the later tokens.
        return str(chat.prompt(ASKED, stream=stream).text())[:30]

    return {
        "chat": lambda: reply_text(False),
        "stream": lambda: reply_text(True),
        "embed": lambda: len(embedded.embed("Hello")),
    }


# name -> (the app, packages, whether a keyword can set a draft)
APPS: dict[str, tuple[Callable[[str, Extra], Calls], tuple[str, ...], bool]] = {
    "langchain": (langchain, ("langchain-community",), True),
    "llama-index": (llama_index, ("llama-index-llms-llama-cpp",), True),
    "instructor": (instructor, ("instructor",), True),
    "haystack": (haystack, ("llama-cpp-haystack",), True),
    "outlines": (outlines, ("outlines", "numba"), True),
    "llm-gguf": (llm_gguf, ("llm", "llm-gguf"), False),
}
