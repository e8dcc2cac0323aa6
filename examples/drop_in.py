"""A program written for llama-cpp-python, with one import changed and a draft added.

``python examples/drop_in.py MODEL.gguf``
"""

import sys

from pyllama_spec.llama_cpp import Llama  # was: from llama_cpp import Llama


class Assistant:
    """Keeps a conversation and answers in a stream, as a chat program does."""

    def __init__(self, model_path: str) -> None:
        self.llm = Llama(model_path=model_path, n_ctx=2048, draft="prompt-lookup", verbose=False)
        self.messages = [{"role": "system", "content": "You are a helpful assistant."}]

    def ask(self, question: str, max_tokens: int = 96) -> str:
        self.messages.append({"role": "user", "content": question})
        answer = ""
        for chunk in self.llm.create_chat_completion(
            messages=self.messages, max_tokens=max_tokens, temperature=0.0, stream=True
        ):
            piece = chunk["choices"][0]["delta"].get("content") or ""
            print(piece, end="", flush=True)
            answer += piece
        print()
        self.messages.append({"role": "assistant", "content": answer})
        return answer


def main(model_path: str) -> list[str]:
    assistant = Assistant(model_path)
    return [assistant.ask("Count from 1 to 20."), assistant.ask("Now do it once more.")]


if __name__ == "__main__":
    main(*(sys.argv[1:] or sys.exit(__doc__)))
