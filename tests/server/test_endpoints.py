"""The endpoints beside chats and texts give the library's results."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from pyllama_spec import Llama
from pyllama_spec.cli import serve
from pyllama_spec.server import app, llama_server
from pyllama_spec.server.app import page_files
from pyllama_spec.server.exchange import Exchange, Route
from tests.faces.tools import open_tiny
from tests.models import CHATML_TEMPLATE, model_path
from tests.server.world import TEXT, Client, Endless, is_idle, served, stages, until

CHAT = "/v1/chat/completions"
DOCUMENTS = ["a cat sat", "rain", "the other cat"]
# Of the tokens around a gap, which the tiny model's file does not name.
FILLS = {f"tokenizer.ggml.fim_{name}_token_id": 65 + i for i, name in enumerate(
    ("pre", "suf", "mid"))}  # fmt: skip
REPEATING: dict[str, Any] = {
    "prompt": "the cat",
    "max_tokens": 30,
    "temperature": 0,
    "logit_bias": {"97": 50.0},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    llm = open_tiny("prompt-lookup", n_parallel=2, embedding=True, pooling_type="mean")
    with served(llm, alias="tiny") as client:
        yield client


@pytest.mark.parametrize("given", ["the cat", [97, 98], [[97, 98], [99]]], ids=repr)
def test_embeddings_in_base64(client: Client, given: Any) -> None:
    answers = [
        client.right("/v1/embeddings", {"input": given, "encoding_format": form})["data"]
        for form in ("float", "base64")
    ]
    for plain, encoded in zip(*answers, strict=True):
        raw = base64.b64decode(encoded["embedding"])
        found = struct.unpack(f"<{len(raw) // 4}f", raw)
        assert found == pytest.approx(plain["embedding"], abs=1e-7)
        assert math.isclose(sum(x * x for x in found), 1.0, abs_tol=1e-5)
    own = client.service.llm.embed(given, normalize=True)
    vectors = [one["embedding"] for one in answers[0]]
    assert (
        vectors if isinstance(given, list) and not isinstance(given[0], int) else vectors[0]
    ) == own


def test_a_server_without_a_page(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pyllama_spec.server")
    with served(open_tiny(), flags=serve.FLAGS, has_page=False) as client:
        for path in page_files():
            status, answer = client.get(path)
            assert (status, answer["error"]["code"]) == (404, "unknown_path")
        assert client.get("/health")[0] == 200
    assert caplog.text.count(" option=--page\n") == len(page_files()) > 1


def test_scores() -> None:
    llm = Llama(model_path("reranker"), embedding=True, n_ctx=128, n_batch=128, n_threads=1)
    with served(llm) as client:
        own = llm.rank("the cat", DOCUMENTS)
        best = sorted(range(3), key=lambda i: -own[i])
        for path in ("/v1/rerank", "/rerank", "/reranking", "/v1/reranking"):
            answer = client.right(path, {"query": "the cat", "documents": DOCUMENTS})
            assert [one["index"] for one in answer["results"]] == best
            assert [one["relevance_score"] for one in answer["results"]] == [own[i] for i in best]
            each = [len(llm.tokenize(one, add_bos=False)) for one in ("the cat", *DOCUMENTS)]
            assert answer["usage"]["total_tokens"] == 3 * each[0] + sum(each[1:])
        body = {"query": "the cat", "documents": [{"text": one} for one in DOCUMENTS]}
        answer = client.right("/v1/rerank", {**body, "top_n": 1, "return_documents": True})
        (first,) = answer["results"]
        assert first["document"]["text"] == DOCUMENTS[best[0]]
        answer = client.right("/rerank", {"query": "the cat", "texts": DOCUMENTS})
        assert [one["score"] for one in answer] == [own[i] for i in best]
        # It generates nothing, and says so.
        assert client.post(TEXT, {"prompt": "a"})[0] == 400
        assert client.get("/props")[0] == 200


def test_tokens(client: Client) -> None:
    llm = client.service.llm
    for text in ("the cat", "é日", "<|im_end|> a", ""):
        ids = client.right("/tokenize", {"content": text})["tokens"]
        assert ids == llm.tokenize(text, add_bos=False, special=True)
        assert client.right("/detokenize", {"tokens": ids})["content"] == text
        pieces = client.right("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        assert [one["id"] for one in pieces] == ids
        raw = b"".join(
            p.encode() if isinstance(p, str) else bytes(p) for p in (one["piece"] for one in pieces)
        )
        assert raw.decode() == text
    plain = client.right("/tokenize", {"content": "<|im_end|>", "parse_special": False})["tokens"]
    assert len(plain) > 1
    assert client.post("/detokenize", {"tokens": [10**6]})[0] == 400


def test_a_template(client: Client) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    llm = client.service.llm
    variations: list[dict[str, Any]] = [{}, {"add_generation_prompt": False}]
    for more in variations:
        text = client.right("/apply-template", {"messages": messages, **more})["prompt"]
        assert text == llm.template.render(messages, **more).text
    # A developer is the system unless the template names it.
    developers = {"messages": [{**messages[0], "role": "developer"}, messages[1]]}
    text = client.right("/apply-template", developers)["prompt"]
    assert text == llm.template.render(messages).text
    with served(open_tiny(chat_template="{# 'developer' #}" + CHATML_TEMPLATE)) as knows:
        assert "developer\n" in knows.right("/apply-template", developers)["prompt"]


def test_what_llama_servers_flags_mean(client: Client) -> None:
    """A temperature below 0 is greedy; a last message of the assistant begins the answer."""
    given = llama_server.plan(["-m", "t.gguf"], {}).settings
    own = {name: getattr(given, name) for name in ("is_greedy_below_0", "continues_last")}
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the c"}]
    chat: dict[str, Any] = {"messages": begun, "max_tokens": 9, "temperature": 0}
    with served(open_tiny(), **own) as theirs:
        greedy, *others = (
            one.right(TEXT, {"prompt": "the cat", "seed": 1, "temperature": t})["choices"]
            for one, t in ((client, 0), (client, -1), (theirs, 0), (theirs, -1))
        )
        ours = client.right(CHAT, {**chat, "continue_final_message": True})
        assert theirs.right(CHAT, chat)["choices"] == ours["choices"]
        assert theirs.post(CHAT, {"messages": [*begun, begun[1]]})[0] == 400
    assert client.right(CHAT, chat)["usage"] != ours["usage"]
    assert [one == greedy for one in others] == [False, True, True]


def test_prompts_in_llama_servers_form(client: Client) -> None:
    ids, body = client.service.llm.tokenize("the", add_bos=False), {"temperature": 0}
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": " cat"}]
    text, *others = ("the cat", {"prompt_string": "the cat"}, {"content": parts}, [*ids, " cat"],
                     [[*ids, " cat"]])  # fmt: skip
    answer = client.right("/completion", {**body, "prompt": text, "n_predict": 9})["content"]
    assert client.right("/completion", {**body, "prompt": text})["truncated"]
    vectors = client.right("/v1/embeddings", {"input": text})["data"]
    for one in others:
        asked = {**body, "prompt": one, "n_predict": 9}
        assert client.right("/completion", asked)["content"] == answer
        assert client.right("/v1/embeddings", {"input": one})["data"] == vectors
    image = {"prompt_string": "a", "multimodal_data": ["x"]}
    assert client.post("/completion", {"prompt": image})[0] == 400


def test_a_token_that_is_barred_in_llama_servers_form(client: Client) -> None:
    body = {"prompt": "the cat", "temperature": 0, "n_predict": 20, "return_tokens": True}
    first = client.right("/completion", body)["tokens"][0]
    barred = client.right("/completion", {**body, "logit_bias": [[first, False]]})
    assert first not in barred["tokens"]
    by_text = client.right("/completion", {**body, "logit_bias": {"q": 50.0}})
    assert by_text["content"] == 20 * "q"
    assert barred["timings"]["draft_n_accepted"] == barred["speculation"]["accepted"]


def test_probabilities_have_the_ids_of_their_tokens(client: Client) -> None:
    body = {"prompt": "the cat", "temperature": 0, "n_predict": 3, "n_probs": 4}
    answer = client.right("/completion", {**body, "return_tokens": True})
    shown = answer["completion_probabilities"]
    assert [one["id"] for one in shown] == answer["tokens"]
    for one in shown:
        assert len({top["id"] for top in one["top_logprobs"]}) == 4
        assert one["top_logprobs"][0]["id"] == one["id"]


def figures(client: Client) -> dict[str, float]:
    """The values of /metrics for the one model, by name and the other labels."""
    status, text = client.get("/metrics")
    assert status == 200
    model = f'model="{client.service.name}"'
    pairs = (line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    found = {name: float(value) for name, value in pairs}
    assert all(model in name for name in found)
    return {
        re.sub(rf"{model},?|,{model}", "", name).replace("{}", ""): n for name, n in found.items()
    }


def test_metrics_are_the_sums_of_what_was_answered() -> None:
    with served(open_tiny("prompt-lookup", n_parallel=2)) as client:
        answers = [client.right(TEXT, REPEATING) for _ in range(3)]
        ended = client.chunks(TEXT, {**REPEATING, "n": 2})
        answers.append({**ended[-1], "usage": ended[-1]["usage"]})
        client.post(TEXT, {"prompt": 3})
        until(lambda: is_idle(client))
        found = figures(client)
        n_prompt = sum(one["usage"]["prompt_tokens"] for one in answers)
        assert found["vllm:prompt_tokens_total"] == n_prompt
        for family in ("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total"):
            assert found[family] == sum(one["usage"]["completion_tokens"] for one in answers)
        details = [one["usage"]["completion_tokens_details"] for one in answers]
        accepted = sum(one["accepted_prediction_tokens"] for one in details)
        drafted = accepted + sum(one["rejected_prediction_tokens"] for one in details)
        for family in ("vllm", "llamacpp"):
            assert found[f"{family}:spec_decode_num_accepted_tokens_total"] == accepted > 0
            assert found[f"{family}:spec_decode_num_draft_tokens_total"] == drafted
            name = f"{family}:spec_decode_num_accepted_tokens_per_pos_total"
            by_position = {k: v for k, v in found.items() if k.startswith(name)}
            assert sum(by_position.values()) == accepted
            n_drafts = found[f"{family}:spec_decode_num_drafts_total"]
            assert by_position[f'{name}{{position="0"}}'] <= n_drafts
        cached = sum(one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers)
        assert found["vllm:prefix_cache_hits_total"] == cached > 0
        assert found["llamacpp:prompt_tokens_cached_total"] == cached
        assert found["llamacpp:prompt_tokens_total"] == n_prompt - cached
        assert found['vllm:request_success_total{finished_reason="length"}'] == 5
        assert found['pyllama_spec:request_errors_total{code="invalid_type"}'] == 1
        assert found["vllm:time_to_first_token_seconds_count"] == 5
        by_state = [n for name, n in found.items() if "requests_by_draft_state_total" in name]
        assert sum(by_state) == 5
        assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0


def test_metrics_say_what_runs_and_waits_and_was_left() -> None:
    with served(open_tiny(None, n_parallel=1)) as client:
        text = Endless(client)
        waiting = client.connect()
        waiting.request("POST", TEXT, b'{"prompt": "b"}')
        until(lambda: "queued" in stages(client))
        found = figures(client)
        assert found["llamacpp:requests_processing"] == found["vllm:num_requests_running"] == 1
        assert found["llamacpp:requests_deferred"] == found["vllm:num_requests_waiting"] == 1
        waiting.close()
        until(lambda: "queued" not in stages(client))
        text.close()
        until(lambda: is_idle(client))
        found = figures(client)
        assert found['vllm:request_success_total{finished_reason="abort"}'] == 2


def test_the_dashboard_shows_what_there_is() -> None:
    dashboard = json.loads(
        (Path(__file__).parents[2] / "examples/server-dashboard.json").read_text()
    )
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for query in queries for name in re.findall(r"\w+:\w+", query)}
    with served(open_tiny("prompt-lookup")) as client:
        client.right(TEXT, REPEATING)
        client.post(TEXT, {"prompt": 3})
        until(lambda: is_idle(client))
        there = {name.partition("{")[0] for name in figures(client)}
    assert named
    assert named <= there
    (per_round,) = [query for query in queries if "rounds_total" in query]
    assert per_round.startswith("1 + rate(vllm:spec_decode_num_accepted_tokens_total")


def test_slots_show_what_is_computed_and_no_text() -> None:
    with served(open_tiny(None, n_parallel=2), has_slots=True) as client:
        text = Endless(client)
        shown = client.get("/slots")[1]
        assert [one["is_processing"] for one in shown] == [True, False]
        assert shown[0]["stage"] == "generating"
        assert shown[0]["n_prompt"] > 0
        assert "cat" not in str(shown)
        text.close()
        until(lambda: is_idle(client))


def test_health_is_whether_requests_are_taken() -> None:
    with served(open_tiny()) as client:
        assert client.get("/health") == client.get("/ready") == (200, {"status": "ok"})
        assert client.ask("HEAD", "/health")[0] == 200
        client.serving.is_stopping = True
        assert client.get("/health")[0] == client.get("/ready")[0] == 503
        status, answer = client.post(TEXT, {"prompt": "a"})
        assert (status, answer["error"]["code"]) == (503, "stopping")
        assert client.get("/v1/models/other")[0] == 503
        client.serving.is_stopping = False
        assert client.get("/v1/models/other")[0] == 404
        status, answer = client.post("/health", {})
        assert status == 405


class Words(Struct):
    text: str


async def count_words(exchange: Exchange, body: Words) -> Any:
    return {"words": len(body.text.split()), "id": exchange.info.id}


def test_an_endpoint_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docstring of pyllama_spec.server says; the door and the errors are those of all."""
    more = Route("POST", "/words", count_words, Words)
    monkeypatch.setattr(app, "ROUTES", (*app.ROUTES, more))
    with served(open_tiny(), api_keys=("key",)) as client:
        assert client.post("/words", {"text": "a b"})[0] == 401
        client.key = "key"
        connection, response = client.send("POST", "/words", {"text": "the cat sat"})
        answer = json.loads(response.read())
        assert answer == {"words": 3, "id": response.getheader("x-request-id")}
        connection.close()
        status, answer = client.post("/words", {"text": 3})
        assert (status, answer["error"]["param"]) == (400, "text")
        assert client.get("/words")[0] == 405


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("json", {"type": "integer"}, "-?[0-9]+"),
        ("json", '{"enum": ["the cat"]}', '"the cat"'),
        ("choice", ["sat", 'a "b"'], 'sat|a "b"'),
        ("grammar", 'root ::= "x" [0-3]', "x[0-3]"),
    ],
)
def test_constraints_under_other_names(kind: str, value: Any, pattern: str) -> None:
    """As vLLM's clients send them."""
    with served(open_tiny()) as client:
        for body in ({f"guided_{kind}": value}, {"structured_outputs": {kind: value}}):
            asked = {"prompt": "a", "max_tokens": 60, "seed": 3, **body}
            text = client.right(TEXT, asked)["choices"][0]["text"]
            assert re.fullmatch(pattern, text)
            status, answer = client.post(TEXT, {**asked, "json_schema": {}})
            assert status == 400
            assert answer["error"]["param"].split(".")[0] in body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
    ],
)
def test_a_constraint_without_effect_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    neutral = {"lora": [], "dynatemp_range": 0.0, "t_max_predict_ms": -1}
    with served(open_tiny()) as client:
        client.right(TEXT, {"prompt": "a", "max_tokens": 2, **neutral})
        status, answer = client.post(TEXT, {"prompt": "a", **body})
    assert (status, answer["error"]["param"]) == (400, param)
