"""The vocabulary of a model: text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from pyllama_spec.engine.binding import Handle, check, ffi, lib
from pyllama_spec.engine.checks import instance, int32
from pyllama_spec.errors import ArgumentError

_INT32_MIN = -(2**31)
_MAX_TEXT_BYTES = 2**31 - 1
# All statuses of the C ABI are above.
_LEAST_STATUS = -100
# Ids that become Python's integers in one go.
_TOGETHER = 1 << 16
# What the engine strips next to control tokens of some vocabularies: C's isspace().
_SPACES = b" \t\n\v\f\r"
# Characters that have each byte of UTF-8 in them, but for white space.
_EACH_BYTE = tuple(
    map(
        chr,
        (
            *(i for i in range(0xC0) if i not in _SPACES),
            *(i << 6 for i in range(3, 0x20)), 0x800, *(i << 12 for i in range(1, 16) if i != 13),
            0xD000, 0x10000, *(i << 18 for i in range(1, 5)),
        ),
    )
)  # fmt: skip
_SPECIAL = (
    "bos", "eos", "eot", "sep", "nl", "pad", "mask", "fim_pre", "fim_suf", "fim_mid",
)  # fmt: skip


class Vocab:
    """Tokenizes, detokenizes, and knows the special tokens. Thread-safe: it only reads."""

    def __init__(self, handle: Handle, n_tokens: int, *, keeps_all: bool = False) -> None:
        self._handle = handle
        self.n_tokens, self._keeps_all = n_tokens, keeps_all
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}
        self._eog: dict[int, bool] = {}
        self.adds_bos: bool = lib.llama_spec_vocab_adds_bos(handle.pointer)
        self.adds_eos: bool = lib.llama_spec_vocab_adds_eos(handle.pointer)
        self.adds_sep: bool = lib.llama_spec_vocab_adds_sep(handle.pointer)
        self.bos, self.eos, self.eot = (self.special(name) for name in ("bos", "eos", "eot"))

    def special(self, name: str) -> int | None:
        """The id of "bos", "eos", "eot", "sep", "nl", "pad", "mask" or "fim_*"; None if absent."""
        if not isinstance(name, str) or name not in _SPECIAL:
            raise ArgumentError("name", name, f"one of {', '.join(_SPECIAL)}")
        token: int = lib.llama_spec_vocab_special(self._handle.pointer, name.encode())
        return token if token >= 0 else None

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: UTF-8. Lone surrogates of a str are replaced, since no vocabulary has them.
            add_special: adds the model's special tokens, such as BOS.
            parse_special: reads the names of control tokens as those tokens. Off for users' text,
                who could otherwise write control tokens into a chat.

        Raises:
            ArgumentError: the text has more than 2**31 - 1 bytes, or a run that is too long for the
                pre-tokenizer.
            EngineError: the vocabulary has no token for a part of the text.
        """
        instance(text, (str, bytes, bytearray), "text")  # bytes(5) would be five of zero
        data = text.encode("utf-8", errors="replace") if isinstance(text, str) else bytes(text)
        if len(data) > _MAX_TEXT_BYTES:
            raise ArgumentError(
                "text", problem=f"has {len(data)} bytes", expected=f"at most {_MAX_TEXT_BYTES}"
            )
        capacity = len(data) + 8
        for _ in range(2):
            out = ffi.new("int32_t[]", capacity)
            n: int = lib.llama_spec_tokenize(
                self._handle.pointer, data, len(data), out, capacity, add_special, parse_special
            )
            # A failure is INT32_MIN less the status. A success is checked too: Ctrl-C may have come
            # though the text was read to its end.
            code = _INT32_MIN - n
            check(code if code >= _LEAST_STATUS else 0, "cannot tokenize the text")
            if n >= 0:
                return _unpacked(out, n)
            capacity = -n
        raise ArgumentError(problem="the text could not be tokenized")

    def fewest_tokens(self, text: str | bytes) -> int:
        """A lower bound of a text's token count, from its bytes; takes milliseconds.

        White space does not count, since tokens of some vocabularies absorb it, and neither do
        bytes that no token covers. 0 if a vocabulary makes one token of any number of bytes.

        Args:
            text: see tokenize(); the first one computes the longest token's length.
        """
        data = text.encode("utf-8", errors="replace") if isinstance(text, str) else bytes(text)
        longest, uncounted = self._bound
        return -(-len(data.translate(None, uncounted)) // longest) if longest else 0

    @cached_property
    def _bound(self) -> tuple[int, bytes]:
        """The length in bytes of the longest token, 0 for no bound; and the bytes not counted."""
        if not self._keeps_all:
            return 0, b""
        dropped = "".join(char for char in _EACH_BYTE if not self._keeps(char)).encode()
        longest = max(len(self._read_piece(i, special=True)) for i in range(self.n_tokens))
        return longest, _SPACES + dropped

    def _keeps(self, char: str) -> bool:
        """Whether tokens cover all bytes of a character; others are dropped."""
        return self.detokenize(self.tokenize(char, add_special=False)).endswith(char.encode())

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token, often not whole characters.

        Args:
            token: an id of the vocabulary.
            special: returns the names of control tokens; without it they are empty.

        Raises:
            ArgumentError: the id is outside the vocabulary.
        """
        known = self._special_pieces if special else self._pieces
        cached = known.get(token)
        if cached is None:
            cached = self._read_piece(token, special)
            known[token] = cached
        return cached

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise ArgumentError("token", token, f"an id from 0 to {self.n_tokens - 1}")
        n = -64
        while _INT32_MIN < n < 0:
            size = -n
            buf: Any = ffi.new("char[]", size)
            n = lib.llama_spec_token_to_piece(self._handle.pointer, token, buf, size, special)
        return bytes(ffi.buffer(buf, n))

    def detokenize(self, tokens: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of a run of tokens."""
        return b"".join(self.piece(token, special=special) for token in tokens)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation, such as EOS or EOT."""
        known = self._eog.get(token)
        if known is None:
            is_id = 0 <= token < self.n_tokens
            known = is_id and bool(lib.llama_spec_vocab_is_eog(self._handle.pointer, token))
            self._eog[token] = known
        return known

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token, with no text of its own."""
        is_id = 0 <= token < self.n_tokens
        return is_id and bool(lib.llama_spec_vocab_is_control(self._handle.pointer, token))

    def check_ids(self, tokens: Sequence[int], param: str = "tokens") -> None:
        """Raises ArgumentError unless every id is in the vocabulary."""
        n = self.n_tokens
        for i, token in enumerate(tokens):
            if type(token) is not int:
                token = int32(token, f"{param}[{i}]")
            if not 0 <= token < n:
                raise ArgumentError(f"{param}[{i}]", token, f"an id from 0 to {n - 1}")


def _unpacked(ids: Any, n: int) -> list[int]:
    """The first n ids, unpacked in parts so that other threads run in between."""
    tokens: list[int] = []
    for at in range(0, n, _TOGETHER):
        tokens += ffi.unpack(ids + at, min(_TOGETHER, n - at))
    return tokens
