"""The result of `train mtp` on heads of tiny models, whose text is known.

    python -m benchmarks.mtp_training [changed qwen35 qwen35moe deepseek2 ...]

Each target generates PERM: a token determines the next one, in four cycles of 80 tokens. A target
named by its architecture has a random head. The target "changed", a qwen35, has a head that
predicts three quarters of the successors, and outdated tokens for the rest. The head is trained on
900 tokens of the target's text, of which a fifth is held out. Then the old and the new head draft
three tokens a round after six prompts, at a fixed length and without lookups.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllama_spec import Llama
from pyllama_spec.train import CorpusConfig, MtpFitConfig, MtpTrainConfig, train_mtp
from tests.models import model_path
from tests.train.tools import write_prompts

PROMPTS = "aqzQ7,"
N_CHANGED = 80


def target_of(name: str) -> Path:
    """The path of a target."""
    options: dict[str, Any] = {"arch": name, "n_cycles": 4, "is_known": False}
    if name == "changed":
        options = {"arch": "qwen35", "n_cycles": 4, "n_changed": N_CHANGED}
    return model_path("perm_mtp", **options)


def decoded(target: Path, draft: str | Path) -> tuple[int, int, float]:
    """Generates after each prompt; returns accepted and drafted tokens, and tokens per round."""
    options: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "lookup": 0, "controller": "fixed"}
    accepted = drafted = rounds = 0
    with Llama(target, draft=draft, n_draft=3, **options) as llm:
        for prompt in PROMPTS:
            answer = llm.create_completion(prompt, max_tokens=70, temperature=0)
            found = answer["speculation"]
            accepted += found["accepted"]
            drafted += found["drafted"]
            rounds += found["rounds"]
    return accepted, drafted, 1 + accepted / rounds


def main(argv: Sequence[str] | None = None) -> int:
    """Trains a head of each target, and prints figures of the old and the new head."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("targets", nargs="*", default=["changed", "qwen35"])
    args = parser.parse_args(argv)
    for name in args.targets:
        target = target_of(name)
        with tempfile.TemporaryDirectory() as folder:
            config = MtpTrainConfig(
                target, Path(folder) / "head.gguf", n_threads=1, device="cpu", export_type="f32",
                corpus=CorpusConfig(
                    write_prompts(Path(folder), 400), n_tokens=900, n_ctx=40, n_parallel=4,
                    min_answer=8,
                ),
                fit=MtpFitConfig(
                    epochs=24, batch_tokens=256, lr=3e-3, held_out=0.2, n_evals=6, precision="fp32"
                ),
            )  # fmt: skip
            begin = time.process_time()
            report = train_mtp(config)
            print(f"{name}: {time.process_time() - begin:.0f} s of the processor {report.why_not}")
            print(f"    held out: {report.untrained} before, {report.trained} now")
            heads: list[str | Path] = ["mtp"] if report.why_not else ["mtp", report.path]
            for head in heads:
                accepted, drafted, per_round = decoded(target, head)
                print(
                    f"    {'before' if head == 'mtp' else 'now'}: {accepted} of {drafted} drafted "
                    f"tokens accepted, {per_round:.2f} tokens per round",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
