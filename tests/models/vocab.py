"""The tokenizer that all tiny models share: byte-level BPE over 256 single-byte tokens.

Token ids: `0..255` are the bytes (id == byte value), then the four specials, then the merged
tokens, then ordinary padding words up to `n_vocab`. The first 272 ids are the same for every
`n_vocab`, so that tests may name tokens by number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray

SPECIAL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
BOS, IM_START, IM_END, ENDOFTEXT = range(256, 260)
EOS = IM_END
SPECIAL_IDS = (BOS, IM_START, IM_END, ENDOFTEXT)

# Each pair is built from tokens that exist already: single bytes or earlier merges.
_MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("\u0120", "t"),  # U+0120 stands for the space byte in byte-level BPE
    ("\u0120", "a"),
    ("o", "n"),
    ("r", "e"),
    ("\u0120t", "he"),
    ("h", "e"),
    ("in", "g"),
)
MIN_VOCAB = 256 + len(SPECIAL_TOKENS) + len(_MERGES)


def byte_symbols() -> list[str]:
    """The printable character that stands for each of the 256 bytes in byte-level BPE.

    Printable Latin-1 bytes stand for themselves; the others take characters from U+0100 on, in
    byte order, so that no vocabulary entry holds whitespace or a control character.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    symbols: list[str] = []
    shifted = 0x100
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(shifted))
            shifted += 1
    return symbols


def tokens(n_vocab: int) -> tuple[list[str], list[int]]:
    """Token texts and token types (`gguf.TokenType` values), both of length `n_vocab`."""
    texts = [*byte_symbols(), *SPECIAL_TOKENS, *(left + right for left, right in _MERGES)]
    # Digits are split one by one by the pre-tokenizer, so no text ever encodes to these words.
    texts += [f"\u0120w{index}" for index in range(n_vocab - len(texts))]
    types = [int(TokenType.NORMAL)] * n_vocab
    for token in SPECIAL_IDS:
        types[token] = int(TokenType.CONTROL)
    return texts, types


def merges() -> list[str]:
    """The BPE merges in rank order, as `left right`."""
    return [f"{left} {right}" for left, right in _MERGES]


def shuffled(n_vocab: int, seed: int) -> NDArray[np.int64]:
    """The id of each token in another vocabulary of the same texts, int64 `[n_vocab]`.

    Special tokens keep their ids. With seed 0 all tokens do.
    """
    ids = np.arange(n_vocab)
    if seed:
        ordinary = np.setdiff1d(ids, SPECIAL_IDS)
        ids[ordinary] = np.random.default_rng(seed).permutation(ordinary)
    return ids


def write_tokenizer(
    writer: GGUFWriter,
    n_vocab: int,
    chat_template: str | None,
    control_names: Sequence[str] = (),
    *,
    shuffle: int = 0,
) -> None:
    """Add the tokenizer's keys to `writer`.

    Names of control tokens replace padding words; `shuffle` is the seed of shuffled().
    """
    texts, types = tokens(n_vocab)
    for token, name in enumerate(control_names, MIN_VOCAB):
        texts[token], types[token] = name, int(TokenType.CONTROL)
    order = np.argsort(shuffled(n_vocab, shuffle))
    texts, types = [texts[i] for i in order], [types[i] for i in order]
    writer.add_tokenizer_model("gpt2")
    # With the gpt-2 pre-tokenizer, decoding drops spaces before punctuation; not with qwen2's.
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges())
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(ENDOFTEXT)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def decode(token_ids: Sequence[int]) -> bytes:
    """Bytes of `token_ids` as the engine's detokenizer gives them without special tokens."""
    value_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    texts, _ = tokens(max([MIN_VOCAB, *(token + 1 for token in token_ids)]))
    special = set(SPECIAL_IDS)
    return bytes(value_of[c] for t in token_ids if t not in special for c in texts[t])
