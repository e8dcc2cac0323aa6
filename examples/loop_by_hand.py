"""The speculative loop by hand: ``python examples/loop_by_hand.py MODEL.gguf``."""

import sys

from pyllama_spec.drafters import PromptLookup
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams


def main(path: str, prompt: str = "cat dog cow pig " * 4, n: int = 64) -> tuple[str, int]:
    model = Model(path)
    context = Context(model, n_ctx=512)
    sampler, drafter = Sampler(model, SamplerParams(temperature=0)), PromptLookup()
    batch, tokens = Batch(context.n_batch), model.vocab.tokenize(prompt)
    batch.extend(tokens, pos=0, output_last=True)
    context.decode(batch)
    drafter.begin(0, tokens, ())
    pending, n_past, rounds = sampler.sample(context, len(tokens) - 1), len(tokens), 0
    answer: list[int] = []
    drafter.commit(0, [pending], ())
    while len(answer) < n and not model.vocab.is_eog(pending):
        draft = list(drafter.propose(0, pending, 8).ids)  # what may come next
        batch.clear()
        batch.extend([pending, *draft], n_past, output_all=True)
        context.decode(batch)  # the target reads all of it at once
        answer.append(pending)
        accepted = 0
        while (choice := sampler.sample(context, accepted)) in draft[accepted : accepted + 1]:
            accepted += 1  # the draft counts for as long as it is the target's own choice
        n_past += 1 + accepted
        context.memory.rollback(0, n_past)  # what was refused is forgotten
        drafter.commit(0, [*draft[:accepted], choice], ())
        answer, pending, rounds = answer + draft[:accepted], choice, rounds + 1
    text = model.vocab.detokenize(answer).decode(errors="replace")
    print(f"{text}\n[{len(answer)} tokens in {rounds} rounds]")
    return text, rounds


if __name__ == "__main__":
    main(sys.argv[1])
