"""Pictures and sounds in messages: image_url and input_audio parts, decoded within bounds."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyllama_spec.chat.media_urls import MAX_BYTES, MediaReader
from pyllama_spec.chat.template import RenderedChat
from pyllama_spec.engine.media import MAX_PIXELS, Prepared, Projector, decoded_audio
from pyllama_spec.errors import ArgumentError, EngineError, UnsupportedError

Pixels = npt.NDArray[np.uint8]


class Picture(NamedTuple):
    """The file of a picture or a sound, and the parameter that it was given as."""

    content: bytes
    param: str
    is_sound: bool = False


# Decoders reserve memory by the length of a side, and go through all pixels for each scan.
_MAX_SIDE, _MAX_SCANS = 1 << 16, 100
_N_ROWS = 256  # that are copied at once
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


def replaced_media(messages: object, made: Callable[[Mapping[str, Any], str], object]) -> Any:
    """The messages with what made(part, param) gives in the place of pictures and sounds."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        return messages
    out: list[Any] = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Sequence) and not isinstance(content, (str, bytes)):
            content = list(content)
            for k, part in enumerate(content):
                kind = part.get("type") if isinstance(part, Mapping) else None
                if isinstance(kind, str) and kind in _URL_OF:
                    content[k] = made(part, f"messages[{i}].content[{k}].{kind}")
            message = {**message, "content": content}
        out.append(message)
    return out


def take_pictures(messages: object, reader: MediaReader) -> tuple[Any, dict[str, Picture]]:
    """The messages with a mark in the place of each picture, and the pictures by mark.

    Marks are random: no text of a caller has one.
    """
    import secrets

    pictures: dict[str, Picture] = {}

    def marked(part: Mapping[str, Any], param: str) -> dict[str, str]:
        mark, kind = f"media{secrets.token_hex(12)}", part["type"]
        content = reader.read(_URL_OF[kind](part, param), param)
        pictures[mark] = Picture(content, param, kind == "input_audio")
        return {"type": "text", "text": mark}

    out = replaced_media(messages, marked)
    return (out, pictures) if pictures else (messages, {})


def has_media(messages: object) -> bool:
    """Whether a chat has pictures or sounds."""
    found: list[object] = []
    replaced_media(messages, lambda part, _: found.append(part))
    return bool(found)


def _url_of(part: Mapping[str, Any], param: str) -> str:
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if not isinstance(url, str):
        raise ArgumentError(param, url, 'a text, or {"url": ...}')
    return url


def _url_of_sound(part: Mapping[str, Any], param: str) -> str:
    sound = part.get("input_audio")
    data = sound.get("data") if isinstance(sound, Mapping) else None
    if not isinstance(data, str):
        raise ArgumentError(param, sound, '{"data": ..., "format": "wav"}')
    return data if data.startswith("data:") else f"data:;base64,{data}"


_URL_OF = {"image_url": _url_of, "input_audio": _url_of_sound}


def prepared(projector: Projector, picture: Picture) -> Prepared:
    """A picture or a sound, ready for a projector to compute its rows."""
    try:
        if picture.is_sound:
            return projector.prepared_audio(decoded_audio(picture.content, projector.sample_rate))
        return projector.prepared_image(decode_picture(picture.content, picture.param))
    except EngineError as error:  # such as a side that becomes 0 where it is scaled
        raise ArgumentError(picture.param, problem=f"is refused: {error.problem}") from None
    except (ArgumentError, UnsupportedError) as error:
        raise error.copied(param=picture.param) from None


def decode_picture(content: bytes, param: str = "image") -> Pixels:
    """The pixels of a picture's file: [height, width, 3] uint8, as a viewer shows them.

    Of several frames the first. Needs Pillow.

    Raises:
        ArgumentError: it is damaged, of another kind than PNG, JPEG, GIF, WebP and BMP, or larger
            than MAX_BYTES, MAX_PIXELS or 65,536 pixels in a row or column.
        UnsupportedError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise UnsupportedError(
            param=param, problem="needs Pillow", remedy="pip install pyllama_spec[media]"
        ) from None
    if len(content) > MAX_BYTES:
        raise ArgumentError(param, problem="is too large", expected=f"at most {MAX_BYTES} bytes")
    try:
        # It reads the header alone; nothing is reserved by what that says before the check.
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS or max(image.size) > _MAX_SIDE:
                expected = f"at most {MAX_PIXELS} pixels, and {_MAX_SIDE} in a row or column"
                raise ArgumentError(param, f"{image.width}x{image.height}", expected)
            # These bytes begin each scan, and stand nowhere in its data.
            if content.startswith(b"\xff\xd8") and content.count(b"\xff\xda") > _MAX_SCANS:
                raise ArgumentError(param, problem=f"has more than {_MAX_SCANS} scans")
            if image.mode.startswith("I"):  # 16 bits: converting would cut all that is not dark
                high = np.asarray(image).astype(np.uint32) >> 8
                image = Image.fromarray(np.minimum(high, 255).astype(np.uint8))
            ImageOps.exif_transpose(image, in_place=True)
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            pixels = np.empty((rgb.height, rgb.width, 3), np.uint8)
            for y in range(0, rgb.height, _N_ROWS):  # of a whole one Pillow makes two copies
                lower = min(y + _N_ROWS, rgb.height)
                pixels[y:lower] = np.asarray(rgb.crop((0, y, rgb.width, lower)))
            return pixels
    except ArgumentError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever Pillow's decoders raise for a bad file
        # Of a file of another kind Pillow names the object that holds it.
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error!s:.100}"
        raise ArgumentError(
            param,
            problem=f"cannot be read as a picture{why}",
            remedy="send a PNG, JPEG, GIF, WebP or BMP",
        ) from None


def split_at(rendered: RenderedChat, marks: Sequence[str]) -> Iterator[RenderedChat | str]:
    """The chat around the marks, and the marks, in their order; a template may show one twice."""
    text, at = rendered.text, 0
    for found in re.finditer("|".join(marks), text):
        yield _part(rendered, at, found.start())
        yield found[0]
        at = found.end()
    yield _part(rendered, at, len(text))


def _part(rendered: RenderedChat, start: int, end: int) -> RenderedChat:
    cut = rendered.cut(end)
    shifted = replace(
        cut.caller,
        spans=tuple((max(a - start, 0), b - start) for a, b in cut.caller.spans if b > start),
        lookups=tuple((max(a - start, 0), b - start) for a, b in cut.caller.lookups if b > start),
    )  # fmt: skip
    return replace(cut, text=cut.text[start:], caller=shifted)
