"""Random parallel requests equal the library's own calls, bit by bit.

The server drafts in every round and computes three requests at a time; the library has no draft and
computes each request alone. Each random request is written twice: as the endpoint's body, and as
the keywords of the library's call.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama_spec import Llama
from tests.faces.tools import open_tiny
from tests.server.test_endpoints import FILLS
from tests.server.world import Client, events_of, served

N_QUICK, N_RELEASE, N_CLIENTS = 8, 200, 4
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = ("the", "cat", "sat", "on", "a mat", "1, 2, 3,", "é", "日本", "<|im_end|>", "\n", '"x"', "")
FORM = {"type": "object", "properties": {"a": {"enum": ["xx", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
Json = dict[str, Any]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    llm = open_tiny("prompt-lookup", n_ctx=512, n_parallel=3, max_waiting=64, kv_overrides=FILLS)
    with served(llm, alias="m") as client:
        yield client


@pytest.fixture(scope="module")
def library() -> Iterator[Llama]:
    with open_tiny(n_ctx=512, kv_overrides=FILLS) as llm:
        yield llm


class Drawn:
    """The options of a request, drawn at random."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.options: Json = {"max_tokens": rng.randrange(1, 25), "seed": rng.randrange(1000)}
        self.options["temperature"] = rng.choice([0, 0.4, 0.8, 1.3])
        drawn: Json = {
            "top_p": rng.choice([0.5, 0.9, 1.0]), "top_k": rng.choice([1, 5, 40]),
            "min_p": rng.choice([0.0, 0.1]),
            "min_tokens": rng.randrange(1, self.options["max_tokens"] + 1),
            "frequency_penalty": 0.4, "presence_penalty": -0.2, "stop": [rng.choice("aegt "), "zz"],
            "logit_bias": {str(97 + rng.randrange(26)): rng.choice([-5.0, 3.0, 50.0])},
            "ignore_eos": True, "grammar": "root ::= [a-h ]+",
        }  # fmt: skip
        for name in rng.sample(sorted(drawn), rng.randrange(5)):
            self.options[name] = drawn[name]
        self.streams = rng.random() < 0.5

    def text(self, n_words: int = 12) -> str:
        words = [self.rng.choice(WORDS) for _ in range(self.rng.randrange(1, n_words))]
        # A word is said again, so that a copy finds something.
        return self.rng.choice((" ", "")).join([*words, *words]) or "a"

    def talk(self) -> list[Json]:
        """Alternating turns, with or without a system message."""
        turns = [{"role": "system", "content": self.text(4)}] if self.rng.random() < 0.3 else []
        roles = ("user", "assistant", "user")[: self.rng.choice([1, 1, 3])]
        return [*turns, *({"role": role, "content": self.text(5)} for role in roles)]

    def drafting(self, right: str) -> Json:
        """Options that change no text: drafting, also by a nearly right prediction."""
        right = right.replace("\0", "")  # which no text may have that is given
        at = self.rng.randrange(len(right) + 1)
        guess = right[:at] + self.rng.choice(("", "q")) + right[at + self.rng.randrange(2) :]
        prediction = {"type": "content", "content": guess}
        return self.rng.choice([
            {}, {"speculation": {"draft": False}}, {"speculation": {"n_draft": 2}},
            {"prediction": prediction}, {"prediction": {
                **prediction, "content": [{"type": "text", "text": guess}]}},
        ])  # fmt: skip


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    return json.loads(json.dumps(value))


def streamed(client: Client, path: str, body: Json) -> list[Json]:
    """The data of all events."""
    connection, response = client.send("POST", path, {**body, "stream": True})
    assert response.status == 200, response.read()
    events = [event for event in events_of(response) if event != "[DONE]"]
    connection.close()
    return events


def play(n: int, salt: int, ask: Callable[[Drawn], tuple[Any, Any]]) -> None:
    """Requests by several clients at once; `ask` gives what came and what the library gave."""
    # By number: another test's requests are others.
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        pairs = list(pool.map(lambda i: ask(Drawn(salt * 1_000_000 + i)), range(n)))
    for i, (came, own) in enumerate(pairs):
        assert came == own, f"request {i}"
    assert len({json.dumps(own, sort_keys=True) for _, own in pairs}) > n // 2


numbers = pytest.mark.parametrize(
    "n", [N_QUICK, pytest.param(N_RELEASE, marks=pytest.mark.release)], ids=["few", "many"]
)


# ---- OpenAI's


def choices_of(chunks: list[Json], key: str) -> dict[int, list[Json]]:
    found: dict[int, list[Json]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert key in choice
            found.setdefault(choice["index"], []).append(choice)
    return found


@numbers
def test_texts(client: Client, library: Llama, n: int) -> None:
    """Prompts in each form, echo, log-probabilities, several choices, predictions."""

    def ask(drawn: Drawn) -> tuple[Any, Any]:
        rng = drawn.rng
        prompt: Any = drawn.text()
        if rng.random() < 0.3:
            prompt = library.tokenize(prompt)
        given = dict(drawn.options)
        if rng.random() < 0.3:
            given["logprobs"] = rng.randrange(4)
        if rng.random() < 0.3:
            given["n"] = rng.randrange(2, 4)
        if rng.random() < 0.3 and isinstance(prompt, str):
            given["echo"] = True
        if not drawn.streams and rng.random() < 0.3:
            prompt = [prompt, library.tokenize(drawn.text())] if isinstance(prompt, list) else [
                prompt, drawn.text()]  # fmt: skip
        own: Any = plain(library.create_completion(prompt, **given))
        body = {"prompt": prompt, **given, **drawn.drafting(own["choices"][0]["text"])}
        if not drawn.streams:
            answer = client.right(TEXT, body)
            keys = ("index", "text", "logprobs", "finish_reason", "stop_reason")
            return ([{key: one[key] for key in keys} for one in answer["choices"]],
                    [{key: one[key] for key in keys} for one in own["choices"]])  # fmt: skip
        came = []
        for _, parts in sorted(choices_of(streamed(client, TEXT, body), "text").items()):
            logprobs = [part["logprobs"] for part in parts if part.get("logprobs")]
            told = [x for one in logprobs for x in one["token_logprobs"]] if logprobs else None
            came.append(["".join(part["text"] for part in parts), told, parts[-1]["finish_reason"]])
        return came, [
            [one["text"], one["logprobs"] and one["logprobs"]["token_logprobs"],
             one["finish_reason"]] for one in own["choices"]
        ]  # fmt: skip

    play(n, 1, ask)


@numbers
def test_chats(client: Client, library: Llama, n: int) -> None:
    """Log-probabilities, several choices, forms, predictions, answers that are continued."""

    def ask(drawn: Drawn) -> tuple[Any, Any]:
        rng, given, messages = drawn.rng, dict(drawn.options), drawn.talk()
        if rng.random() < 0.3:
            given |= {"logprobs": True, "top_logprobs": rng.randrange(4)}
        if rng.random() < 0.3:
            given["n"] = rng.randrange(2, 4)
        if rng.random() < 0.2:
            given.pop("grammar", None)
            given["response_format"] = {"type": "json_schema", "json_schema": {"schema": FORM}}
        elif rng.random() < 0.2:
            messages.append({"role": "assistant", "content": drawn.text(3)})
            given["continue_final_message"] = True
        own: Any = plain(library.create_chat_completion(messages, **given))
        guess = own["choices"][0]["message"]["content"]
        body = {"messages": messages, **given, **drawn.drafting(guess)}
        if not drawn.streams:
            answer = client.right(CHAT, body)
            keys = ("index", "message", "logprobs", "finish_reason")
            return ([{key: one[key] for key in keys} for one in answer["choices"]],
                    [{key: one[key] for key in keys} for one in own["choices"]])  # fmt: skip
        came = []
        for _, parts in sorted(choices_of(streamed(client, CHAT, body), "delta").items()):
            text = "".join(part["delta"].get("content") or "" for part in parts)
            told = [one for part in parts if part.get("logprobs")
                    for one in part["logprobs"]["content"]]  # fmt: skip
            came.append([text, told, parts[-1]["finish_reason"]])
        return came, [
            [one["message"]["content"], (one["logprobs"] or {}).get("content", []),
             one["finish_reason"]] for one in own["choices"]
        ]  # fmt: skip

    play(n, 2, ask)


# ---- llama-server's


def native(client: Client, path: str, body: Json, *, streams: bool) -> list[Any]:
    """Text, tokens, log-probabilities and end of a text in llama-server's form."""
    if streams:
        *parts, last = streamed(client, path, body)
        return [
            "".join(one["content"] for one in parts), [x for one in parts for x in one["tokens"]],
            [x["logprob"] for one in parts for x in one.get("completion_probabilities", ())],
            last["stop_type"], last["stopping_word"], last["tokens_predicted"],
        ]  # fmt: skip
    whole = client.right(path, body)
    return [
        whole["content"], whole["tokens"],
        [one["logprob"] for one in whole.get("completion_probabilities", ())], whole["stop_type"],
        whole["stopping_word"], whole["tokens_predicted"],
    ]  # fmt: skip


def as_native(own: Any) -> list[Any]:
    """The library's answer in that form."""
    (choice,) = own["choices"]
    word = choice["stop_reason"] if isinstance(choice["stop_reason"], str) else ""
    ends = {"length": "limit", "stop": "word" if word else "eos"}
    told = choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
    return [choice["text"], list(choice["token_ids"]), plain(told), ends[choice["finish_reason"]],
            word, own["usage"]["completion_tokens"]]  # fmt: skip


@numbers
@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_texts_and_gaps_in_llama_servers_form(
    client: Client, library: Llama, path: str, n: int
) -> None:
    def ask(drawn: Drawn) -> tuple[Any, Any]:
        rng, given = drawn.rng, dict(drawn.options)
        n_probs = rng.choice([None, None, 1, 3])
        before, after, files = drawn.text(), drawn.text(), [drawn.text(4)] * rng.randrange(2)
        suffix = after if path == "/infill" else None
        beside = "".join(f"--- f.py ---\n\n{one}\n" for one in files) if suffix is not None else ""
        own = library.create_completion(
            beside + before, suffix, return_token_ids=True, logprobs=n_probs, **given
        )
        given["n_predict"] = given.pop("max_tokens")
        text: str = as_native(own)[0]
        body = {**given, "n_probs": n_probs, "return_tokens": True, **drawn.drafting(text)}
        if suffix is None:
            body["prompt"] = before
        else:
            at = rng.randrange(len(before) + 1)
            body |= {"input_prefix": before[:at], "prompt": before[at:], "input_suffix": suffix}
            body["input_extra"] = [{"filename": "f.py", "text": one} for one in files]
        return native(client, path, body, streams=drawn.streams), as_native(own)

    play(n, 5 + len(path), ask)
