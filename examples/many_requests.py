"""Answers many prompts side by side: ``python examples/many_requests.py MODEL.gguf``.

n_parallel says how many are computed in one batch. A list of prompts fills it by itself, and so do
threads that share one Llama. Each request gets the text that it would get alone.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from pyllama_spec import Llama

PROMPTS = [f"{n}, {n + 1}, {n + 2}, " for n in range(1, 9)]


def main(model_path: str) -> list[str]:
    with Llama(model_path, draft="prompt-lookup", n_ctx=256, n_parallel=4) as llm:
        result = llm.create_completion(PROMPTS, max_tokens=24, temperature=0.0)
        texts = [choice["text"] for choice in result["choices"]]

        def answer(prompt: str) -> str:
            alone = llm.create_completion(prompt, max_tokens=24, temperature=0.0)
            return str(alone["choices"][0]["text"])

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            same = list(pool.map(answer, PROMPTS)) == texts
    print(*map(repr, texts), sep="\n")
    print("the same texts from threads:", same)
    print(f"{result['timing']['tps']:.1f} tokens per second")
    return texts


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
