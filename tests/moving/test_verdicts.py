"""The probe's verdicts: it reports a planted difference, and ignores one that does not count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tools.comparison.calls import CALLS
from tools.comparison.shapes import shape_of
from tools.comparison.signatures import compare_signatures
from tools.comparison.verdict import judge


def gave(value: Any) -> dict[str, Any]:
    return {"value": shape_of(value)}


def failed(*kinds: str) -> dict[str, Any]:
    return {"error": [*kinds, "Exception", "BaseException"], "says": "no"}


def chunks(*texts: str, last: str | None = "stop") -> Any:
    made = [{"choices": [{"text": text, "finish_reason": None}]} for text in texts]
    return iter([*made, {"choices": [{"text": "", "finish_reason": last}]}])


ANSWER = {"id": "a", "created": 1, "choices": [{"text": "hi", "logprobs": [0.5, -1.0]}]}


@pytest.mark.parametrize(
    ("there", "here", "mark", "word"),
    [
        (gave(1), gave(1), "", "same"),
        (gave(1), gave(2), "", "worse"),
        (gave(1), gave(2), "any", "same"),
        (gave(1), gave(2), "better: on purpose", "better"),
        (gave(1), gave(2), "differs: on purpose", "differs"),
        (gave(1), failed("UnsupportedError"), "", "refused"),
        (gave(1), failed("AttributeError"), "", "missing"),
        (failed("ValueError"), gave(1), "", "fails there"),
        (failed("ValueError"), failed("ArgumentError", "ValueError"), "", "both fail"),
        (gave(ANSWER), gave({**ANSWER, "more": 1}), "", "worse"),
        (gave({**ANSWER, "more": 1}), gave(ANSWER), "", "worse"),
        (gave([1, 2]), gave([1, 2, 3]), "", "worse"),
        (gave([0.5]), gave([0.9]), "", "worse"),
        (gave(np.zeros(2, np.int32)), gave(np.zeros(2, np.int64)), "", "worse"),
        (gave([1.0] * 20), gave([1.5] * 20), "", "same"),
        (gave([1.0] * 20), gave([1.0, -1.0] * 10), "", "worse"),
        (gave(chunks("a", "b")), gave(chunks("ab", "")), "", "same"),
        (gave(chunks("a", "b")), gave(chunks("a", "c")), "", "worse"),
        (gave(chunks("a")), gave(chunks("a", last="length")), "", "worse"),
    ],
)
def test_verdicts(there: dict[str, Any], here: dict[str, Any], mark: str, word: str) -> None:
    assert judge(there, here, mark).word == word


def test_signatures() -> None:
    there = [["a", "POSITIONAL_OR_KEYWORD", ""], ["b", "POSITIONAL_OR_KEYWORD", "1"]]
    rest = [["rest", "VAR_KEYWORD", ""]]
    cases = {
        "same": there, "another order": there[::-1], "lacks parameters": there[:1],
        "other defaults": [there[0], ["b", "POSITIONAL_OR_KEYWORD", "2"]], "missing": None,
    }  # fmt: skip
    for word, here in cases.items():
        ours = {} if here is None else {"f": here}
        assert [one[1] for one in compare_signatures({"f": there}, ours)] == [word]
    assert compare_signatures({"f": there}, {"f": rest})[0][1] == "same"


def test_calls_can_be_compiled_and_are_there_once() -> None:
    codes = [code for _, code, _ in CALLS]
    assert len(codes) == len(set(codes)) > 400
    for _, code, mark in CALLS:
        compile(code, code, "exec")
        assert mark.partition(":")[0] in ("", "any", "better", "differs")
