"""The acceptance rate of a draft's tokens at a temperature, by four ways to sample them.

    python -m benchmarks.draft_overlap -m TARGET.gguf -d SMALL.gguf --n-prompts 7

The target samples a text. At each position p is its distribution and q the draft's, after the same
cuts. They give the probability that a drafted token is accepted there:

    likeliest   the draft's likeliest token, if the target samples it: p(argmax q)
    rejection   sampled from q, and accepted with min(1, p / q): the sum of min(p, q)
    one number  both use the same random number, over their tokens by probability, as the
                engine's chain does
    noise       both take the argmax of log p + g, with the same Gumbel noise g for each token
                (arXiv 2408.07978); a seed then gives one text with any draft and with none

No time is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from pyllama_spec.bench.config import load_prompts
from pyllama_spec.chat.template import ChatTemplate
from pyllama_spec.engine import Batch, Context, Distribution, Model, Sampler, SamplerParams

PROMPTS = Path(__file__).parent / "field_prompts.jsonl"
WAYS = ("likeliest", "rejection", "one number", "noise")


def chances(p: Distribution, q: Distribution) -> tuple[float, float, float, float]:
    """The probability of acceptance by each of WAYS."""
    p_of, q_of = (dict(zip(d.ids.tolist(), d.p.tolist(), strict=True)) for d in (p, q))
    both = p_of.keys() & q_of.keys()
    rejection = sum(min(p_of[i], q_of[i]) for i in both)
    (p_begin, p_end), (q_begin, q_end) = _stretches(p), _stretches(q)
    one_number = sum(max(min(p_end[i], q_end[i]) - max(p_begin[i], q_begin[i]), 0.0) for i in both)
    noise = sum(
        1.0
        / sum(
            max(p_of.get(j, 0.0) / p_of[i], q_of.get(j, 0.0) / q_of[i]) for j in p_of.keys() | q_of
        )
        for i in both
    )
    return p.of(int(q.ids[q.p.argmax()])), rejection, one_number, noise


def _stretches(d: Distribution) -> tuple[dict[int, float], dict[int, float]]:
    """The lower and upper ends of the random numbers that sample each token, by its id."""
    ends = np.cumsum(d.p)
    ids = d.ids.tolist()
    return dict(zip(ids, (ends - d.p).tolist(), strict=True)), dict(
        zip(ids, ends.tolist(), strict=True)
    )


def places(
    target: Context, draft: Context, prompt: list[int], n: int, params: SamplerParams
) -> Iterator[tuple[Distribution, Distribution]]:
    """Samples n tokens at most; yields both distributions at each position."""
    for context in (target, draft):
        context.memory.clear()
    batch, text, said = Batch(len(prompt) + n), list(prompt), []
    batch.extend(prompt, 0, 0, output_last=True)
    with closing(Sampler(target.model, params)) as sampler:
        for _ in range(n):
            target.decode(batch)
            row = batch.n_tokens - 1
            said.append(sampler.distribution(target, row))
            text.append(sampler.sample(target, row))
            if target.model.vocab.is_eog(text[-1]):
                break
            batch.clear()
            batch.add(text[-1], len(text) - 1, output=True)
    batch.clear()
    first = len(prompt) - 1
    for i, token in enumerate(text[:-1]):
        batch.add(token, i, output=i >= first)
    draft.decode(batch)
    with closing(Sampler(draft.model, params)) as sampler:
        for i, p in enumerate(said):
            yield p, sampler.distribution(draft, first + i)


def main() -> None:
    """Prints the mean acceptance of each way, for each temperature."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-d", "--draft", type=Path, required=True)
    parser.add_argument("-n", "--max-tokens", type=int, default=48)
    parser.add_argument("--n-prompts", type=int, default=7)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8, 1.2])
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    prompts = load_prompts(PROMPTS)
    with Model(args.model) as model, Model(args.draft) as small:
        template = ChatTemplate.of_model(model)
        step = max(len(prompts) // args.n_prompts, 1)
        chats = [prompt.as_chat(None) for prompt in prompts[::step][: args.n_prompts]]
        texts = [list(chat.tokens(model.vocab, template)) for chat in chats]
        size = max(map(len, texts)) + args.max_tokens
        n_outputs = args.max_tokens + 1
        contexts = [
            Context(one, n_ctx=size, n_batch=size, n_threads=1, n_outputs_max=n_outputs)
            for one in (model, small)
        ]
        for temperature in args.temperature:
            params = SamplerParams(temperature=temperature, seed=args.seed)
            found = [
                chances(p, q)
                for text in texts
                for p, q in places(contexts[0], contexts[1], text, args.max_tokens, params)
            ]
            means = np.mean(found, axis=0)
            said = ", ".join(f"{w} {x:.3f}" for w, x in zip(WAYS, means, strict=True))
            print(f"temperature {temperature}: {len(found)} places, {said}", flush=True)
        for context in contexts:
            context.close()


if __name__ == "__main__":
    main()
