"""A request's options: the same text with every draft, streamed and whole, one or many."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama_spec import Llama, PromptLookup
from tests.faces.tools import (
    GREEDY,
    PROMPT,
    SAMPLED,
    Forced,
    counts_of,
    dictated,
    drafters,
    finish_of,
    lasting,
    open_tiny,
    text_of,
)
from tests.models import EOS
from tests.scripted import Perfect
from tests.tiers import release_except

N = len(PROMPT)
SCRIPT = list(b"one two three four five six")
# What lets the models of these tests end a text, which they never do by themselves.
ENDING: dict[str, Any] = {"logit_bias": {EOS: 200.0}}


def opened(*options: Any, **more: Any) -> Any:
    """open_tiny(), whose calls are checked by what they give."""
    return open_tiny(*options, **more)


def chosen(response: dict[str, Any], i: int = 0) -> dict[str, Any]:
    choice: dict[str, Any] = response["choices"][i]
    return choice


def joined(llm: Llama, prompt: Any = PROMPT, **options: Any) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for chunk in llm.create_completion(prompt, stream=True, **options):
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def same_with_every_draft(kind: str = "llama", n: int = 40, **options: Any) -> dict[str, Any]:
    """The response to a request, which has to be that with any draft, and a stream's text."""
    with opened(kind=kind) as llm:
        plain = dict(llm.create_completion(PROMPT, max_tokens=n, return_token_ids=True, **options))
        assert joined(llm, max_tokens=n, **options) == {0: text_of(plain)}
    reference = [*PROMPT, *chosen(plain)["token_ids"]]
    for draft in [*drafters(reference)[1:], PromptLookup()]:
        with opened(draft, kind) as llm:
            response = llm.create_completion(PROMPT, max_tokens=n, return_token_ids=True, **options)
            assert lasting(response) == lasting(plain)
    return plain


# ---- where a text ends


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", release_except(["llama", "gemma3", "lfm2"], ["llama"]))
def test_min_tokens_and_ignore_eos_with_every_draft(kind: str, options: dict[str, Any]) -> None:
    options = {**options, **ENDING}
    assert counts_of(same_with_every_draft(kind, **options))["completion_tokens"] == 0
    response = same_with_every_draft(kind, min_tokens=13, **options)
    assert counts_of(response)["completion_tokens"] == 13
    assert (finish_of(response), chosen(response)["stop_reason"]) == ("stop", None)
    response = same_with_every_draft(kind, ignore_eos=True, **options)
    assert counts_of(response)["completion_tokens"] == 40
    assert finish_of(response) == "length"


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("offset", range(0, 11, 2))
def test_stop_token_at_each_offset_of_a_run(offset: int, is_kept: bool) -> None:
    script = [*SCRIPT[:offset], ord("#"), *SCRIPT[offset:]]
    kept = b"#" if is_kept else b""
    for draft in drafters([*PROMPT, *script]):
        response = dictated(
            script, draft, stop_token_ids=[ord("!"), ord("#")], return_token_ids=True,
            include_stop_str_in_output=is_kept, logprobs=0,
        )  # fmt: skip
        text = bytes(SCRIPT[:offset]) + kept
        assert text_of(response) == text.decode()
        assert (finish_of(response), chosen(response)["stop_reason"]) == ("stop", ord("#"))
        assert chosen(response)["token_ids"] == list(text)
        assert counts_of(response)["completion_tokens"] == len(text)
        assert chosen(response)["logprobs"]["tokens"] == [chr(b) for b in text]


@pytest.mark.parametrize("offset", range(0, 11, 2))
def test_stop_string_is_named_and_kept_where_that_is_asked_for(offset: int) -> None:
    script = [*SCRIPT[:offset], *b"<#>", *SCRIPT[offset:]]
    for draft in drafters([*PROMPT, *script]):
        for is_kept in (False, True):
            response = dictated(
                script, draft, stop=["unseen", "<#>", "<#"], include_stop_str_in_output=is_kept
            )
            # "<#" is whole a token earlier, and wins.
            kept = "<#" if is_kept else ""
            assert text_of(response) == bytes(SCRIPT[:offset]).decode() + kept
            assert chosen(response)["stop_reason"] == "<#"
            assert counts_of(response)["completion_tokens"] == offset + len(kept)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "a"),
        (1, "a"),
        (2, "a"),
        (3, "abcxxa"),
        (7, "abcxxa"),
        (8, "abcxxabcxxa"),
        (9, "abcxxabcxxa"),
    ],
)
def test_stop_strings_within_min_tokens_do_not_count(n: int, text: str) -> None:
    script = list(b"abcxxabcxxabcxx")
    for draft in drafters([*PROMPT, *script]):
        with opened(draft) as llm:
            options: dict[str, Any] = {
                "max_tokens": None, "stop": "bc", "min_tokens": n,
                "logits_processor": Forced(N, script),
            }  # fmt: skip
            assert text_of(llm.create_completion(PROMPT, **options)) == text
            assert joined(llm, **options) == {0: text}


# ---- several answers


@pytest.mark.parametrize("n_parallel", [1, 2, 5])
@pytest.mark.parametrize("draft", [None, "prompt-lookup"])
def test_answers_are_those_of_their_seeds(n_parallel: int, draft: str | None) -> None:
    options: dict[str, Any] = {**SAMPLED, "max_tokens": 20, "logprobs": 1}
    with opened() as one, opened(draft, n_parallel=n_parallel) as llm:
        alone = [
            one.create_completion(PROMPT, **{**options, "seed": SAMPLED["seed"] + i})
            for i in range(4)
        ]
        whole = llm.create_completion(PROMPT, n=4, **options)
        assert [choice["index"] for choice in whole["choices"]] == list(range(4))
        for i, response in enumerate(alone):
            for key in ("text", "finish_reason", "stop_reason", "logprobs"):
                assert chosen(whole, i)[key] == chosen(response)[key]
        assert len({choice["text"] for choice in whole["choices"]}) == 4
        assert joined(llm, n=4, **options) == {i: text_of(one) for i, one in enumerate(alone)}
        assert counts_of(whole) == {
            "prompt_tokens": N, "completion_tokens": 80, "total_tokens": N + 80,
        }  # fmt: skip
        two = llm.create_completion([PROMPT, PROMPT[:6]], n=2, **options)
        assert [c["index"] for c in two["choices"]] == [0, 1, 2, 3]
        assert [c["text"] for c in two["choices"][:2]] == [text_of(one) for one in alone[:2]]
        assert counts_of(two)["prompt_tokens"] == N + 6


# ---- what is told


def test_a_stream_tells_its_usage_in_a_chunk_of_its_own() -> None:
    messages = [{"role": "user", "content": "the cat"}]
    options: dict[str, Any] = {"max_tokens": 9, "stream": True, "seed": 2}
    with opened() as llm:
        streams: list[Any] = [
            lambda **more: llm.create_completion(PROMPT, **options, **more),
            lambda **more: llm.create_completion(PROMPT, n=2, **options, **more),
            lambda **more: llm.create_chat_completion(messages, **options, **more),
            lambda **more: llm.create_chat_completion(
                messages, reasoning_format="auto", **options, **more
            ),
        ]
        for stream in streams:
            plain = list(stream())
            *before, last = list(stream(stream_options={"include_usage": True}))
            assert [c["choices"] for c in before] == [c["choices"] for c in plain]
            assert all("usage" in chunk and chunk["usage"] is None for chunk in before)
            assert last["choices"] == []
            assert counts_of(last) == counts_of(plain[-1])
            assert {"id", "object", "created", "model"} <= set(last)
            both = {"include_usage": True, "continuous_usage_stats": True}
            seen = [chunk["usage"]["completion_tokens"] for chunk in stream(stream_options=both)]
            assert seen[-1] == counts_of(plain[-1])["completion_tokens"]
            assert max(seen) == seen[-1]
            for nothing in (None, {}, {"include_usage": False}, {"include_usage": None}):
                chunks = list(stream(stream_options=nothing))
                assert [c["choices"] for c in chunks] == [c["choices"] for c in plain]
                assert chunks[-1]["usage"]["total_tokens"]


@pytest.mark.parametrize("draft", [None, Perfect])
def test_token_ids_are_those_of_the_text(draft: Any) -> None:
    script = list("naïve 日本 🙂 STOP after".encode())
    with opened(draft and draft([*PROMPT, *script])) as llm:
        for stop, end in ((None, len(script)), ("STOP", script.index(ord("S")))):
            options: dict[str, Any] = {
                "max_tokens": 60, "stop": stop, "logits_processor": Forced(N, script),
                "return_token_ids": True,
            }  # fmt: skip
            whole = chosen(llm.create_completion(PROMPT, **options))
            assert whole["token_ids"] == script[:end]
            assert whole["prompt_token_ids"] == PROMPT
            chunks = [
                c["choices"][0] for c in llm.create_completion(PROMPT, stream=True, **options)
            ]
            assert [t for chunk in chunks for t in chunk["token_ids"]] == script[:end]
            assert chunks[0]["prompt_token_ids"] == PROMPT
            assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
            for chunk in chunks:
                assert bytes(chunk["token_ids"]).decode() == chunk["text"]
        chat = llm.create_chat_completion(
            [{"role": "user", "content": "a"}], max_tokens=5, return_token_ids=True,
            reasoning_format="auto", temperature=0,
        )  # fmt: skip
        assert len(chosen(chat)["token_ids"]) == 5


# ---- a context that is full


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "kind", release_except(["llama", "gemma3", "qwen35", "lfm2"], ["llama", "lfm2"])
)
def test_a_text_goes_on_behind_a_full_context(kind: str, options: dict[str, Any]) -> None:
    n_ctx, n = 64, 150
    texts = []
    reference: list[int] = []
    for draft in (None, "perfect", "prompt-lookup"):
        made = Perfect(reference) if draft == "perfect" else draft
        with opened(made, kind, n_ctx=n_ctx) as llm:
            full = llm.create_completion(PROMPT, max_tokens=n, **options)
            assert finish_of(full) == "length"
            assert counts_of(full)["total_tokens"] <= n_ctx + 1
            response = llm.create_completion(
                PROMPT, max_tokens=n, context_shift=True, return_token_ids=True, logprobs=0,
                **options,
            )  # fmt: skip
            assert counts_of(response)["completion_tokens"] == n
            assert chosen(response)["context_shifts"] == (n + N - n_ctx) // (n_ctx // 2) + 1
            assert len(chosen(response)["logprobs"]["tokens"]) == n
            assert text_of(response).startswith(text_of(full))
            assert joined(llm, max_tokens=n, context_shift=True, **options) == {
                0: text_of(response)
            }
            reference = [*PROMPT, *chosen(response)["token_ids"]]
            texts.append(text_of(response))
    assert texts[1:] == texts[:1] * 2


# ---- null, and what is refused


def test_a_chat_handler_is_told_all_that_is_given() -> None:
    given: dict[str, Any] = {}

    def handler(**options: Any) -> dict[str, Any]:
        given.update(options)
        return {"choices": []}

    messages = [{"role": "user", "content": "a"}]
    with opened(chat_handler=handler) as llm:
        llm.create_chat_completion(messages, max_completion_tokens=9, min_tokens=3)
        assert (given["max_tokens"], given["min_tokens"]) == (9, 3)
        assert "n" not in given
