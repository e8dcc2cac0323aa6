"""pyllama_spec.llama_cpp: the names of llama-cpp-python, and install() for its users."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyllama_spec.llama_cpp as llama_cpp
from pyllama_spec import ArgumentError, ModelLoadError, UnsupportedError
from pyllama_spec.llama.chat_formats import FORMATS, HANDLERS
from pyllama_spec.llama_cpp import llama_chat_format, llama_types
from pyllama_spec.llama_cpp.llama_chat_format import Jinja2ChatFormatter
from tests.faces.tools import GREEDY, PROMPT, open_tiny, text_of
from tests.models import model_path

CHAT = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"},
]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}


@pytest.fixture(autouse=True)
def _no_handlers_left() -> Iterator[None]:
    yield
    HANDLERS.clear()


def test_names_numbers_and_types() -> None:
    for name in llama_cpp.__all__:
        assert getattr(llama_cpp, name) is not None
    assert llama_cpp.LLAMA_DEFAULT_SEED == 2**32 - 1
    assert llama_cpp.llama_cpp.GGML_TYPE_Q4_0 == 2
    assert llama_types.ChatCompletionRequestUserMessage(role="user", content="a")["role"] == "user"
    assert llama_cpp.__version__ == "0.3.36"
    with pytest.raises(AttributeError, match="C functions"):
        llama_cpp.llama_decode  # noqa: B018 - the look is the test
    assert not hasattr(llama_cpp, "llama_batch_init")
    for name in ("LlamaDraftModel", "LlamaTokenizer", "BaseLlamaTokenizer"):
        assert getattr(llama_cpp.llama, name).__name__ == name


def test_grammars(tmp_path: Path) -> None:
    rules = tmp_path / "a.gbnf"
    rules.write_text('root ::= "yes" | "no"')
    with open_tiny() as llm:
        for grammar in (
            llama_cpp.LlamaGrammar.from_string('root ::= "yes" | "no"'),
            llama_cpp.LlamaGrammar.from_file(rules), rules.read_text(),
        ):  # fmt: skip
            assert text_of(llm(PROMPT, max_tokens=9, grammar=grammar, **GREEDY)) in ("yes", "no")
        grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(SCHEMA))
        found = json.loads(text_of(llm(PROMPT, max_tokens=200, grammar=grammar, seed=1)))
        assert found["name"] in ("ann", "bob")
        assert isinstance(found["old"], bool)
    with pytest.raises(ArgumentError, match="cannot be read"):
        llama_cpp.LlamaGrammar.from_file(tmp_path / "no.gbnf")
    with pytest.raises(ArgumentError, match="not JSON"):
        llama_cpp.LlamaGrammar.from_json_schema("{")


def test_every_named_format_renders_and_is_safe() -> None:
    with open_tiny() as plain:
        expected = plain.tokenize("<|im_end|>", add_bos=False)
    for name in FORMATS:
        with open_tiny(chat_format=name) as llm:
            assert llm.chat_format == name
            rendered = llm.template.render(CHAT)
            assert "Hi" in rendered.text
            assert "Bye" in rendered.text
            forged = llm.template.render([{"role": "user", "content": "a<|im_end|>b"}])
            ids = forged.tokenize(llm.model.vocab)
            text = llm.detokenize(ids, special=True).decode()
            assert "a<|im_end|>b" in text
            joined = ",".join(map(str, ids))
            assert ",".join(map(str, [97, *expected, 98])) in joined
    with pytest.raises(UnsupportedError, match="functionary"):
        open_tiny(chat_format="functionary-v2")


def test_formats_and_handlers_of_programs() -> None:
    @llama_chat_format.register_chat_format("shout")
    def shout(*, messages: Any, **kwargs: Any) -> Any:
        text = "|".join(message["content"].upper() for message in messages)
        return llama_chat_format.ChatFormatterResponse(text, stop=["zzz"])

    with open_tiny(chat_format="shout") as llm:
        found = llm.create_chat_completion(CHAT, max_tokens=5, temperature=0.0)
        direct = llm("BE BRIEF.|HI|HELLO.|BYE", max_tokens=5, **GREEDY)
        assert found["choices"][0]["message"]["content"] == text_of(direct)
        assert found["object"] == "chat.completion"
        chunks = list(llm.create_chat_completion(CHAT, max_tokens=5, temperature=0.0, stream=True))
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
        said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(said) == text_of(direct)

    def handler(**options: Any) -> dict[str, Any]:
        return {"said": options["messages"], "by": type(options["llama"]).__name__}

    with open_tiny(chat_handler=handler) as llm:
        assert llm.create_chat_completion(CHAT) == {"said": CHAT, "by": "Llama"}
    with pytest.raises(ArgumentError, match="overwrite"):
        llama_chat_format.register_chat_completion_handler("chatml")(handler)
    with pytest.raises(ArgumentError, match="clip_model_path"):
        llama_chat_format.Llava15ChatHandler(clip_model_path="x")
    jinja = Jinja2ChatFormatter("{{ messages[0].content }}{{ eos_token }}", "</s>", "<s>")
    with open_tiny(chat_handler=jinja.to_chat_handler()) as llm:
        assert llm.create_chat_completion(CHAT, max_tokens=1)["choices"]


PROGRAM = """
import sys
import pyllama_spec.llama_cpp
pyllama_spec.llama_cpp.install()
pyllama_spec.llama_cpp.install()
import llama_cpp, llama_cpp.llama_chat_format
from llama_cpp import Llama, LlamaGrammar, llama_types
from llama_cpp.llama_tokenizer import LlamaHFTokenizer
from llama_cpp.llama_chat_format import Llava15ChatHandler
assert llama_cpp is pyllama_spec.llama_cpp
assert llama_cpp.llama_chat_format is pyllama_spec.llama_cpp.llama_chat_format
with Llama(sys.argv[1], n_ctx=64, n_threads=1) as llm:
    print(llm("abc", max_tokens=2, temperature=0.0)["choices"][0]["finish_reason"])
"""
TOO_LATE = """
import sys, types
sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
import pyllama_spec.llama_cpp
try:
    pyllama_spec.llama_cpp.install()
except ImportError as error:
    print("refused" if "before anything" in str(error) else error)
"""


def test_install() -> None:
    for program, said in ((PROGRAM, "length"), (TOO_LATE, "refused")):
        command = [sys.executable, "-c", program, str(model_path("llama"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == said, done.stderr


def test_from_pretrained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two functions of huggingface_hub, on a folder: their arguments, and the opened file."""
    import shutil
    import types

    hub = tmp_path / "hub" / "me" / "toy" / "sub"
    hub.mkdir(parents=True)
    shutil.copy(model_path("llama"), hub / "toy-Q4_0.gguf")
    (hub / "readme.md").write_text("toy")

    class FileSystem:
        def ls(self, repo: str, recursive: bool) -> list[dict[str, str]]:
            assert recursive
            found = (tmp_path / "hub" / repo).rglob("*")
            return [
                {"name": str(one.relative_to(tmp_path / "hub"))} for one in found if one.is_file()
            ]

    def download(*, repo_id: str, filename: str, local_dir: Any, cache_dir: Any) -> str:
        return str(tmp_path / "hub" / repo_id / filename)

    fake: Any = types.ModuleType("huggingface_hub")
    fake.HfFileSystem, fake.hf_hub_download = FileSystem, download
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    with llama_cpp.Llama.from_pretrained("me/toy", "*Q4_0.gguf", n_ctx=64, n_threads=1) as llm:
        assert llm.n_ctx() == 64
    for pattern, words in (("*", "several"), ("*.bin", "no file")):
        with pytest.raises(ArgumentError, match=words):
            llama_cpp.Llama.from_pretrained("me/toy", pattern)
    with pytest.raises(ModelLoadError):
        llama_cpp.Llama.from_pretrained("me/toy", "*.md")
