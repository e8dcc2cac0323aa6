"""Programs that test_memory.py runs in processes of their own; each prints its figures as JSON.

Figures are resident set sizes from /proc/self/statm. Before each one the C heap returns its free
pages to the system: glibc would keep some, depending on the order of frees, so that free memory
looks used.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import resource
import sys
from pathlib import Path

from pyllama_spec import Llama
from pyllama_spec.errors import PyllamaSpecError

from .tools import tiny

_PAGE = resource.getpagesize()
_LIBC = ctypes.CDLL(None)


def rss() -> int:
    """Resident bytes of this process, without what is free in its heaps."""
    gc.collect()
    _LIBC.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def open_generate_close(path: str, n_times: int) -> list[int]:
    """Opens a model, generates 8 tokens and closes it, again and again."""
    figures: list[int] = []
    for _ in range(n_times):
        model = Llama(path, n_ctx=256, n_threads=1, draft="prompt-lookup")
        model.create_completion("abababab", max_tokens=8)
        model.close()
        del model
        figures.append(rss())
    return figures


def _bad_request(model: Llama) -> None:
    try:
        model.create_completion("a", grammar="root ::= (")
    except PyllamaSpecError:
        return
    raise AssertionError("it was taken")


def requests_on_llama(n_times: int) -> list[int]:
    """Requests of mixed length, streams that are dropped or closed, and requests that fail."""
    draw = random.Random(1)
    # What is kept of past prompts has its bound within the first requests.
    model = Llama(tiny(), n_ctx=512, n_threads=1, draft="prompt-lookup", prefix_cache_bytes=1 << 20)
    figures: list[int] = []
    for i in range(n_times):
        text = "the cat and the hat " * draw.randrange(1, 20)
        n = draw.randrange(1, 60)
        if i % 4 == 0:
            stream = iter(model.create_completion(text, max_tokens=n, stream=True))
            next(stream)
            if i % 8 == 0:
                stream.close()  # the other half is dropped as it is
            del stream
        elif i % 4 == 1:
            _bad_request(model)
        else:
            model.create_completion(text, max_tokens=n, temperature=0.8, repeat_penalty=1.1)
        figures.append(rss())
    model.close()
    return figures


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
