"""Wraps a draft: ``python examples/wrapped_drafter.py MODEL.gguf DRAFT.gguf``.

It halves every draft and counts what was accepted; the draft inside may be of any kind.
"""

import argparse

from pyllama_spec import Committed, Draft, DrafterWrapper, DraftRequest, Llama
from pyllama_spec.drafters import open_draft


class Halved(DrafterWrapper):
    """Asks for half as many tokens, at least one."""

    n_proposed = n_chosen = 0

    def propose_one(self, request: DraftRequest) -> Draft:
        half = (request.n_requested + 1) // 2
        draft = super().propose_one(request._replace(n_requested=half))
        self.n_proposed += len(draft.ids)
        return draft

    def commit_one(self, done: Committed) -> None:
        self.n_chosen += done.n_chosen
        super().commit_one(done)


def main(model: str, draft: str) -> None:
    halved = Halved(open_draft(draft))
    with halved, Llama(model, draft=halved, controller="fixed", n_ctx=512) as llama:
        result = llama.create_completion("1, 2, 3, 4, ", max_tokens=48, temperature=0)
    print(result["choices"][0]["text"], result["speculation"]["accepted_histogram"], sep="\n")
    print(f"{halved!r}: {halved.n_proposed} proposed, {halved.n_chosen} chosen by the target")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("draft")
    main(**vars(parser.parse_args()))
