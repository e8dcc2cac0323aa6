"""Tiny models with eyes, and pictures for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pyllama_spec.engine import Model
from pyllama_spec.engine.media import MediaRows, Part, Projector
from tests.models import model_path
from tests.models.projector import CONTROL_NAMES
from tests.oracles import tiny

# The text model beside each kind of projector.
KINDS = {"gemma3": "gemma3", "qwen3vl": "qwen35", "idefics3": "llama", "colours": "perm"}


def seeing(kind: str, **options: Any) -> Model:
    """The text model for a kind of projector, loaded once per test run."""
    return tiny(KINDS[kind], control_names=CONTROL_NAMES[kind], **options)


@cache
def projector(kind: str) -> Projector:
    """A projector of a kind for seeing(kind), loaded once per test run."""
    model = seeing(kind)
    path = model_path("projector", kind=kind, n_embd=model.info.n_embd)
    return Projector(model, path, n_threads=1)


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A picture of smooth random colours."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3))
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return coarse[np.ix_(rows, columns)].astype(np.uint8)


def rows_of(parts: tuple[Part, ...]) -> list[MediaRows]:
    """The runs of rows among the parts of an image."""
    return [part for part in parts if isinstance(part, MediaRows)]
