"""Pictures of strangers: 2,000 damaged, lying and greedy files are decoded, or refused by type."""

from __future__ import annotations

import io
import random
import resource
import struct
import time
import zlib
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pyllama_spec.chat.pictures import decode_picture
from pyllama_spec.engine.media import MAX_PIXELS
from pyllama_spec.errors import ArgumentError
from tests.fuzz import runner
from tests.fuzz.mutated import mutate
from tests.media_tools import picture
from tests.tiers import release_except

KINDS: dict[str, dict[str, Any]] = {
    "PNG": {}, "JPEG": {}, "JPEG progressive": {"progressive": True}, "GIF": {}, "BMP": {},
    "WEBP": {}, "WEBP lossless": {"lossless": True},
    **{f"{kind} frames": {"save_all": True} for kind in ("GIF", "PNG", "WEBP")},
}  # fmt: skip
SIDES = (0, 1, 4096, 8192, 16383, 16384, 65535)
# The largest picture as RGBA, what Pillow keeps beside it, and the array.
MAX_GROWTH_BYTES = 1000 << 20
MAX_S = 10.0


def file_of(kind: str, mode: str = "RGB", side: int = 48) -> bytes:
    """A picture's file."""
    frames = [Image.fromarray(picture(side, side, i)).convert(mode) for i in range(3)]
    more = {"append_images": frames[1:]} if "frames" in kind else {}
    out = io.BytesIO()
    frames[0].save(out, kind.split()[0], **KINDS[kind], **more)
    return out.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def sealed(png: bytes) -> bytes:
    """A PNG whose chunks have the right sums: what they hold is read."""
    out, at = [png[:8]], 8
    while at + 8 <= len(png):
        end = at + 8 + int.from_bytes(png[at : at + 4], "big")
        out.append(chunk(png[at + 4 : at + 8], png[at + 8 : end]))
        at = end + 4
    return b"".join(out)


def lies() -> Iterator[bytes]:
    """Files that claim sides which their data do not have, or unpack to much."""
    png, jpeg, gif, bmp = (file_of(kind) for kind in ("PNG", "JPEG", "GIF", "BMP"))
    lossy, lossless, moving = (file_of(f"WEBP{k}") for k in ("", " lossless", " frames"))
    frame = jpeg.index(b"\xff\xc0") + 5
    place = gif.index(b",") + 5
    for width, height in product(SIDES, SIDES):
        head = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
        yield png[:8] + chunk(b"IHDR", head) + png[33:]
        yield jpeg[:frame] + struct.pack(">HH", height, width) + jpeg[frame + 4 :]
        sides = struct.pack("<HH", width, height)
        yield gif[:6] + sides + gif[10:]
        yield gif[:6] + sides + gif[10:place] + sides + gif[place + 4 :]
        for sign in (1, -1):
            yield bmp[:18] + struct.pack("<ii", width, sign * height) + bmp[26:]
        yield lossy[:26] + struct.pack("<HH", width & 0x3FFF, height & 0x3FFF) + lossy[30:]
        bits = max(width - 1, 0) & 0x3FFF | (max(height - 1, 0) & 0x3FFF) << 14
        yield lossless[:21] + struct.pack("<I", bits) + lossless[25:]
        canvas = [max(side - 1, 0).to_bytes(3, "little") for side in (width, height)]
        yield moving[:24] + b"".join(canvas) + moving[30:]
    for width, height in ((2**31 - 1, 1), (2**31 - 1, 2**31 - 1), (65536, 65536), (1 << 25, 2)):
        head = struct.pack(">II5B", width, height, 8, 6, 0, 0, 0)
        yield png[:8] + chunk(b"IHDR", head) + png[33:]
        yield bmp[:18] + struct.pack("<ii", width, -height) + bmp[26:]
    zeros = zlib.compress(bytes(1 << 26), 9)
    for name in (b"iCCP", b"zTXt"):
        yield png[:33] + chunk(name, b"a\0\0" + zeros) + png[33:]
    yield png[:33] + chunk(b"iTXt", b"a\0\1\0\0\0" + zeros) + png[33:]
    yield png[:33] + b"".join(chunk(b"tEXt", b"a\0" + b"b" * 60_000) for _ in range(300)) + png[33:]
    yield png[:41] + struct.pack(">I", 2**31) + png[45:]
    yield jpeg[:2] + b"\xff\xe1\xff\xffExif\0\0MM\0*\0\0\0\x08" + b"\xff\xff" * 32_760 + jpeg[2:]
    yield jpeg[:2] + b"\xff\xe2\xff\xffICC_PROFILE\0\1\xff" + b"\xff" * 65_518 + jpeg[2:]
    largest = np.zeros((1 << 13, 1 << 13, 4), np.uint8)
    for kind, mode in (("PNG", "RGBA"), ("GIF", "P"), ("JPEG", "CMYK"), ("PNG", "I;16")):
        out = io.BytesIO()
        pixels = largest[..., 0].astype(np.uint16) if mode == "I;16" else largest
        image = Image.fromarray(pixels)
        (image if mode == "I;16" else image.convert(mode)).save(out, kind)
        yield out.getvalue()
    other = ("PPM", "TIFF", "ICO", "TGA", "PCX", "EPS", "PDF", "SGI", "DDS", "JPEG2000", "AVIF")
    for kind in other:
        out = io.BytesIO()
        try:
            Image.fromarray(picture(32, 32)).save(out, kind)
        except (OSError, KeyError):
            continue
        yield out.getvalue()
    yield b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1:9/a"/></svg>'
    yield b"\x00\x00\x02" + bytes(9) + b"\xff\xff\xff\xff\x20\x00"  # a TGA of 18 bytes


def damaged(n: int, seed: int) -> Iterator[bytes]:
    """Files of each kind and mode with changed bytes."""
    draw = random.Random(f"pictures {seed}")
    wholes = [file_of(kind) for kind in KINDS]
    wholes += [file_of("PNG", mode) for mode in ("P", "L", "LA", "RGBA", "1", "I;16")]
    wholes += [file_of("JPEG", mode) for mode in ("L", "CMYK")]
    for i in range(n):
        file = bytes(mutate(bytearray(wholes[i % len(wholes)]), draw))
        yield sealed(file) if draw.random() < 0.5 and file.startswith(b"\x89PNG") else file


def decode_all(files: list[bytes]) -> None:
    """Decodes files; none may take long, much memory, or end in another error."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i, file in enumerate(files):
        begin = time.monotonic()
        try:
            pixels = decode_picture(file)
        except ArgumentError as error:
            assert error.param == "image"
        else:
            assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
            assert 0 < pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS
            del pixels
        assert time.monotonic() - begin < MAX_S, i
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert growth < MAX_GROWTH_BYTES, growth


@cache
def lying() -> list[bytes]:
    return list(lies())


@pytest.mark.parametrize("part", release_except(range(8), [0]))
def test_lies(part: int) -> None:
    end = runner.run(partial(decode_all, lying()[part::8]), 120)
    assert end.kind == "fine", end


@pytest.mark.parametrize("seed", release_except(range(8), [0]))
def test_damaged_files(seed: int) -> None:
    end = runner.run(partial(decode_all, list(damaged(2000, seed))), 120)
    assert end.kind == "fine", end
