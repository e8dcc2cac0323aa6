"""The page's own logic: events, rounds, speeds, plots, requests and storage."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page.scripts import PAGE, PURE, Scripts

SCRIPTS = Scripts()
BUILD = """
    const answer = new Answer(true);
    for (const [tokens, ms] of chunks) {
        const token_sources = tokens.map(([text, source]) => ({ text, source }));
        const content = tokens.map(([text]) => text).join("");
        answer.add({ choices: [{ delta: { content }, token_sources }] }, ms);
    }
"""
Chunks = list[tuple[list[tuple[str, str]], float]]


def asked_of_answer(what: str, chunks: Chunks) -> Any:
    return SCRIPTS.run(f"{BUILD} return {what};", chunks=chunks)


def one_chunk(sources: list[str]) -> Chunks:
    return [([("a", source) for source in sources], 0.0)]


# A line of data holds no end of a line; U+2028 is none for server-sent events.
data_lines = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@settings(deadline=None)
@given(st.data(), st.lists(st.lists(data_lines, min_size=1, max_size=3), max_size=6))
def test_events_arrive_whole_however_they_are_cut(data: st.DataObject, events: list[Any]) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    stream = ""
    for lines in events:
        stream += data.draw(st.sampled_from(["", f": ping{end}{end}", f"event: message{end}"]))
        stream += "".join(f"data: {line}{end}" for line in lines) + end
    # A carriage return is an end of its own only once the next sign is there.
    stream += ": end\n" if end == "\r" else ""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
    parsed = SCRIPTS.run(
        "const parser = new EventParser(); return pieces.flatMap((one) => parser.feed(one));",
        pieces=pieces,
    )
    assert parsed == ["\n".join(lines) for lines in events]


@pytest.mark.parametrize(
    ("sources", "rounds"),
    [
        ([], []),
        (["target"], [{"target": 1}]),
        (["model"], [{"model": 1}]),
        (["model", "model", "target"], [{"model": 2, "target": 1}]),
        (["target", "target"], [{"target": 1}, {"target": 1}]),
        (["target", "copy", "target", "grammar"],
         [{"target": 1}, {"copy": 1, "target": 1}, {"grammar": 1}]),
        (["wizard", "target"], [{"other": 1, "target": 1}]),
        (["__proto__", "constructor", "target"], [{"other": 2, "target": 1}]),
    ],
)  # fmt: skip
def test_a_round_ends_with_the_targets_own_token(
    sources: list[str], rounds: list[dict[str, int]]
) -> None:
    assert asked_of_answer("answer.rounds()", one_chunk(["target", *sources])) == rounds


def test_figures_are_the_servers_once_it_has_told_them() -> None:
    chunks = one_chunk(["target", "model", "model", "target", "copy", "target"])
    seen = asked_of_answer("answer.figures()", chunks)
    unknown = {"perSecond": None, "saved": None, "savedError": None}
    assert seen == {"nTokens": 6, "nRounds": 2, "perRound": 2.5, **unknown}
    assert asked_of_answer("answer.figures()", [])["perRound"] is None
    told = {"usage": {"completion_tokens": 8}, "timing": {"decode_tps": 30.5},
            "speculation": {"rounds": 4, "tokens_per_round": 1.75, "saved_s": 0.5,
                            "saved_error_s": 0.1}}  # fmt: skip
    body = f"{BUILD} answer.add(told, 9); return answer.figures();"
    figures = SCRIPTS.run(body, chunks=chunks, told=told)
    counted = {"nTokens": 8, "nRounds": 4, "perRound": 1.75}
    assert figures == {**counted, "perSecond": 30.5, "saved": 0.5, "savedError": 0.1}


@pytest.mark.parametrize(
    ("times", "speed"),
    [
        ([], None),
        ([(1, 0)], None),
        ([(5, 100)], None),
        ([(1, 100), (1, 200)], 10),
        # Those of the first chunk took the time of the prompt.
        ([(5, 100), (4, 300)], 20),
        ([(1, 0), (3, 500), (6, 1000)], 9),
    ],
)
def test_speed_counts_the_time_between_tokens(
    times: list[tuple[int, float]], speed: float | None
) -> None:
    chunks = [([("a", "target")] * n, ms) for n, ms in times]
    assert asked_of_answer("answer.speed()", chunks) == speed


def test_chunks_in_any_form_make_an_answer() -> None:
    """Only text becomes text, whatever a server omits or sends in another type."""
    chunks: list[Any] = [
        {},
        {"choices": []},
        {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": None}}]},
        {"choices": [{"delta": {"content": {"no": "text"}}}]},
        {"choices": [{"delta": {"reasoning_content": "thus"}}]},
        {"choices": [{"delta": {"content": "so"}, "token_sources": None}]},
        {"choices": [{"delta": {"content": "!"}, "token_sources": [{"text": 3}, {}]}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2}, "speculation": {"reason_off": None}},
    ]
    stored = SCRIPTS.run(
        """const answer = new Answer(false); answer.isDone = true;
        for (const chunk of chunks) answer.add(chunk, 1); return answer.toStored();""",
        chunks=chunks,
    )
    assert (stored["content"], stored["thought"], stored["finish"]) == ("so!", "thus", "stop")
    assert stored["tokens"] == [["", "other", 1], ["", "other", 1]]
    assert stored["usage"] == {"completion_tokens": 2} and not stored["withDraft"]
    assert stored["error"] is None and not stored["isStopped"]


@pytest.mark.parametrize("error", [{"message": "full"}, "full"])
def test_an_error_in_a_stream_is_the_answers_error(error: Any) -> None:
    body = "const answer = new Answer(true); answer.add({ error }, 1); return answer.error;"
    assert SCRIPTS.run(body, error=error) == "full"


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_texts_part_at_their_first_difference(start: str, one: str, other: str) -> None:
    at = SCRIPTS.run("return partAt(one, other);", one=start + one, other=start + other)
    if one == other:
        assert at is None
    else:
        # JavaScript counts in UTF-16.
        units = [(start + text).encode("utf-16-le", "surrogatepass") for text in (one, other)]
        assert units[0][: 2 * at] == units[1][: 2 * at]
        assert units[0][2 * at : 2 * at + 2] != units[1][2 * at : 2 * at + 2]


CONVERSATION = """
    const conversation = new Conversation();
    Object.assign(conversation.settings, settings);
    for (const [question, ...contents] of past) {
        const exchange = conversation.ask(question);
        for (const content of contents) {
            exchange.answers.push(Object.assign(new Answer(true), { content, isDone: true }));
        }
    }
"""


def requested(past: Any, *, plain: bool = False, seed: Any = None, **settings: Any) -> Any:
    body = f"""{CONVERSATION}
        return conversation.request(conversation.ask("now"), !plain, seed);"""
    return SCRIPTS.run(body, past=past, settings=settings, plain=plain, seed=seed)


def test_a_request_has_the_conversation_and_the_settings() -> None:
    body = requested(
        [["one", "first"], ["two", "second", "second, plainly"]],
        system="Be brief.", temperature="0.5", maxTokens="64", seed="7", model="b",
    )  # fmt: skip
    assert body == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "second"},
            {"role": "user", "content": "now"},
        ],
        "model": "b",
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": {"show_tokens": True},
        "temperature": 0.5,
        "max_tokens": 64,
        "seed": 7,
    }


def test_what_is_not_set_is_left_to_the_server() -> None:
    body = requested([], temperature="", maxTokens="", seed="", system="  \n")
    assert not {"temperature", "max_tokens", "seed", "model"} & set(body)
    assert [one["role"] for one in body["messages"]] == ["user"]
    assert requested([], temperature="0")["temperature"] == 0


def test_the_same_request_without_a_draft_differs_in_the_draft_alone() -> None:
    past = [["one", "first"]]
    drafted, plain = requested(past, seed=5), requested(past, plain=True, seed=5)
    assert plain["speculation"] == {"show_tokens": True, "draft": False}
    assert {**plain, "speculation": drafted["speculation"]} == drafted
    assert requested(past, seed=5, maxTokens="3")["seed"] == 5


@pytest.mark.parametrize("missing", [["two"], ["two", ""]])
def test_roles_go_in_turn_where_an_answer_is_missing(missing: list[str]) -> None:
    body = requested([["one", "first"], missing, ["three", "third"]])
    said = [one["content"] for one in body["messages"]]
    assert said == ["one", "first", "three", "third", "now"]
    roles = [one["role"] for one in body["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_asking_again_forgets_what_came_behind() -> None:
    body = f"""{CONVERSATION}
        const exchange = conversation.ask("other", 1);
        const questions = conversation.exchanges.map((one) => one.question);
        return [questions, conversation.request(exchange, true).messages];"""
    past = [["one", "first"], ["two", "second"], ["three", "third"]]
    questions, messages = SCRIPTS.run(body, past=past, settings={})
    assert questions == ["one", "other"]
    assert [one["content"] for one in messages] == ["one", "first", "other"]


def test_a_conversation_is_the_same_after_a_reload() -> None:
    chunks: Chunks = [([("a<", "target")], 5.0), ([("b", "copy"), ("é😀", "target")], 9.5)]
    body = f"""{BUILD}
        const conversation = new Conversation();
        conversation.settings.temperature = "0.25";
        conversation.settings.beside = true;
        conversation.ask("<i>why</i>").answers.push(answer);
        answer.isDone = isDone;
        const back = Conversation.fromText(conversation.toText());
        return [JSON.parse(conversation.toText()), JSON.parse(back.toText()), back];"""
    for is_done in (True, False):
        kept, again, back = SCRIPTS.run(body, chunks=chunks, isDone=is_done)
        assert kept == again
        answer = back["exchanges"][0]["answers"][0]
        assert answer["content"] == "a<bé😀" and answer["isDone"]
        # One that a reload cut off says so, and nobody waits for its end.
        assert answer["isStopped"] is not is_done
        assert back["settings"]["temperature"] == "0.25" and back["settings"]["beside"] is True


@pytest.mark.parametrize(
    "stored",
    [
        "", "null", "{", "[]", "7", '{"version": 0}', '{"version": 1}',
        '{"version": 1, "exchanges": {}}',
        '{"version": 1, "exchanges": [null, 3, {"question": 5, "answers": []}, {"question": "x"}]}',
    ],
)  # fmt: skip
def test_a_storage_with_something_else_is_an_empty_conversation(stored: str) -> None:
    back = SCRIPTS.run("return Conversation.fromText(stored);", stored=stored)
    assert back["exchanges"] == [] and back["settings"]["maxTokens"] == "512"


def test_the_order_of_the_scripts_is_that_of_their_imports() -> None:
    for i, name in enumerate(PURE):
        source = (PAGE / f"{name}.js").read_text(encoding="utf-8")
        lines = [line for line in source.splitlines() if line.startswith("import ")]
        for line in lines:
            assert line.rpartition('"./')[2].removesuffix('.js";') in PURE[:i], line
