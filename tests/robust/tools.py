"""Helpers for the cases: small models, damaged files, open contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams
from tests.models import model_path
from tests.models.build import ARCHITECTURES
from tests.models.config import TinyConfig
from tests.models.sketch import Sketch

N_VOCAB = 320
PROMPT = (72, 101, 108, 108, 111)


def tiny(arch: str = "llama", **options: Any) -> Path:
    """A small valid model, shared: never write to it."""
    return model_path(arch, n_layer=2, **options)


def opened(arch: str = "llama", **params: Any) -> Context:
    """A context of a small model; two threads, since an assertion on a worker cannot be caught."""
    return opened_file(tiny(arch), **params)


def opened_file(path: Path, **params: Any) -> Context:
    """A context of a file."""
    return Context(
        Model(path), **{"n_ctx": 64, "n_batch": 32, "n_ubatch": 32, "n_threads": 2, **params}
    )


def batch_of(ids: Iterable[Any], pos: int = 0, seq: int = 0) -> Batch:
    """Tokens of one sequence, all of them with logits."""
    batch = Batch(64)
    for i, token in enumerate(ids):
        batch.add(token, pos + i, seq, output=True)
    return batch


def decoded(arch: str = "llama", **params: Any) -> Context:
    """A context that has decoded PROMPT, with logits at every token."""
    context = opened(arch, **params)
    context.decode(batch_of(PROMPT))
    return context


def generate_greedily(path: Path, n: int = 8, n_threads: int = 2) -> list[int]:
    """Loads a file and generates; what a damaged file must survive or be refused at."""
    with Model(path) as model:
        info = model.info
        n_rs_seq = 2 if info.has_recurrent_state and info.can_roll_back else 0
        params: dict[str, Any] = {
            "n_ctx": 64,
            "n_batch": 32,
            "n_ubatch": 32,
            "n_threads": n_threads,
            "n_rs_seq": n_rs_seq,
        }
        prompt = model.vocab.tokenize("the cat sat") or [0]
        model.vocab.detokenize(prompt)
        model.chat_template()
        sampler = Sampler(model, SamplerParams(temperature=0))
        with Context(model, **params) as context:
            context.decode(batch_of(prompt[:16]))
            row, pos, out = len(prompt[:16]) - 1, len(prompt[:16]), []
            for _ in range(n):
                out.append(sampler.sample(context, row))
                context.decode(batch_of(out[-1:], pos))
                row, pos = 0, pos + 1
        model.vocab.detokenize(out)
        return out


def edited(
    folder: Path, edit: Callable[[Sketch], object], arch: str = "llama", **options: Any
) -> Path:
    """A small model whose keys or tensors were changed before it was written."""
    options = {"n_layer": 2, **options}
    sketch = Sketch(TinyConfig(arch, **options))
    ARCHITECTURES[arch](sketch)
    edit(sketch)
    return sketch.write(folder / "edited.gguf")


def with_key(folder: Path, suffix: str, value: Any, arch: str = "llama") -> Path:
    """A small model with one of its architecture's keys set to another value."""
    return edited(folder, lambda sketch: sketch.key(suffix, value), arch)


def with_bytes(folder: Path, old: bytes, new: bytes, arch: str = "llama") -> Path:
    """A small model with the first occurrence of some bytes replaced."""
    data = tiny(arch).read_bytes()
    if old not in data:
        raise ValueError(f"{old!r} is not in the model")
    return written(folder, data.replace(old, new, 1))


def written(folder: Path, data: bytes | Sequence[int]) -> Path:
    """A file with these bytes."""
    path = folder / "bad.gguf"
    path.write_bytes(bytes(data))
    return path
