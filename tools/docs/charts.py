"""Draws speed-light.svg and speed-dark.svg from a run of `bench --json`: a bar a category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

Result = dict[str, Any]
Attributes = dict[str, Any]

_WIDTH, _LEFT, _BARS = 560, 120, 380
_ROW, _TOP, _BOTTOM = 32, 66, 30
# The categories that the picture shows, below all prompts together.
_SHOWN = ("extraction", "chat", "code", "translation")


class Theme(NamedTuple):
    """The colours of a picture."""

    back: str
    text: str
    faint: str
    line: str
    bar: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#1a7f64"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#30363d", "#3fb68b"),
}


def model_name(run: Result) -> str:
    """The target and the type of its weights."""
    name = run["files"]["target"]["name"].removesuffix(".gguf")
    model, _, kind = name.replace("-Instruct", "").rpartition(".")
    return f"{model} {kind}"


def speed(figures: Result) -> float:
    """The speed-up over plain decoding of a run's summary, category or prompt.

    By the time of the processor, which other programs of the machine disturb least.
    """
    return float(figures["cpu_speedup"])


def draft_name(run: Result) -> str:
    """The name of the drafter; for a draft model, that of its file."""
    name = str(run["settings"]["drafter"])
    if name != "draft-model":
        return name
    return str(run["files"]["draft"]["name"]).removesuffix(".gguf").replace("-Instruct", "")


def kernels(run: Result) -> str:
    """The instruction sets of a run's row kernels, such as AVX2."""
    return ", ".join(sorted(set(run["machine"]["row_kernels"].values())))


def draw(run: Result, theme: Theme) -> str:
    """The picture of a run as SVG."""
    bars = [(f"all {len(run['prompts'])} prompts", speed(run["summary"]))]
    bars += [(name, speed(run["categories"][name])) for name in _SHOWN]
    height = _TOP + _ROW * len(bars) + _BOTTOM
    scale = _BARS / (max(most for _, most in bars) * 1.08)
    about = f"{model_name(run)}, draft {draft_name(run)}, one thread with {kernels(run)}"
    said = "; ".join(f"{name}: {value:.2f}" for name, value in bars)
    out = [
        _element("title", f"Speed over plain decoding, {about}: {said}"),
        _element("rect", width=_WIDTH, height=height, fill=theme.back),
        _element("text", "Speed over plain decoding", x=_LEFT, y=24, font_weight=600),
        _element("text", about, x=_LEFT, y=height - 10, fill=theme.faint, font_size=12),
    ]
    for tick in (0.0, 0.5, 1.0, 1.5):
        out += _tick(tick, _LEFT + tick * scale, height, theme)
    for i, (name, value) in enumerate(bars):
        out += _bar(name, value, _TOP + i * _ROW, scale, theme)
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


def _bar(name: str, value: float, y: float, scale: float, theme: Theme) -> list[str]:
    width = value * scale
    return [
        _element("text", name, x=_LEFT - 10, y=y + 17, text_anchor="end"),
        _element("rect", x=_LEFT, y=y, width=width, height=24, rx=2, fill=theme.bar),
        _element("text", f"{value:.2f}", x=_LEFT + width + 6, y=y + 17, font_weight=600),
    ]


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
        (draft_name(run), tuple(speed(run["categories"][name]) for name in names)) for run in runs
    ]
    return Table(f"{model_name(runs[0])}, {kernels(runs[0])}", names, tuple(rows))


def pictures(run: Result) -> dict[str, str]:
    """The name and the text of each picture of a run."""
    return {f"speed-{name}.svg": draw(run, theme) for name, theme in THEMES.items()}
