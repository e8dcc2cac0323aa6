"""Compares a draft's tokens with those in stock llama.cpp, built from the pinned source.

    python -m tests.parity.stock.compare STOCK_SOURCE STOCK_BUILD -m TARGET.gguf -d DRAFT.gguf

STOCK_SOURCE is an unpatched llama.cpp tree at the pin, STOCK_BUILD its build folder with libllama.
The text is the target's own greedy continuation of a prompt. Not a CI test: it needs a second build
of the engine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from math import log
from pathlib import Path

from pyllama_spec.drafters import Committed, DraftOptions, DraftRequest, open_draft
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams

HERE = Path(__file__).parent
# Stock builds multiply with other kernels, which round otherwise: logits differ by about as much.
NEAR_TIE = 0.05
PROMPT = "The three laws of thermodynamics are"


def build(source: Path, build_dir: Path, out: Path) -> Path:
    """Compiles draft_stock.cpp against the stock library; returns the program."""
    library = next(iter(build_dir.rglob("libllama.so")), None)
    if library is None:
        sys.exit(
            f"{build_dir} has no libllama.so; build the target llama with BUILD_SHARED_LIBS=ON"
        )
    program = out / "draft_stock"
    include = [f"-I{source / place}" for place in ("include", "src", "ggml/include")]
    subprocess.run(
        ["g++", "-O2", "-std=c++17", *include, str(HERE / "draft_stock.cpp"), "-o", str(program),
         f"-L{library.parent}", "-lllama", "-lggml", "-lggml-base",
         f"-Wl,-rpath,{library.parent}"],
        check=True,
    )  # fmt: skip
    return program


def greedy_text(model: Model, prompt: list[int], n: int) -> list[int]:
    """The prompt and n tokens of plain decoding."""
    text, sampler = list(prompt), Sampler(model, SamplerParams(temperature=0))
    with Context(model, n_ctx=len(prompt) + n, n_threads=1) as context:
        batch = Batch(len(prompt))
        batch.extend(prompt, 0, output_last=True)
        for _ in range(n):
            context.decode(batch)
            text.append(sampler.sample(context, batch.n_tokens - 1))
            batch.clear()
            batch.add(text[-1], len(text) - 1, output=True)
    return text


def drafts_here(
    model: Model, draft: Path, text: list[int], n_prompt: int, k: int
) -> list[tuple[list[int], list[float]]]:
    """Our drafter's proposals after each prefix of the text, and the leads of the tokens."""
    drafter = open_draft(draft, DraftOptions(max_draft=k, lookup=0))
    out: list[tuple[list[int], list[float]]] = []
    layers = drafter.target_layers
    with Context(model, n_ctx=len(text) + k, target_layers=layers, n_threads=1) as context:
        drafter.attach(context)
        batch = Batch(len(text))
        batch.extend(text[: n_prompt - 1], 0)
        context.decode(batch)
        rows = [context.layer_input(layer) for layer in layers]
        drafter.commit([Committed(0, text[: n_prompt - 1], 0, rows)])
        drafter.commit([Committed(0, [text[n_prompt - 1]], n_prompt - 1)])
        for known in range(n_prompt, len(text) + 1):
            [drafted] = drafter.propose([DraftRequest(0, text[:known], k)])
            gaps = [log(place[0][1] / place[1][1]) for place in drafted.candidates or ()]
            out.append((list(drafted.ids), gaps))
            if known < len(text):
                batch.clear()
                batch.add(text[known - 1], known - 1)
                context.decode(batch)
                rows = [context.layer_input(layer) for layer in layers]
                drafter.commit([Committed(0, [text[known]], known, rows, known - 1)])
    drafter.close()
    return out


def main() -> int:
    """Prints how many rounds draft the same; 1 if any differs by more than a near tie."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, required=True)
    parser.add_argument("-n", type=int, default=64, help="rounds")
    parser.add_argument("-k", type=int, default=4, help="tokens drafted per round")
    args = parser.parse_args()
    model = Model(args.model)
    prompt = model.vocab.tokenize(PROMPT)
    text = greedy_text(model, prompt, args.n)
    with tempfile.TemporaryDirectory() as folder:
        program = build(args.source, args.build, Path(folder))
        command = [program, args.model, args.draft, str(args.k), str(len(prompt)), *map(str, text)]
        stock = subprocess.run(
            [os.fspath(part) for part in command], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    theirs = [[int(token) for token in line.split()] for line in stock.splitlines()]
    ours = drafts_here(model, args.draft, text, len(prompt), args.k)
    same = sum(a == b for (a, _), b in zip(ours, theirs, strict=True))
    print(f"{same} of {len(ours)} rounds of {args.k} drafted tokens are the same")
    worst = 0.0
    for known, ((a, gaps), b) in enumerate(zip(ours, theirs, strict=True), start=len(prompt)):
        if a != b:
            at = next(i for i in range(args.k) if a[i] != b[i])
            worst = max(worst, gaps[at])
            print(f"after {known} tokens: here {a}, stock {b}; a lead of {gaps[at]:.4f} there")
    return 0 if worst < NEAR_TIE else 1


if __name__ == "__main__":
    sys.exit(main())
