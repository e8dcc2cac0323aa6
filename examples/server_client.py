"""Asks a running server with OpenAI's package: ``python examples/server_client.py URL``.

Start one with `pyllama-spec serve -m MODEL.gguf -d auto --port 8080`; the URL is then
http://127.0.0.1:8080/v1. Needs `pip install openai`.
"""

import sys
from typing import Any

from openai import OpenAI

MESSAGES: Any = [{"role": "user", "content": "Count from 1 to 20."}]


def main(url: str) -> None:
    client = OpenAI(base_url=url, api_key="none")
    name = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=name, messages=MESSAGES, max_tokens=64, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None:  # in the last chunk
            print(f"\n{chunk.usage.completion_tokens} tokens of {name}")
    # What is not OpenAI's goes in extra_body, and comes back as a field of the answer.
    answer = client.chat.completions.create(
        model=name, messages=MESSAGES, max_tokens=64, temperature=0,
        extra_body={"speculation": {"n_draft": 4}},
    )  # fmt: skip
    print("drafted and accepted:", answer.speculation["accepted"])


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
