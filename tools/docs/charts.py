"""Draws results-light.svg and results-dark.svg from files of `bench --json`.

A bar is a run's speed-up over plain decoding; the line through its end spans the quartiles of the
prompts, the diamond is the worst one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

# As in `bench`, which the site cannot import: it is built without an engine.
BUSY = 0.75

Result = dict[str, Any]
Attributes = dict[str, Any]

_WIDTH, _LEFT, _BARS, _HIST = 760, 262, 270, 592
_ROW, _TOP, _BOTTOM = 46, 62, 44
_HIST_WIDTH = _WIDTH - _HIST - 16


class Theme(NamedTuple):
    """The colours of a picture."""

    back: str
    text: str
    faint: str
    line: str
    bar: str
    mark: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#1a7f64", "#9a3412"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#30363d", "#3fb68b", "#f0a36b"),
}


class Bar(NamedTuple):
    """A run."""

    model: str
    draft: str
    speedup: float  # over plain decoding
    low: float  # the quartiles of the prompts
    high: float
    worst: float  # of a single prompt
    accepted: tuple[int, ...]  # rounds in which 0, 1, 2 ... drafted tokens were accepted


def bar_of(run: Result) -> Bar:
    """The bar of a run."""
    speeds = sorted(speed(run, prompt) for prompt in run["prompts"])
    low, _, high = statistics.quantiles(speeds, n=4, method="inclusive")
    name = run["files"]["target"]["name"].removesuffix(".gguf")
    model, _, kind = name.replace("-Instruct", "").rpartition(".")
    return Bar(
        f"{model} {kind}", f"{draft_name(run)}, {len(speeds)} prompts, {kernels(run)}",
        speed(run, run["summary"]), low, high, speeds[0], tuple(run["accepted_histogram"]),
    )  # fmt: skip


def by_processor(run: Result) -> bool:
    """Whether to use processor time, because other programs kept the machine busy."""
    plain = run["time"]["plain"]
    clock_s = (plain["prompt_s"] + plain["decode_s"]) * run["settings"]["n_threads"]
    is_busy: bool = plain["cpu_s"] < BUSY * clock_s
    return "cpu_speedup" in run["summary"] and is_busy


def speed(run: Result, figures: Result) -> float:
    """The speed-up over plain decoding of a run's summary, category or prompt."""
    return float(figures["cpu_speedup" if by_processor(run) else "speedup"])


def draft_name(run: Result) -> str:
    """The name of the drafter; for a draft model, that of its file."""
    name = str(run["settings"]["drafter"])
    if name != "draft-model":
        return name
    return str(run["files"]["draft"]["name"]).removesuffix(".gguf").replace("-Instruct", "")


def kernels(run: Result) -> str:
    """The instruction sets of a run's row kernels, such as AVX2."""
    return ", ".join(sorted(set(run["machine"]["row_kernels"].values())))


def draw(bars: Sequence[Bar], theme: Theme) -> str:
    """The picture as SVG."""
    height = _TOP + _ROW * len(bars) + _BOTTOM
    most = max(1.5, *(max(bar.high, bar.speedup) for bar in bars)) * 1.04
    scale = _BARS / most
    said = "; ".join(f"{bar.model}, {bar.draft}: {bar.speedup:.2f}" for bar in bars)
    out = [
        _element("title", f"Speed over plain decoding: {said}"),
        _element("rect", width=_WIDTH, height=height, fill=theme.back),
        _element("text", "Speed over plain decoding", x=_LEFT, y=24, font_weight=600),
        _element("text", "Accepted per round", x=_HIST, y=24, font_weight=600),
    ]
    for tick in range(int(most * 2) + 1):
        out += _tick(tick / 2, _LEFT + tick / 2 * scale, height, theme)
    for i, bar in enumerate(bars):
        y = _TOP + i * _ROW
        out += [*_bar(bar, y, scale, theme), *_histogram(bar.accepted, y, theme)]
    small: Attributes = {"y": height - 8, "fill": theme.faint, "font_size": 12}
    out.append(
        _element("text", "line: middle half of the prompts, diamond: the worst", x=_LEFT, **small)
    )
    out.append(_element("text", "share of rounds", x=_HIST, **small))
    return _svg(out, height, theme)


def _svg(parts: Sequence[str], height: float, theme: Theme) -> str:
    head = _element(
        "svg", None, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {height}",
        role="img", font_family="system-ui, sans-serif", font_size=13, fill=theme.text,
    )  # fmt: skip
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _element(tag: str, text: str | None = "", **attributes: str | float) -> str:
    """An element; with None as text, only its start tag."""
    head = tag
    for key, value in attributes.items():
        said = f"{value:.5g}" if isinstance(value, float) else str(value)
        head += f" {key.replace('_', '-')}={quoteattr(said)}"
    if text is None:
        return f"<{head}>"
    return f"<{head}>{escape(text)}</{tag}>" if text else f"<{head}/>"


def _tick(value: float, x: float, height: int, theme: Theme) -> list[str]:
    colour, width = (theme.text, 1.5) if value == 1 else (theme.line, 1.0)
    line = _element(
        "line", x1=x, y1=_TOP - 14, x2=x, y2=height - _BOTTOM + 4, stroke=colour, stroke_width=width
    )
    style: Attributes = {"text_anchor": "middle", "font_size": 11, "fill": theme.faint}
    return [line, _element("text", f"{value:g}", x=x, y=_TOP - 20, **style)]


def _bar(bar: Bar, y: float, scale: float, theme: Theme) -> list[str]:
    end, middle = _LEFT + bar.speedup * scale, y + 15
    low, high, worst = (_LEFT + value * scale for value in (bar.low, bar.high, bar.worst))
    name: Attributes = {"x": _LEFT - 10, "text_anchor": "end"}
    faint: Attributes = {"font_size": 12, "fill": theme.faint}
    return [
        _element("text", bar.model, y=y + 12, **name),
        _element("text", bar.draft, y=y + 27, **name, **faint),
        _element("rect", x=_LEFT, y=y + 3, width=end - _LEFT, height=24, rx=2, fill=theme.bar),
        _element("line", x1=low, y1=middle, x2=high, y2=middle, stroke=theme.text, stroke_width=2),
        _element("path", d=f"M{worst:.1f} {middle - 5}l5 5l-5 5l-5 -5z", fill=theme.mark),
        _element("text", f"{bar.speedup:.2f}", x=max(high, end) + 6, y=y + 20, font_weight=600),
    ]


def _histogram(accepted: Sequence[int], y: float, theme: Theme) -> list[str]:
    out, total = [], sum(accepted) or 1
    step = min(20.0, _HIST_WIDTH / max(len(accepted), 1))
    every = 1 if step >= 13 else 5  # labels of two digits would overlap
    style: Attributes = {"text_anchor": "middle", "font_size": 9, "fill": theme.faint}
    for i, count in enumerate(accepted):
        x, tall = _HIST + i * step, 26 * count / total
        column: Attributes = {"x": x, "y": y + 28 - tall, "width": step - 3, "height": tall}
        said = _element("title", f"{i} accepted: {count / total:.0%} of rounds")
        out.append(f"{_element('rect', None, **column, fill=theme.bar)}{said}</rect>")
        if i % every == 0:
            out.append(_element("text", str(i), x=x + (step - 3) / 2, y=y + 39, **style))
    return out


class Table(NamedTuple):
    """The drafts of a target."""

    model: str
    categories: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]  # of each draft its name, and its speed-ups


def in_categories(files: Sequence[Sequence[Result]]) -> list[list[Result]]:
    """Groups the runs of several drafts over the same prompts, from one file or several.

    All runs of a group have the same target, answer length and row kernels.
    """

    def what(run: Result) -> tuple[str, int, list[str], str]:
        ids = [prompt["id"] for prompt in run["prompts"]]
        target = run["files"]["target"]["name"]
        return target, run["settings"]["n_tokens"], ids, kernels(run)

    every = [run for runs in files for run in runs]
    groups: list[list[Result]] = []
    for first in [runs[0] for runs in files if len(runs) > 1]:
        if not any(what(group[0]) == what(first) for group in groups):
            groups.append([run for run in every if what(run) == what(first)])
    return groups


def table_of(runs: Sequence[Result]) -> Table:
    """The table of runs over the same prompts."""
    names = tuple(runs[0]["categories"])
    rows = [
        (draft_name(run), tuple(speed(run, run["categories"][name]) for name in names))
        for run in runs
    ]
    return Table(f"{bar_of(runs[0]).model}, {kernels(runs[0])}", names, tuple(rows))


def pictures(files: Sequence[Sequence[Result]]) -> dict[str, str]:
    """The name and the text of each picture, from the runs of each file."""
    bars = [bar_of(run) for runs in files for run in runs]
    return {f"results-{name}.svg": draw(bars, theme) for name, theme in THEMES.items()}
