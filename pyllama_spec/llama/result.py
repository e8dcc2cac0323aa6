"""A response as a notebook shows it: the text, with the drafted tokens in colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pyllama_spec.requests.generation import GenerationRecord

# Behind the letters, so that it can be read on a light page and on a dark one.
_DRAFTED = "background:rgba(46,160,67,.28);border-radius:3px"
_TEXT = "white-space:pre-wrap;margin:0 0 .4em 0"


class Result(dict[str, Any]):
    """A response: a dict in every respect, which a notebook shows as its text.

    What is drafted and accepted has a green ground, the figures follow. `dict(result)` is a copy
    that is shown as any dict.

    Args:
        response: what it holds.
        records: of the generations behind its choices, all of them ended.

    """

    _shown: tuple[tuple[tuple[str, bool], ...], ...] = ()

    def __init__(
        self, response: Mapping[str, Any] | None = None, records: Sequence[GenerationRecord] = ()
    ) -> None:
        super().__init__(response or {})
        self._shown = tuple(_stretches(record) for record in records)

    def _repr_html_(self) -> str:
        texts = "".join(f'<pre style="{_TEXT}">{_coloured(one)}</pre>' for one in self._shown)
        return f"<div>{texts}<small>{escape(self._figures())}</small></div>"

    def _figures(self) -> str:
        usage, timing = self.get("usage", {}), self.get("timing", {})
        speculation = self.get("speculation", {})
        n, seconds = usage.get("completion_tokens", 0), timing.get("decode_s", timing.get("wall_s"))
        parts = [f"{n} tokens" if seconds is None else f"{n} tokens in {seconds:.2f} s"]
        tps = timing.get("decode_tps", timing.get("tps"))
        if tps:
            parts.append(f"{tps:.1f} per second")
        if speculation.get("drafter", "none") != "none":
            accepted, drafted = speculation["accepted"], speculation["drafted"]
            parts.append(
                f"{speculation['drafter']}: {accepted} of {drafted} drafted tokens accepted, "
                f"{speculation['tokens_per_round']:.2f} tokens per round"
            )
        if speculation.get("reason_off"):
            parts.append(f"the drafter is off: {speculation['reason_off']}")
        return "; ".join(parts)


def _stretches(record: GenerationRecord) -> tuple[tuple[str, bool], ...]:
    found, begin = [], 0
    for end, is_drafted in record.spans:
        found.append((record.text[begin:end], is_drafted))
        begin = end
    return tuple(found)


def _coloured(stretches: Sequence[tuple[str, bool]]) -> str:
    return "".join(
        f'<span style="{_DRAFTED}" title="drafted and accepted">{escape(text)}</span>'
        if is_drafted
        else escape(text)
        for text, is_drafted in stretches
    )
