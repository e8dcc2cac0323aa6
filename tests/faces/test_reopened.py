"""Llamas that fail inside, for want of memory or of a server: what is left, and reopen()."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pyllama_spec import ClosedError, Llama, RemoteError
from tests.models import model_path
from tests.rpc.tools import PERM_PROMPT, Server

# In a process of its own: one that has run for long finds memory that it freed.
_PROGRAM = """
import json, resource, sys
from pyllama_spec import Llama
from tests.fuzz.runner import mapped_bytes

# A batch of so many tokens needs buffers that three tokens do not.
sizes = {"n_ctx": 8192, "n_batch": 8192, "n_ubatch": 8192, "n_threads": 1, "verbose": False}
llm = Llama(sys.argv[1], embedding=True, pooling_type="mean", draft="prompt-lookup", **sizes)
short, long = [11, 12, 13], [5 + i % 50 for i in range(8000)]
text = lambda ids: llm(ids, max_tokens=8, temperature=0)["choices"][0]["text"]
limits = resource.getrlimit(resource.RLIMIT_AS)

def fails(call, has_failed):
    # Which allocation fails decides whether the context is left as it was.
    for headroom in (8, 1, 4, 2, 16, 24, 32):
        resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + (headroom << 20), limits[1]))
        try:
            call(long)
        except MemoryError:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        if has_failed():
            return True
    return False

said = {"vector": llm.embed(short), "text": text(short)}
said["embed"] = fails(llm.embed, lambda: not llm.is_usable)
llm.reopen()
said["reopened"] = llm.embed(short)
said["decode"] = fails(text, lambda: not llm.is_usable)
llm.reopen()
said["text_again"], said["is_usable_again"] = text(short), llm.is_usable
print(json.dumps(said))
"""


def test_a_decode_without_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(model_path("llama", seed=0))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["embed"], said["decode"]) == (True, True)
    assert said["reopened"] == said["vector"]
    assert (said["text_again"], said["is_usable_again"]) == (said["text"], True)


def opened(layers: Server, **more: Any) -> Llama:
    return Llama(
        str(model_path("perm")), n_gpu_layers=-1, rpc_servers=[layers.address], n_ctx=256,
        n_threads=1, **more,
    )  # fmt: skip


def lose(llm: Llama, layers: Server) -> None:
    layers.kill()
    with pytest.raises(RemoteError):
        llm(PERM_PROMPT, max_tokens=2)


def test_a_failed_reopen_leaves_a_closed_model() -> None:
    with Server() as layers, opened(layers, embedding=True, pooling_type="mean") as llm:
        lose(llm, layers)
        with pytest.raises(RemoteError):
            llm.reopen()
        for call in (lambda: llm("a", max_tokens=2), lambda: llm.embed("a"), llm.reset):
            with pytest.raises(ClosedError):
                call()
