"""A model's greedy texts on this machine, beside those of another one.

    python -m tests.model_texts OUT.json MODEL ... [--beside OTHER] [--near LOGITS] [--tokens N]

With each model: the text with an EAGLE-3 head and with copies is the one without, and a prompt that
is read in parts gives the logits of one read whole. The plain texts are kept in OUT.json; they may
part from the other machine's only where its two best tokens are at most --near apart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyllama_spec import Llama
from pyllama_spec.engine import Batch, Context, Model, row_kernels

_PROMPTS = (
    "def quicksort(numbers):\n", "1, 2, 3, 4, 5, 6,",
    "Once upon a time, in a small village by the sea, in a small house,",
)  # fmt: skip
_HEAD = "examples/drafts/smollm2-135m-eagle3.gguf"
_CUTS = (32, 33, 47, 70)
_N_LONG = 80
_NEAR = 0.5

# The tokens of a text, and by how many logits each was before the next best.
Text = tuple[list[str], list[float]]


def texts(path: Path, draft: str, n_tokens: int) -> list[Text]:
    """The greedy text after each prompt."""
    found = []
    with Llama(path, draft=draft, n_ctx=512, logits_all=True, n_threads=1) as llm:
        for prompt in _PROMPTS:
            answer = llm.create_completion(prompt, max_tokens=n_tokens, temperature=0.0, logprobs=2)
            said = answer["choices"][0]["logprobs"]
            assert said is not None
            likeliest = [sorted(row.values()) for row in said["top_logprobs"]]
            found.append((said["tokens"], [row[-1] - row[-2] for row in likeliest]))
    return found


def unequal_parts(path: Path) -> list[int]:
    """The first parts of a prompt that change the logits behind it."""
    tokens = np.random.default_rng(1).integers(300, 40_000, _N_LONG).tolist()
    with Model(path) as model, Context(model, n_ctx=128, n_threads=1) as context:

        def last_row(cuts: Sequence[int]) -> bytes:
            context.memory.clear()
            for start, end in zip((0, *cuts), (*cuts, _N_LONG), strict=True):
                batch = Batch(_N_LONG)
                batch.extend(tokens[start:end], start, output_last=True)
                context.decode(batch)
            return np.asarray(context.logits(end - start - 1)).tobytes()

        whole = last_row(())
        return [cut for cut in _CUTS if whole != last_row((cut,))]


def parted(mine: Sequence[Text], others: Sequence[Text]) -> list[float]:
    """The other's margins at the tokens where texts part."""
    margins = []
    for (tokens, _), (other_tokens, other_margins) in zip(mine, others, strict=True):
        rows = zip(tokens, other_tokens, other_margins, strict=False)
        margins += [margin for one, other, margin in rows if one != other][:1]
    return margins


def main() -> int:
    """Prints a line for each model; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--near", type=float, default=_NEAR)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    kept: dict[str, list[Text]] = {}
    others = json.loads(args.beside.read_text(encoding="utf-8")) if args.beside else {}
    print(row_kernels(), flush=True)
    n_wrong = 0
    for path in args.models:
        plain = kept[path.name] = texts(path, "none", args.tokens)
        tokens = [text[0] for text in plain]
        faults = [
            f"another text with {draft}" for draft in (_HEAD, "suffix")
            if [text[0] for text in texts(path, draft, args.tokens)] != tokens
        ]  # fmt: skip
        faults += [f"{cut} tokens first change the rest" for cut in unequal_parts(path)]
        where = "not compared"
        if path.name in others:
            margins = parted(plain, others[path.name])
            where = f"{len(margins)} of {len(plain)} texts part, at {margins}"
            faults += [f"parts at {margin}" for margin in margins if margin > args.near]
        n_wrong += bool(faults)
        print(f"{path.name}: {where}; {'; '.join(faults) or 'right'}", flush=True)
    args.out.write_text(json.dumps(kept), encoding="utf-8")
    return n_wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
