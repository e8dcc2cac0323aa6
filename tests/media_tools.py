"""Tiny models with eyes, and pictures for them."""

from __future__ import annotations

import base64
import io
import wave
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pyllama_spec.engine import Batch, Model
from pyllama_spec.engine.media import MediaRows, Part, Projector
from tests.models import model_path
from tests.models.projector import CONTROL_NAMES
from tests.oracles import tiny, tiny_context

# The text model beside each kind of projector.
KINDS = {"gemma3": "gemma3", "qwen3vl": "qwen35", "idefics3": "llama", "colours": "perm"}
HEARS = {"ultravox": "llama"}


def seeing(kind: str, **options: Any) -> Model:
    """The text model for a kind of projector, loaded once per test run."""
    return tiny({**KINDS, **HEARS}[kind], control_names=CONTROL_NAMES[kind], **options)


@cache
def projector(kind: str) -> Projector:
    """A projector of a kind for seeing(kind), loaded once per test run."""
    model = seeing(kind)
    path = model_path("projector", family=kind, n_embd=model.info.n_embd)
    return Projector(model, path, n_threads=1)


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A picture of smooth random colours."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 4, 3))
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    return coarse[np.ix_(rows, columns)].astype(np.uint8)


def file_of(pixels: npt.NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    """A picture's file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def url_of(content: bytes) -> dict[str, Any]:
    """The part of a message with a picture."""
    data = base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def sound(seconds: float, seed: int = 0, rate: int = 16000) -> npt.NDArray[np.float32]:
    """A sound of some random tones."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    tones = [0.2 * np.sin(2 * np.pi * hz * at) for hz in rng.uniform(100, 3000, 4)]
    samples: npt.NDArray[np.float32] = np.sum(tones, axis=0).astype(np.float32)
    return samples


def wav(samples: npt.NDArray[np.float32], rate: int = 16000, n_channels: int = 1) -> bytes:
    """A WAV file of 16 bits with the samples in each channel."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(n_channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.repeat(n_channels) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def sound_part(content: bytes) -> dict[str, Any]:
    """The part of a message with a sound."""
    data = base64.b64encode(content).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def rows_of(parts: tuple[Part, ...]) -> list[MediaRows]:
    """The runs of rows among the parts of an image."""
    return [part for part in parts if isinstance(part, MediaRows)]


def prompt_of(kind: str, *pieces: str | npt.NDArray[Any]) -> tuple[Part, ...]:
    """Texts, pictures and sounds as parts of a prompt."""
    vocab, out = seeing(kind).vocab, list[Part]()
    for piece in pieces:
        if isinstance(piece, str):
            out.append(tuple(vocab.tokenize(piece, add_special=False, parse_special=True)))
        else:
            eyes = projector(kind)
            out += eyes.audio(piece) if piece.ndim == 1 else eyes.image(piece)
    return tuple(out)


def plain_text(kind: str, parts: tuple[Part, ...], n: int) -> list[int]:
    """The greedy continuation: each part by a decode of its own, without the loop."""
    model = seeing(kind)
    batch, eyes = Batch(512), Batch(512, n_row=model.info.n_embd_inp)
    out: list[int] = []
    with tiny_context(model, n_ctx=1024, n_batch=512, n_ubatch=512) as context:
        at = 0
        for part in parts:
            if isinstance(part, tuple):
                batch.clear()
                batch.extend(part, at, output_last=True)
                context.decode(batch)
                at += len(part)
            else:
                whole = part.is_whole
                eyes.set_media(part.rows, part.positions + at, output_last=True, is_whole=whole)
                context.decode(eyes)
                at += part.n_positions
            row = len(part if isinstance(part, tuple) else part.ids) - 1
        while True:
            out.append(int(context.logits(row).argmax()))
            if len(out) == n:
                return out
            batch.clear()
            row = batch.add(out[-1], at, output=True)
            context.decode(batch)
            at += 1
