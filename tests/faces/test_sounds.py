"""Chats with sounds: input_audio parts, decoded within bounds."""

from __future__ import annotations

import base64
import contextlib
import random
import struct
from typing import Any

import numpy as np
import pytest

from pyllama_spec import Llama
from pyllama_spec.engine.media import MAX_SECONDS, decoded_audio
from pyllama_spec.errors import ArgumentError, EngineError, UnsupportedError
from tests.fuzz.mutated import mutate
from tests.media_tools import plain_text, projector, prompt_of, seeing, sound, sound_part, wav

N, RATE = 16, 16000
# 0.025 s and 0.1 s of a tone of 500 Hz and 0.4, by libsndfile 1.2.2.
_FLAC = (
    "ZkxhQwAAACIQABAAAAFIAAFIA+gA8AAAAZDIqy1p4Tpxnskbmz2WSBkyhAAAKCAAAAByZWZlcmVuY2UgbGliRkxBQyAx"
    "LjQuMyAyMDIzMDYyMwAAAAD/+HUIAAGPRhgAAAn9E5gccgEQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJN"
    "LIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJE"
    "ixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9"
    "YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVL"
    "lSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLIWhX6rJEiVLlSJFlX9YWQWaJEixgsSJNLAPbr"
)
_MP3 = (
    "//MYxAAEeALxoUMAAqpARKD4Pg++IBAcLggGHeX4IBIkl5eM//MYxAUF4GbYIY2IAHy6B9gh4IcFyTpdBiwYoNBXwVr/"
    "+EZH//MYxAQE6GYgAZe4ABhGRxhGRxBmK1gzFawZitXW5dKXQJsi//MYxAcGsG7QAZCQANCKYg1xnRKIMzB4oZMlzwWD"
    "/wkpajiV//MYxAMFoEqAAcYYAWmgoBSc0iRljiRIKKBQwKG4gvilTEFN"
)
FILES = {"flac": (base64.b64decode(_FLAC), 400), "mp3": (base64.b64decode(_MP3), 2880)}


def test_a_chat_about_sounds() -> None:
    first, second = sound(0.7), sound(0.3, 1)
    # As it is decoded from 16 bits.
    heard = [decoded_audio(wav(one), RATE) for one in (first, second)]
    content: list[Any] = [{"type": "text", "text": "what is "}, sound_part(wav(first))]
    asked: tuple[Any, ...] = ("<|im_start|>user\nwhat is ", heard[0])
    with Llama(
        seeing("ultravox").path, mmproj_path=projector("ultravox").path, n_ctx=1024, n_threads=1
    ) as llm:
        for _ in range(2):
            parts = prompt_of("ultravox", *asked, "<|im_end|>\n<|im_start|>assistant\n")
            answer = llm.create_chat_completion(
                [{"role": "user", "content": content}], max_tokens=N, temperature=0,
                return_token_ids=True,
            )  # fmt: skip
            assert answer["choices"][0]["token_ids"] == plain_text("ultravox", parts, N)
            content += [sound_part(wav(second)), {"type": "text", "text": "and?"}]
            asked = (*asked, heard[1], "and?")


def test_a_projector_of_pictures_takes_no_sounds() -> None:
    with (
        Llama(seeing("gemma3").path, mmproj_path=projector("gemma3").path, n_ctx=256) as llm,
        pytest.raises(UnsupportedError),
    ):
        llm.create_chat_completion([{"role": "user", "content": [sound_part(wav(sound(0.1)))]}])


def test_files_of_sounds() -> None:
    tone = sound(0.5)
    for n_channels in (1, 2, 6):
        out = decoded_audio(wav(tone, RATE, n_channels), RATE)
        assert np.allclose(out, tone, atol=1e-4)
    for rate in (8000, 44100, 48000):  # the same seconds, and the same loudness
        out = decoded_audio(wav(sound(0.5, rate=rate), rate), RATE)
        assert abs(len(out) - RATE // 2) < 40
        assert np.std(out) == pytest.approx(np.std(tone), rel=0.2)
    for content, n in FILES.values():
        out = decoded_audio(content, RATE)
        assert len(out) == n and 0.3 < np.abs(out).max() < 0.5


def test_damaged_and_lying_sounds_are_refused() -> None:
    draw = random.Random(0)
    for whole in (wav(sound(0.05)), *(content for content, _ in FILES.values())):
        for _ in range(300):
            with contextlib.suppress(ArgumentError):
                out = decoded_audio(bytes(mutate(bytearray(whole), draw)), RATE)
                assert out.ndim == 1 and np.isfinite(out).all()
    # Longer than is read, and as long with so many channels that it costs as much.
    long = wav(np.zeros(MAX_SECONDS * 100 + 200, np.float32), 100)
    wide = wav(np.zeros(2 * 48000, np.float32), 192_000, 8)
    for content in (long, b"", b"RIFF", b"OggS", b"ID3", wav(np.zeros(1, np.float32))):
        with pytest.raises(ArgumentError):
            decoded_audio(content, RATE)
    assert len(decoded_audio(wide, RATE)) == RATE // 2


def test_rows_that_are_no_numbers_reach_no_model() -> None:
    """The next text would meet them in the model's memory."""
    loud = np.tile(np.array([3e38, -3e38], np.float32), 800)
    header = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 3, 1, RATE, RATE * 4, 4, 32)
    data = header + b"data" + struct.pack("<I", loud.nbytes) + loud.tobytes()
    with pytest.raises(ArgumentError):
        decoded_audio(b"RIFF" + struct.pack("<I", len(data)) + data, RATE)
    with pytest.raises(EngineError):
        projector("ultravox").audio(loud)


@pytest.mark.parametrize(
    "sent", [None, {}, {"data": 1}, {"data": "no base64"}, {"data": "data:audio/wav,plain"}]
)
def test_other_parts_are_refused(sent: Any) -> None:
    messages: Any = [
        {"role": "user", "content": [{"type": "input_audio", "input_audio": sent}]}
    ]  # fmt: skip
    with (
        Llama(seeing("ultravox").path, mmproj_path=projector("ultravox").path, n_ctx=256) as llm,
        pytest.raises(ArgumentError),
    ):
        llm.create_chat_completion(messages)
