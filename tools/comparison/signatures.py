"""Compares the parameters of the public functions of both packages."""

from __future__ import annotations

# name -> [[parameter, kind, default], ...]
Signatures = dict[str, list[list[str]]]
# Defaults that mean the same: another spelling, or an equivalent object.
SPELLED = {"[]": "()", "-1": "-1.0"}


def compare_signatures(theirs: Signatures, ours: Signatures) -> list[tuple[str, str, str]]:
    """(name, word, why) for each public function there; "same": ours accepts the same arguments."""
    return [(name, *_compared(theirs[name], ours.get(name))) for name in sorted(theirs)]


def _compared(there: list[list[str]], here: list[list[str]] | None) -> tuple[str, str]:
    if here is None:
        return "missing", ""
    own = {name: default for name, _, default in here}
    takes_any = any(kind == "VAR_KEYWORD" for _, kind, _ in here)
    named = [(name, kind, default) for name, kind, default in there if not kind.startswith("VAR")]
    lacking = [name for name, _, _ in named if name not in own and not takes_any]
    if lacking:
        return "lacks parameters", ", ".join(lacking)
    positional = [n for n, kind, _ in named if kind == "POSITIONAL_OR_KEYWORD"]
    ordered = [n for n, kind, _ in here if kind in ("POSITIONAL_OR_KEYWORD", "POSITIONAL_ONLY")]
    if not takes_any and ordered[: len(positional)] != positional:
        return "another order", ", ".join(ordered)
    others = [
        f"{name}={own[name]} (there {default})"
        for name, _, default in named
        if name in own and SPELLED.get(own[name], own[name]) != SPELLED.get(default, default)
    ]
    return ("other defaults", ", ".join(others)) if others else ("same", "")
