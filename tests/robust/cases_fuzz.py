"""Model files with one byte changed, at places drawn with a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from pyllama_spec import Llama
from pyllama_spec.errors import PyllamaSpecError

from .harness import Case, CaseList
from .tools import generate_greedily, tiny, written

CASES = CaseList()

# Where models have the most to get wrong: plain, sliding windows, hybrid state, a draft.
ARCHS = ("llama", "gemma3", "qwen35", "eagle3")
_N_KEYS, _N_TOKENS, _N_DATA = 80, 15, 15
N_FLIPS = _N_KEYS + _N_TOKENS + _N_DATA
# Values that turn numbers into zeros, negatives and giants.
_VALUES = (0x00, 0x01, 0x7F, 0x80, 0xFF)


# A head with most of what a head can have.
_HEAD: dict[str, Any] = {
    "target_layers": (0, 1, 2), "n_draft_vocab": 100, "fc_norm": True, "norm_output": True,
    "qk_norm": True,
}  # fmt: skip


def _model(arch: str) -> Path:
    return tiny(arch, **_HEAD) if arch == "eagle3" else tiny(arch)


def _draft_with(head: Path) -> None:
    with Llama(tiny("llama"), draft=head, n_ctx=64, n_threads=1) as llm:
        llm.create_completion([1, 2, 3, 4], max_tokens=12, temperature=0)


def _flip(arch: str, place: int, value: int) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        data = bytearray(_model(arch).read_bytes())
        data[place] = value
        use = _draft_with if arch == "eagle3" else generate_greedily
        try:
            use(written(folder, data))
        except PyllamaSpecError as error:
            if not str(error):
                raise AssertionError("an error without a reason") from error

    return run


def _places(arch: str, draw: random.Random) -> list[int]:
    """Bytes of header, keys and tensor infos; some of the tokens' texts; some of the weights."""
    data = _model(arch).read_bytes()
    reader = GGUFReader(_model(arch))
    first, last = data.index(b"tokenizer.ggml.tokens"), data.index(b"tokenizer.ggml.bos_token_id")
    # The lists of tokens, types and merges are most of the metadata, and all alike.
    keys = [*range(first + 60), *range(last, reader.data_offset)]
    return [
        *draw.sample(keys, _N_KEYS),
        *draw.sample(range(first + 60, last), _N_TOKENS),
        *draw.sample(range(reader.data_offset, len(data)), _N_DATA),
    ]


def _add_flips(arch: str) -> None:
    draw = random.Random(f"flips of {arch}")
    data = _model(arch).read_bytes()
    for place in _places(arch, draw):
        bit = data[place] ^ (1 << draw.randrange(8))
        value = draw.choice([bit, bit, bit, *_VALUES])
        if value == data[place]:
            value = bit
        CASES.append(Case(f"{arch}_{place}_to_{value}", _flip(arch, place, value), None))


for _arch in ARCHS:
    _add_flips(_arch)
