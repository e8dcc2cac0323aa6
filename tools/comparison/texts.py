"""Compares greedy texts of both packages, with the model's margin at the first difference.

``python -m tools.comparison.texts [--real PYTHON] [KIND ...]`` prints a table for each type of
weights: eight chats of 64 tokens. The margin is the difference between the log-probabilities of our
two likeliest tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.comparison.engine import find_engine

ROOT = Path(__file__).resolve().parents[2]
MAX_TOKENS = 64
ASKED = (
    "What is the capital of France?",
    "Count from 1 to 20.",
    "Write a quicksort algorithm in Python. Write code only.",
    "Write a haiku about the sea.",
    "Explain in one sentence why the sky is blue.",
    "List three fruits.",
    "Translate 'good morning' into French.",
    "Who wrote Romeo and Juliet, and when?",
)


def child(side: str, model: str, engine: str) -> None:
    """Prints JSON: each chat's text, and on our side its tokens and their margins."""
    name = "llama_cpp"
    if side == "ours":
        find_engine(engine)
        name = "pyllama_spec.llama_cpp"
    module: Any = __import__(name, fromlist=["Llama"])
    llm = module.Llama(model, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    answers = []
    for question in ASKED:
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
        if side == "ours":
            options.update(logprobs=True, top_logprobs=2)
        llm.reset()
        messages = [{"role": "user", "content": question}]
        choice = llm.create_chat_completion(messages, **options)["choices"][0]
        parts = (choice.get("logprobs") or {}).get("content") or []
        margins = [one["top_logprobs"][0]["logprob"] - one["top_logprobs"][1]["logprob"]
                   for one in parts]  # fmt: skip
        tokens = [one["token"] for one in parts]
        answers.append({"text": choice["message"]["content"], "tokens": tokens, "margins": margins})
    print(json.dumps(answers))


def run(python: Path, side: str, model: Path, engine: str) -> list[dict[str, Any]]:
    """Runs a child process; returns its output."""
    variables = {**os.environ, "PYLLAMA_SPEC_COSTS": "off", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [str(python), "-m", "tools.comparison.texts", "--child", side, str(model), engine]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr[-2000:]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


def parting(theirs: str, ours: dict[str, Any]) -> str:
    """The first difference of two texts and the margin there; "the same" if they are equal."""
    if theirs == ours["text"]:
        return "the same |"
    at = 0
    for token, margin in zip(ours["tokens"], ours["margins"], strict=True):
        if not theirs.startswith(token, at):
            end = at + 24
            there, here = (json.dumps(text[at:end]) for text in (theirs, ours["text"]))
            return f"after {at} letters {there} there, {here} here | {margin:.3f}"
        at += len(token)
    return "one ends sooner |"


def main(argv: list[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["Q4_0", "BF16"])
    parser.add_argument("--real", type=Path, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        child(*args.child)
        return 0
    # llama-cpp-python's environment cannot import these.
    from tests.conftest import smollm2
    from tools.comparison import environments

    real = args.real or environments.real_python()
    for kind in args.kinds:
        model = smollm2(kind)
        sides = [run(real, side, model, environments.engine()) for side in ("theirs", "ours")]
        print(f"| {kind} | text | margin (nats) |\n|---|---|---|")
        for question, theirs, ours in zip(ASKED, *sides, strict=True):
            print(f"| {question} | {parting(theirs['text'], ours)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
