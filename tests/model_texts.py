"""A model's greedy texts on this machine, beside those of another one.

    python -m tests.model_texts OUT.json MODEL ... [--beside OTHER.json] [--near X] [--tokens N]

With each model: the text with an EAGLE-3 head, which copies too, is the one without, and a prompt
that is read in parts gives the logits of one read whole. The plain texts are kept in OUT.json; they
may part from the other machine's only where its two best tokens are at most X logits apart.
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
# The lengths of a prompt's parts: below, at and above the rows that our kernels take at once.
_PARTS = (33, 32, 5, 10)
# By how many logits the gap between a row's two best tokens moves: in 80 rows of SmolLM2 at most
# 0.77 in Q4_K_M and 0.18 in BF16 from AVX2 to AVX-512, 0.90 and 0.14 from x86 to ARM64, and 0.02
# with F32 weights. Products round activations to 8 bits, or to BF16, and a sum's last bit decides
# some of them. From the logits of F32 weights both processors are equally far.
_NEAR, _NEAR_BF16 = 1.0, 0.2

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


def is_neutral(path: Path) -> bool:
    """Whether a prompt in parts gives the logits of one read whole."""
    n_tokens = sum(_PARTS)
    tokens = np.random.default_rng(1).integers(300, 40_000, n_tokens).tolist()
    with Model(path) as model, Context(model, n_ctx=128, n_threads=1) as context:

        def last_row(*lengths: int) -> bytes:
            context.memory.clear()
            start = 0
            for length in lengths:
                batch = Batch(length)
                batch.extend(tokens[start : start + length], start, output_last=True)
                context.decode(batch)
                start += length
            return np.asarray(context.logits(lengths[-1] - 1)).tobytes()

        return last_row(*_PARTS) == last_row(n_tokens)


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
    parser.add_argument("--near", type=float)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    kept: dict[str, list[Text]] = {}
    others = json.loads(args.beside.read_text(encoding="utf-8")) if args.beside else {}
    print(f"{args.out.stem}: {', '.join(sorted(set(row_kernels().values())))}", flush=True)
    n_wrong = 0
    for path in args.models:
        plain = kept[path.name] = texts(path, "none", args.tokens)
        faults = []
        if [text[0] for text in texts(path, _HEAD, args.tokens)] != [text[0] for text in plain]:
            faults.append("another text with the head")
        if not is_neutral(path):
            faults.append("another text behind a prompt in parts")
        where = "not compared"
        if path.name in others:
            margins = parted(plain, others[path.name])
            where = f"{len(margins)} of {len(plain)} texts part, at {margins}"
            near = _NEAR_BF16 if "BF16" in path.name else _NEAR
            near = near if args.near is None else args.near
            faults += [f"parts at {margin}" for margin in margins if margin > near]
        n_wrong += bool(faults)
        said = f"{where}; {'; '.join(faults) or 'right'}"
        print(f"{args.out.stem}: {path.name}: {said}", flush=True)
    args.out.write_text(json.dumps(kept), encoding="utf-8")
    return n_wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
