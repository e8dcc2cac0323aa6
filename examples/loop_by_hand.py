"""The speculative loop by hand: ``python examples/loop_by_hand.py MODEL.gguf``."""

import sys

from pyllama_spec.drafters import Committed, DraftRequest, PromptLookup
from pyllama_spec.engine import Batch, Context, Model, Sampler, SamplerParams


def main(path: str, prompt: str = "cat dog cow pig " * 4, n: int = 64) -> tuple[str, int]:
    model = Model(path)
    context = Context(model, n_ctx=512)
    sampler, drafter = Sampler(model, SamplerParams(temperature=0)), PromptLookup()
    batch, tokens = Batch(context.n_batch), model.vocab.tokenize(prompt)
    n_prompt, rounds = len(tokens), 0
    batch.extend(tokens, pos=0, output_last=True)
    context.decode(batch)
    tokens.append(sampler.sample(context, n_prompt - 1))  # the last one is always pending
    drafter.commit([Committed(seq=0, tokens=tokens, start=0)])
    while len(tokens) - n_prompt <= n and not model.vocab.is_eog(tokens[-1]):
        [drafted] = drafter.propose([DraftRequest(seq=0, tokens=tokens, n_requested=8)])
        n_past, draft = len(tokens) - 1, list(drafted.ids)  # what may come next
        batch.clear()
        batch.extend([tokens[-1], *draft], n_past, output_all=True)
        context.decode(batch)  # the target reads all of it at once
        accepted = 0
        while (choice := sampler.sample(context, accepted)) in draft[accepted : accepted + 1]:
            accepted += 1  # the draft counts for as long as it is the target's own choice
        context.memory.rollback(0, n_past + 1 + accepted)  # what was refused is forgotten
        tokens += (committed := [*draft[:accepted], choice])
        drafter.commit([Committed(0, committed, start=n_past + 1)])
        rounds += 1
    answer = tokens[n_prompt:-1]
    text = model.vocab.detokenize(answer).decode(errors="replace")
    print(f"{text}\n[{len(answer)} tokens in {rounds} rounds]")
    return text, rounds


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else sys.exit(__doc__))
