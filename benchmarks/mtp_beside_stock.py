"""Compares drafts of MTP heads here and by the engine's own driver, on the tests' tiny models.

    python -m venv OTHER && OTHER/bin/pip install xllamacpp==2026.10.11549
    python -m benchmarks.mtp_beside_stock --python OTHER/bin/python [--arch qwen35 ...] [-n 140]
        [--cache f32]

xllamacpp is a wheel of the pinned source; its server logs each drafted token. For each architecture
it prints whether the texts are equal, and in how many rounds the drafts are. Decoding is greedy,
with three drafted tokens a round. The weights are random, in F32: nearly no draft is accepted, and
each round begins one token later. Where an architecture may have several heads, its file has three.
F16 caches round their values, and the two sides use different kernels. So drafts differ where two
tokens or two experts are nearly tied. F32 caches show whether that is the only cause.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyllama_spec.drafters import Draft, DraftRequest, Mtp
from pyllama_spec.speculative import SequenceState, SpeculativeLoop
from tests.models import model_path
from tests.models.mtp import SEVERAL
from tests.mtp_tools import ARCHS, mtp_context, with_head
from tests.oracles import generate

N_DRAFT = 3
CACHES = {"f16": 1, "f32": 0}
_DRAFTED = re.compile(r"draft candidate\s+0, pos\s+(\d+):\s+(\d+)")
# Runs in the other environment. Its arguments are the path, the prompt's ids, the number of tokens,
# and the number in ggml.h of the caches' type.
_STOCK = f"""
import json, sys
import xllamacpp as x

p = x.CommonParams()
p.model.path = sys.argv[1]
p.n_ctx, p.n_parallel, p.n_batch, p.n_ubatch, p.warmup = 1024, 1, 64, 32, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.verbosity, p.load_mtp, p.cache_ram_mib = 10, True, 0
p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
draft = p.speculative.draft
draft.n_max, draft.n_min, draft.p_min, draft.backend_sampling = {N_DRAFT}, 0, 0.0, False
for one in (p, draft):
    one.cache_type_k = one.cache_type_v = x.ggml_type(int(sys.argv[4]))
answer = x.Server(p).handle_completions({{
    "prompt": json.loads(sys.argv[2]), "n_predict": int(sys.argv[3]), "temperature": 0, "top_k": 1,
    "ignore_eos": True, "cache_prompt": False, "return_tokens": True,
}})
print(json.dumps(answer))
"""


class Noting(Mtp):
    """An MTP head that stores its drafts."""

    def __init__(self) -> None:
        super().__init__(max_draft=N_DRAFT)
        self.drafts: list[list[int]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """Proposes as Mtp does, and stores the drafts."""
        drafts = super().propose(requests)
        self.drafts += [list(draft.ids) for draft in drafts]
        return drafts


def n_heads(arch: str) -> int:
    """The number of heads in the file."""
    return N_DRAFT if arch in SEVERAL else 1


def ours(
    arch: str, prompt: list[int], n: int, cache: str = "f16"
) -> tuple[list[int], list[list[int]]]:
    """Generates here; returns the text, and the draft of each round."""
    drafter, model = Noting(), with_head(arch, n_heads=n_heads(arch))
    with mtp_context(model, drafter, n_ctx=1024, type_k=cache, type_v=cache) as context:
        run = generate(SpeculativeLoop(context, drafter), SequenceState(), prompt, n)
        drafter.close()
    return run.tokens, drafter.drafts


def stock(
    python: str, arch: str, prompt: list[int], n: int, cache: str = "f16"
) -> tuple[Any, list[list[int]]]:
    """Generates with the engine's own driver; returns the same as ours()."""
    path, number = str(model_path(arch, n_heads=n_heads(arch))), CACHES[cache]
    arguments = [path, json.dumps(prompt), str(n), str(number)]
    done = subprocess.run(
        [python, "-c", _STOCK, *arguments], capture_output=True, text=True, errors="replace",
        timeout=600, check=True,
    )  # fmt: skip
    drafts: list[list[int]] = []
    for place, token in _DRAFTED.findall(done.stderr):
        if place == "0":
            drafts.append([])
        drafts[-1].append(int(token))
    found = re.search(r'"tokens": (\[[^\]]*\])', done.stdout)
    return (json.loads(found[1]) if found else None), drafts


def main(argv: Sequence[str] | None = None) -> int:
    """Compares and prints; returns 1 if a text differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter that has xllamacpp")
    parser.add_argument("--arch", nargs="+", choices=ARCHS, default=ARCHS)
    parser.add_argument("-n", type=int, default=140, help="tokens of the text")
    parser.add_argument("--seed", type=int, default=5, help="seed of the 20 prompt tokens")
    parser.add_argument("--cache", choices=list(CACHES), default="f16", help="type of both caches")
    args = parser.parse_args(argv)
    prompt = [int(i) for i in np.random.default_rng(args.seed).integers(3, 250, 20)]
    are_equal = True
    for arch in args.arch:
        text, drafts = ours(arch, prompt, args.n, args.cache)
        other_text, others = stock(args.python, arch, prompt, args.n, args.cache)
        same = sum(a[: len(b)] == b[: len(a)] for a, b in zip(drafts, others, strict=False))
        are_equal &= text == other_text
        print(
            f"{arch}: {'equal' if text == other_text else 'other'} texts, the same draft in {same} "
            f"of {min(len(drafts), len(others))} rounds ({len(drafts)} here, {len(others)} there)",
            flush=True,
        )
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
