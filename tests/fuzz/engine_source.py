"""Facts from the pinned engine's source: its architectures, and the keys that each reads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "src"
# Of no text model: the engine has no graph for it, and says so.
_NO_GRAPH = {"clip", "gptj"}


@cache
def _text(name: str) -> str:
    return (_SOURCE / name).read_text(encoding="utf-8")


@cache
def key_names() -> dict[str, str]:
    """LLM_KV_* -> the key, with "%s" for the architecture."""
    return dict(re.findall(r"\{ (LLM_KV_\w+),\s+\"([^\"]+)\"", _text("llama-arch.cpp")))


@cache
def architectures() -> dict[str, str]:
    """LLM_ARCH_* -> its name in files."""
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+),\s+\"([^\"]+)\"", _text("llama-arch.cpp")))
    return {arch: name for arch, name in names.items() if name != "(unknown)"}


@cache
def keys_of() -> dict[str, tuple[str, ...]]:
    """Architecture's name -> the keys that its model reads, those of all models among them."""
    model = _text("llama-model.cpp")
    start = model.index("void llama_model_base::load_hparams")
    common = _constants(model[start : model.index("load_arch_hparams(ml);", start)])
    of_class: dict[str, set[str]] = {}
    for path in sorted((_SOURCE / "models").glob("*.cpp")):
        for name, body in re.findall(
            r"void llama_model_(\w+)::load_arch_hparams\(.*?\) \{(.*?)\n\}", path.read_text(), re.S
        ):
            of_class[name] = _constants(body)
    made: dict[str, str] = {}
    waiting: list[str] = []
    for arch, cls in re.findall(
        r"case (LLM_ARCH_\w+):|return new llama_model_(\w+)\(params\)", model
    ):
        if arch:
            waiting.append(arch)
            continue
        made |= dict.fromkeys(waiting, cls)
        waiting = []
    names = architectures()
    return {
        names[arch]: tuple(sorted(common | of_class.get(cls, set())))
        for arch, cls in made.items()
        if arch in names and names[arch] not in _NO_GRAPH
    }


def _constants(source: str) -> set[str]:
    known = key_names()
    return {known[name] for name in re.findall(r"\bLLM_KV_\w+", source) if name in known}
