"""Resources of a load: the model's expected memory, and a thread that does not delay exit."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, MutableSet
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyllama_spec.drafters import needs_file
from pyllama_spec.engine import ContextParams
from pyllama_spec.engine.identity import parts_of
from pyllama_spec.errors import PyllamaSpecError
from pyllama_spec.gguf.reader import GgufKey, read_keys
from pyllama_spec.llama.loading import check_parallel
from pyllama_spec.llama.open_options import OpenOptions

_T = TypeVar("_T")
# Bytes of a number in the KV cache, by its type's name.
_TYPE_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip
# The engine rounds the cells of a sequence up to so many.
_CELLS = 256
_ENDS = (
    ".block_count", ".embedding_length", ".context_length", ".attention.head_count",
    ".attention.head_count_kv", ".attention.key_length", ".attention.value_length",
)  # fmt: skip


class Expected(NamedTuple):
    """The bytes that a model will take.

    Attributes:
        least: the bytes of its files and of its copies of prompts.
        likely: the same with its KV cache, as if each layer kept all positions.

    """

    least: int
    likely: int


def options_of(keywords: Mapping[str, Any]) -> OpenOptions:
    """The options of a Llama() call with these keywords, defaults included."""
    more = dict(keywords)
    return OpenOptions.from_keywords(more.pop("model_path"), more)[0]


def expected_bytes(keywords: Mapping[str, Any]) -> Expected:
    """The memory that a Llama of these keywords will take, from its files alone.

    Unreadable files count nothing: loading them reports the error.
    """
    options = options_of(keywords)
    path, draft = Path(options.model_path), options.draft
    least = _file_bytes(path)
    if isinstance(draft, (str, os.PathLike)) and needs_file(os.fspath(draft)):
        least += _file_bytes(Path(draft))
    past = 0
    with suppress(PyllamaSpecError):
        params = options.context_params()
        check_parallel(options.n_parallel, params)
        least += options.store_bytes()
        keys = read_keys(path, lambda name: name.endswith(_ENDS))
        past = _past_bytes(keys, params, options.n_parallel)
    return Expected(least, least + past)


def _file_bytes(path: Path) -> int:
    with suppress(OSError, ValueError):
        return sum(part.stat().st_size for part in parts_of(path))
    return 0


def _past_bytes(keys: Mapping[str, GgufKey], params: ContextParams, n_parallel: int) -> int:
    """Bytes of the KV cache, from a file's keys."""

    def value(end: str) -> Any:
        return next((key.value for name, key in keys.items() if name.endswith(end)), None)

    def number(end: str) -> int:
        length = value(end)
        return length if isinstance(length, int) else 0

    n_layer, n_embd = number(".block_count"), number(".embedding_length")
    heads = value(".attention.head_count_kv") or value(".attention.head_count") or 0
    n_heads = sum(heads) if isinstance(heads, list) else heads * n_layer
    each = value(".attention.head_count")
    of_head = n_embd // each if isinstance(each, int) and each > 0 else 0
    width = sum(
        (number(end) or of_head) * _TYPE_BYTES.get(kind, 2.0)
        for end, kind in (
            (".attention.key_length", params.type_k),
            (".attention.value_length", params.type_v),
        )
    )
    n_ctx = params.n_ctx or number(".context_length")
    n_cells = -(-n_ctx // _CELLS) * _CELLS
    return int(n_heads * width * n_cells * n_parallel)


async def in_daemon(
    call: Callable[[], _T], drop: Callable[[_T], None], threads: MutableSet[threading.Thread]
) -> _T:
    """Runs a long call in a daemon thread, for which the process does not wait.

    Args:
        call: the call.
        drop: called with the result if nobody waits for it any more.
        threads: holds the thread while it runs.

    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[_T] = loop.create_future()

    def give(result: _T) -> None:
        if made.cancelled():
            drop(result)
        else:
            made.set_result(result)

    def fail(error: BaseException) -> None:
        if not made.cancelled():
            made.set_exception(error)

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(fail, error)
        else:
            try:
                loop.call_soon_threadsafe(give, result)
            except RuntimeError:
                drop(result)
        finally:
            threads.discard(thread)

    thread = threading.Thread(target=run, name="pyllama_spec-load", daemon=True)
    threads.add(thread)
    thread.start()
    return await made
