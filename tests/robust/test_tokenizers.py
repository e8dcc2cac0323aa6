"""Texts and vocabularies that overflow a stack, or run a tokenizer for ever."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from pyllama_spec.engine import Model
from pyllama_spec.errors import ArgumentError, ModelLoadError
from tests.fuzz import runner
from tests.fuzz.architectures import tokenizer
from tests.fuzz.gguf_bytes import GgufFile, Value

_SOURCE = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "src" / "llama-vocab.cpp"
# Every name that the engine knows for a way to cut a text into words.
PRE_TOKENIZERS = sorted(set(re.findall(r'tokenizer_pre == "([^"]+)"', _SOURCE.read_text())))
# Each fills a stack of eight megabytes under some of them.
STRETCHES = ("a" * 40_000, "1" * 40_000, " " * 40_000, "!" * 40_000, "中" * 20_000, "aA" * 20_000)
_N_PRE = 90


def _vocabulary(path: Path, kind: str = "gpt2", **keys: Value) -> Path:
    heads = {"llama.attention.head_count": Value("u32", 1)}
    file = GgufFile({"general.architecture": Value("str", "llama"), **heads, **tokenizer(kind)})
    for name, value in keys.items():
        file.keys[f"tokenizer.ggml.{name}"] = value
    return file.write(path)


def _tokenize(path: Path, *texts: str) -> None:
    vocab = Model(path, vocab_only=True).vocab
    for text in texts:
        vocab.detokenize(vocab.tokenize(text))


def test_all_pre_tokenizers_are_known() -> None:
    assert len(PRE_TOKENIZERS) > _N_PRE


# superbpe looks at all digits behind each third one: minutes for such a stretch, see below.
@pytest.mark.parametrize("pre", [pre for pre in PRE_TOKENIZERS if pre != "superbpe"])
def test_a_stretch_of_one_kind_ends_no_process(pre: str, tmp_path: Path) -> None:
    path = _vocabulary(tmp_path / "v.gguf", pre=Value("str", pre))
    ending = runner.run(partial(_tokenize, path, *STRETCHES))
    # "whitespace" asserts that no token has a space.
    assert ending.kind in ("fine", "EngineError"), ending
    assert ending.kind == "fine" or pre == "whitespace", ending


def test_an_expression_that_looks_ahead_to_the_end_of_a_stretch_is_bounded(tmp_path: Path) -> None:
    path = _vocabulary(tmp_path / "v.gguf", pre=Value("str", "superbpe"))
    others = [text for text in STRETCHES if text[0] != "1"]
    assert runner.run(partial(_tokenize, path, *others)).kind == "fine"
    ending = runner.run(partial(_tokenize, path, "1" * 40_000), cpu_limit_s=60)
    assert ending.kind == "EngineError", ending
    assert "takes far longer" in str(ending), ending


def test_a_stretch_has_its_bound(tmp_path: Path) -> None:
    vocab = Model(
        _vocabulary(tmp_path / "v.gguf", pre=Value("str", "tekken")), vocab_only=True
    ).vocab
    with pytest.raises(ArgumentError):
        vocab.tokenize("a" * 3_000_000)
    text = "a b " * 50_000
    assert vocab.detokenize(vocab.tokenize(text)) == text.encode()


def _rwkv(path: Path, texts: list[str], **keys: Value) -> Path:
    n = len(texts)
    return _vocabulary(
        path, "rwkv", tokens=Value("[str]", texts), token_type=Value("[i32]", [1] * n),
        scores=Value("[f32]", [0.0] * n), **keys,
    )  # fmt: skip


def test_rwkv_without_a_token_for_a_byte(tmp_path: Path) -> None:
    """A byte that begins tokens and is no token does not stop the tokenizer for ever."""
    path = _rwkv(tmp_path / "v.gguf", ["<s>", "abc", "b"] + [f"x{i}" for i in range(300)])
    ending = runner.run(partial(_tokenize, path, "aab"), cpu_limit_s=10)
    assert ending.kind in ("fine", "EngineError"), ending


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5", "rwkv", "plamo2", "x", ""])
def test_kinds_over_tokens_that_are_not_theirs(kind: str, tmp_path: Path) -> None:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *"abcdefgh▁"]
    types = [2, 3, 3, *([6] * 256), *([1] * 9)]
    path = _vocabulary(
        tmp_path / "v.gguf", kind, tokens=Value("[str]", texts), token_type=Value("[i32]", types),
        scores=Value("[f32]", [float("nan")] * len(texts)),
    )  # fmt: skip
    ending = runner.run(
        partial(_tokenize, path, "abc abc", "\x00é\ud800😀" * 50, *STRETCHES), cpu_limit_s=10
    )
    assert ending.is_allowed, ending


def test_a_token_of_a_megabyte(tmp_path: Path) -> None:
    for kind in ("rwkv", "t5", "plamo2"):
        path = _vocabulary(tmp_path / "w.gguf", kind, tokens=Value("[str]", ["a" * 1_000_000]))
        with pytest.raises(ModelLoadError, match="1000000 bytes"):
            Model(path, vocab_only=True)


def test_a_replacement_that_grows_without_end(tmp_path: Path) -> None:
    charsmap = [4, 0, 0, 0, *[0] * 4, *[65] * 100_000, 0]
    path = _vocabulary(tmp_path / "v.gguf", "t5", precompiled_charsmap=Value("[u8]", charsmap))
    with pytest.raises(ModelLoadError, match="precompiled_charsmap"):
        Model(path, vocab_only=True)
