"""Compares a small draft model here and in the engine's own server: speed, acceptance and texts.

    python -m venv OTHER && OTHER/bin/pip install xllamacpp==2026.10.11549
    python -m benchmarks.pair_beside --python OTHER/bin/python -m TARGET.gguf -d SMALL.gguf [-n 96]

xllamacpp is a wheel of the pinned source; its server drafts by draft-simple. Both systems get the
same ids, decode greedily on one thread, and draft the same number of tokens a round. A third side
here has the controller. The sides are interleaved. Times are the processor time of each process,
prompts included. Each text is compared with that of the same system without a draft. Results so far
are printed after each prompt, so that a run may be stopped early. The exit status is 1 if a text of
ours differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyllama_spec.bench import beside
from pyllama_spec.bench.config import load_prompts
from pyllama_spec.bench.machine import process_cpu_s
from pyllama_spec.bench.sides import Side
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.drafters import NoDrafter, SmallModel
from pyllama_spec.engine import ContextParams, Model
from pyllama_spec.llama.loading import open_runtime
from pyllama_spec.requests.options import RequestOptions
from pyllama_spec.speculative import Controller, FixedLength, ProfitController

PROMPTS = Path(__file__).parent / "mixed_prompts.jsonl"
N_CTX = 1024
# The most that the controller may draft.
MAX_DRAFT = 8


@dataclass(frozen=True, slots=True)
class Text:
    """The result of one side for a prompt."""

    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    cpu_s: float


class Asked(Protocol):
    """A side of the comparison."""

    def ask(self, ids: Sequence[int], n: int) -> Text:
        """Generates n greedy tokens at most, from an empty memory."""
        ...


class Ours:
    """A side in this process, with its own context."""

    def __init__(self, model: Model, draft: Model | None, n_draft: int) -> None:
        params = ContextParams(n_ctx=N_CTX, n_batch=512, n_threads=1)
        n = n_draft or MAX_DRAFT
        drafter = NoDrafter() if draft is None else SmallModel(draft, n)
        controller: Controller = FixedLength() if n_draft or draft is None else ProfitController()
        runtime = open_runtime(
            model, params, drafter, None if draft is None else n, controller=controller
        )
        self.side = Side(runtime, RequestOptions(temperature=0.0), drafter)

    def ask(self, ids: Sequence[int], n: int) -> Text:
        """Generates here; returns the text and its counts."""
        run = self.side.run(ids, n)
        drafted = sum(drafted for drafted, _ in run.rounds)
        return Text(run.tokens, drafted, sum(accepted for _, accepted in run.rounds), run.cpu_s)


class Theirs:
    """A side in a server process of the other system."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process, self._port = process, port
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _cpu_s(self) -> float:
        seconds = process_cpu_s(self._process.pid)
        assert seconds is not None, "this benchmark needs Linux's /proc, and a running server"
        return seconds

    def ask(self, ids: Sequence[int], n: int) -> Text:
        """Asks the server; returns the text and its counts."""
        body = {
            "prompt": list(ids), "n_predict": n, "temperature": 0, "top_k": 1,
            "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/completion", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        before = self._cpu_s()
        with self._opener.open(request, timeout=1200) as response:
            answer: dict[str, Any] = json.load(response)
        took, timings = self._cpu_s() - before, answer["timings"]
        return Text(
            tuple(answer["tokens"]), timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0), took,
        )  # fmt: skip


def show(texts: dict[str, list[Text]], n_draft: int) -> dict[str, Any]:
    """Prints a line for each side; returns their figures."""
    rows = {}
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    for name, of in texts.items():
        plain = texts[f"{name.partition(',')[0]}, plain"]
        n_tokens, accepted = sum(len(t.tokens) for t in of), sum(t.n_accepted for t in of)
        cpu_s = sum(t.cpu_s for t in of)
        row = {
            "texts": len(of),
            "equal": sum(a.tokens == b.tokens for a, b in zip(of, plain, strict=True)),
            "tokens": n_tokens, "drafted": sum(t.n_drafted for t in of), "accepted": accepted,
            # Each round gives one token more than it accepts.
            "tokens_per_round": n_tokens / max(n_tokens - accepted, 1),
            "tokens_per_cpu_s": n_tokens / cpu_s,
            "over_plain": sum(t.cpu_s for t in plain) / cpu_s,
        }  # fmt: skip
        rows[name] = row
        print(
            f"{name}: {row['equal']} of {row['texts']} texts equal to its own plain ones, "
            f"{n_tokens} tokens, {row['drafted']} drafted, {accepted} accepted, "
            f"{row['tokens_per_round']:.2f} tokens a round, {row['tokens_per_cpu_s']:.2f} tokens "
            f"a processor second, {row['over_plain']:.3f} of its plain",
            flush=True,
        )
    same = zip(texts["here, plain"], texts["there, plain"], strict=True)
    print(f"plain texts of both the same: {sum(a.tokens == b.tokens for a, b in same)}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; returns 1 if a text of ours differs from plain decoding's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", required=True, help="interpreter that has xllamacpp")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, required=True)
    parser.add_argument("--n-draft", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8, help="the first N of the 24")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    job = {
        "system": "llama-server", "model": str(args.model.absolute()), "n_ctx": N_CTX,
        "n_parallel": 1, "cache_ram_mib": 0, "n_threads": 1, "n_gpu_layers": 0,
        "draft_gpu_layers": 0, "draft_kind": "none", "draft": "", "n_draft": args.n_draft,
        "p_min": 0.0,
    }  # fmt: skip
    how = {"draft_kind": "model", "draft": str(args.draft.absolute())}
    rows: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model(args.model))
        draft = stack.enter_context(Model(args.draft))
        sides: dict[str, Asked] = {}
        for name, of, n in (
            ("plain", None, 1), (f"{args.n_draft} a round", draft, args.n_draft),
            ("controller", draft, 0),
        ):  # fmt: skip
            ours = Ours(model, of, n)
            stack.callback(ours.side.close)
            sides[f"here, {name}"] = ours
        for name, more in (("plain", {}), (f"{args.n_draft} a round", how)):
            port = beside.free_port()
            process = stack.enter_context(
                beside.serving(args.python, {**job, **more, "port": port})
            )
            sides[f"there, {name}"] = Theirs(process, port)
        template = ChatTemplate.of_model(model)
        texts: dict[str, list[Text]] = {name: [] for name in sides}
        for at, prompt in enumerate(load_prompts(PROMPTS)[: args.prompts]):
            ids = prompt.as_chat(None).tokens(model.vocab, template)
            turn = at % len(sides)
            for name in [*sides, *sides][turn : turn + len(sides)]:
                texts[name].append(sides[name].ask(ids, args.max_tokens))
            rows = show(texts, args.n_draft)
            if args.json is not None:
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(r["equal"] < r["texts"] for n, r in rows.items() if n.startswith("here")))


if __name__ == "__main__":
    sys.exit(main())
