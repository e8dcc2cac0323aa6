"""Measures the speed-up of a draft inside libraries that import llama_cpp.

``python -m tools.comparison.app_speed [--repeat 3] [--kind BF16] [--threads 2]``

A chat of langchain-community and one of llama-index rewrite three short programs. Decoding is
greedy, with 192 tokens at most. The sides are llama-cpp-python, and ours without a draft, with
prompt lookup and with the shipped EAGLE-3 draft. A draft is one more keyword. Each side runs in its
own process, interleaved; the table has median seconds of the three answers. All texts of ours must
be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tools.comparison.engine import find_engine

ROOT = Path(__file__).resolve().parents[2]
DRAFT = ROOT / "examples" / "drafts" / "smollm2-135m-eagle3.gguf"
MAX_TOKENS = 192
SIDES: dict[str, dict[str, Any]] = {
    "llama-cpp-python": {},
    "ours": {},
    "ours, prompt lookup": {"draft": "prompt-lookup"},
    "ours, EAGLE-3": {"draft": str(DRAFT)},
}
PROGRAMS = (
    """def mean(x):
    s = 0
    for v in x:
        s += v
    return s / len(x)
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()
""",
    """def find(names, name):
    for i, n in enumerate(names):
        if n == name:
            return i
    return -1
""",
)
ASKED = "Repeat this Python code exactly, and add a docstring to each function:\n\n```python\n{}```"


def langchain(options: dict[str, Any], extra: dict[str, Any]) -> Callable[[str], str]:
    """A chat model of langchain-community."""
    from langchain_community.chat_models import ChatLlamaCpp

    chat = ChatLlamaCpp(**options, max_tokens=MAX_TOKENS, temperature=0.0, model_kwargs=extra)
    return lambda text: str(chat.invoke(text).content)


def llama_index(options: dict[str, Any], extra: dict[str, Any]) -> Callable[[str], str]:
    """A chat model of llama-index."""
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.llama_cpp import LlamaCPP

    def prompt(messages: Any) -> str:
        turns = [f"<|im_start|>{m.role.value}\n{m.content}<|im_end|>\n" for m in messages]
        return "".join([*turns, "<|im_start|>assistant\n"])

    kwargs = {name: value for name, value in options.items() if name not in ("model_path", "n_ctx")}
    llm = LlamaCPP(
        model_path=options["model_path"], context_window=options["n_ctx"], temperature=0.0,
        max_new_tokens=MAX_TOKENS, messages_to_prompt=prompt, verbose=False,
        model_kwargs={**kwargs, **extra},
    )  # fmt: skip
    return lambda text: str(llm.chat([ChatMessage(role="user", content=text)]).message.content)


APPS = {"langchain": langchain, "llama-index": llama_index}


def child(app: str, side: str, model: str, engine: str, threads: int) -> None:
    """Prints the seconds and the texts of one side."""
    if side != "llama-cpp-python":
        find_engine(engine)
        from pyllama_spec import llama_cpp

        llama_cpp.install()
    options = {"model_path": model, "n_ctx": 2048, "n_threads": threads, "verbose": False}
    ask = APPS[app](options, SIDES[side])
    ask("Hello!")
    texts, seconds = [], 0.0
    for program in PROGRAMS:
        start = perf_counter()
        texts.append(ask(ASKED.format(program)))
        seconds += perf_counter() - start
    print(json.dumps({"seconds": seconds, "texts": texts}))


def run(python: Path, *words: str) -> dict[str, Any]:
    """Runs a child process; returns its output."""
    variables = {**os.environ, "PYLLAMA_SPEC_COSTS": "off", "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-m", "tools.comparison.app_speed", "--child", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("apps", nargs="*", default=list(APPS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kind", default="BF16", help="the type of SmolLM2's weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        app, side, model, engine, threads = args.child
        child(app, side, model, engine, int(threads))
        return 0
    # The libraries' environments cannot import these.
    from tests.conftest import smollm2
    from tools.comparison import environments
    from tools.comparison.app_calls import APPS as PACKAGES
    from tools.comparison.apps import OURS

    print("| app | side | seconds (spread) | over llama-cpp-python | over ours without a draft |")
    print("|---|---|---|---|---|")
    model = str(smollm2(args.kind))
    for app in args.apps:
        wheel = str(environments.real_wheel())
        python = environments.environment(app, *OURS, wheel, *PACKAGES[app][1])
        runs_by_side: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for _ in range(args.repeat):
            for side, runs in runs_by_side.items():
                words = (app, side, model, environments.engine(), str(args.threads))
                runs.append(run(python, *words))
        _report(app, runs_by_side)
    return 0


def _report(app: str, runs_by_side: dict[str, list[dict[str, Any]]]) -> None:
    own = {
        repr(one["texts"]) for side, runs in runs_by_side.items() if "ours" in side for one in runs
    }
    if len(own) != 1:
        raise SystemExit(f"{app}: the text depends on the draft")
    seconds = {side: [one["seconds"] for one in runs] for side, runs in runs_by_side.items()}
    median = {side: statistics.median(each) for side, each in seconds.items()}
    for side, each in seconds.items():
        theirs, ours = median["llama-cpp-python"] / median[side], median["ours"] / median[side]
        spread = f"{median[side]:.2f} ({min(each):.2f} .. {max(each):.2f})"
        print(f"| {app} | {side} | {spread} | {theirs:.2f} | {ours:.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
