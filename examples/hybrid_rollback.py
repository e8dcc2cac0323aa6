"""Drafts for a recurrent or hybrid model: ``python examples/hybrid_rollback.py MODEL.gguf``.

A recurrent state has no positions that could be cut. So the engine writes a snapshot for each token
of a verify batch, and a rejected draft goes back to one of them. No round copies a state to the
host; the end of a prompt does once, so that the next turn can go on from there.
"""

import sys

from pyllama_spec import Llama


def main(model_path: str) -> None:
    with Llama(model_path, draft="auto", n_draft=4, n_ctx=512) as llm:
        n_snapshots, info = llm.context.params.n_rs_seq, llm.model.info
        print(f"{info.arch}: {info.state_bytes} bytes of state for each sequence")
        n_bytes = info.snapshot_base_bytes + n_snapshots * info.snapshot_token_bytes
        print(f"{n_snapshots} snapshots: {n_bytes} bytes more")
        result = llm.create_completion("a b c a b c a b", max_tokens=48, temperature=0.0)
        n_copies = llm.context.memory.n_host_copies
    found = result["speculation"]
    print(f"{found['drafted'] - found['accepted']} drafted tokens rejected and rolled back")
    print(f"{n_copies} copies of the state to the host and back")


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
