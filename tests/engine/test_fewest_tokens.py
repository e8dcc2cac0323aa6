"""The lower bound of a text's tokens from its bytes never exceeds the tokenizer's count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.errors import PyllamaSpecError
from tests.fuzz.architectures import tokenizer
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.models import SPECIAL_TOKENS
from tests.robust.test_tokenizers import PRE_TOKENIZERS
from tests.tiers import release_except

QUICK_PRE = ("llama-bpe", "gpt-2", "qwen2", "tekken", "deepseek-v3", "smollm")
_PARTS = (
    "a", "the ", "  ", "\n\n\t", "é", "中文", "😀", "1234", "...", "'s", "\x00", "\ud800", "A", "_",
    " \u3000\u00a0", "w17", "\r\n", *SPECIAL_TOKENS,
)  # fmt: skip


def texts(seed: int, n: int = 12) -> list[str]:
    rng = random.Random(seed)
    whole = ["".join(rng.choices(_PARTS, k=rng.randrange(1, 60))) for _ in range(n)]
    return [*whole, "", " ", "\n" * 100, SPECIAL_TOKENS[0] + " " * 100, " " * 100 + "a"]


def vocabulary(path: Path, kind: str, **keys: Value) -> Path:
    file = GgufFile({
        "general.architecture": Value("str", "llama"),
        "llama.attention.head_count": Value("u32", 1), **tokenizer(kind),
    })  # fmt: skip
    file.keys |= {key.replace("__", "."): value for key, value in keys.items()}
    return file.write(path)


def holds(path: Path, seed: int) -> int:
    """Asserts the bound for some texts, in each way to read them; the sum of all bounds."""
    vocab, total = Model(path, vocab_only=True).vocab, 0
    for text in texts(seed):
        for parse_special in (False, True):
            try:
                ids = vocab.tokenize(text, add_special=False, parse_special=parse_special)
            except PyllamaSpecError:
                continue
            assert vocab.fewest_tokens(text) <= len(ids), repr(text)
            total += vocab.fewest_tokens(text.encode(errors="replace"))
    return total


@pytest.mark.parametrize("pre", release_except(PRE_TOKENIZERS, QUICK_PRE))
def test_for_every_way_to_cut_a_text_into_words(pre: str, tmp_path: Path) -> None:
    path = vocabulary(tmp_path / "v.gguf", "gpt2", tokenizer__ggml__pre=Value("str", pre))
    assert holds(path, len(pre)) > 0


@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "rwkv", "plamo2", "gpt2", "whitespace"])
def test_for_every_kind_of_tokenizer(kind: str, tmp_path: Path) -> None:
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *"abcdeh▁",
        "the",
        "▁the",
    ]
    types = [2, 3, 3, *([6] * 256), *([1] * 9)]
    path = vocabulary(
        tmp_path / "v.gguf", kind, tokenizer__ggml__tokens=Value("[str]", words),
        tokenizer__ggml__token_type=Value("[i32]", types),
        tokenizer__ggml__scores=Value("[f32]", [-float(i) for i in range(len(words))]),
    )  # fmt: skip
    try:
        total = holds(path, 7)
    except PyllamaSpecError:  # it is none of that kind
        return
    assert (total > 0) == (kind in ("llama", "gpt2")), "the others make one token of any text"


def test_bytes_without_a_token_do_not_count(tmp_path: Path) -> None:
    words = ["a", "b", "ab", *(f"x{i}" for i in range(300))]
    path = vocabulary(
        tmp_path / "v.gguf", "gpt2", tokenizer__ggml__tokens=Value("[str]", words),
        tokenizer__ggml__token_type=Value("[i32]", [1] * len(words)),
        tokenizer__ggml__scores=Value("[f32]", [0.0] * len(words)),
    )  # fmt: skip
    vocab = Model(path, vocab_only=True).vocab
    assert vocab.tokenize("zzz", add_special=False) == []
    assert vocab.fewest_tokens("zzz" * 1000) == 0
    assert 0 < vocab.fewest_tokens("za" * 1000) <= len(vocab.tokenize("za" * 1000))
