"""Trains a draft for a model: ``python examples/train_head.py MODEL.gguf DRAFT.gguf [TOKENS]``.

The text comes from the target itself. 4,000 tokens are a rehearsal of minutes; a draft of use takes
500,000. Interrupt it at any time: the same command resumes it. Needs the extra `train`.
"""

import sys
from pathlib import Path

from pyllama_spec import Llama
from pyllama_spec.train import CorpusConfig, Eagle3TrainConfig, train_eagle3


def main(model_path: str, draft_path: str, n_tokens: int = 4000) -> None:
    config = Eagle3TrainConfig(
        target=Path(model_path),
        out=Path(draft_path),
        corpus=CorpusConfig(n_tokens=n_tokens, seed=1),
        export_type="q8_0",
    )
    report = train_eagle3(config)
    print(f"{report.n_bytes} bytes, {report.trained}")
    with Llama(model_path, draft=draft_path, n_ctx=512) as llm:
        result = llm.create_completion("1, 2, 3, 4, ", max_tokens=32, temperature=0.0)
    print(result["choices"][0]["text"], result["speculation"]["accepted"], "drafted and accepted")


if __name__ == "__main__":
    model, draft, *n_tokens = sys.argv[1:] or sys.exit(__doc__)
    main(model, draft, *map(int, n_tokens))
