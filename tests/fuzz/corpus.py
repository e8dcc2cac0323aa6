"""Models and seeds for the targets of csrc/fuzz.

    python -m tests.fuzz.corpus FOLDER

FOLDER/models gets a vocabulary of each kind, and models for saved states; FOLDER/TARGET the seeds
for libFuzzer. Inputs of earlier crashes are copied from tests/fuzz/crashes/TARGET.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyllama_spec.constraints import JSON_OBJECT
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.framing import HEADER_BYTES
from tests.fuzz.architectures import first_header, tokenizer
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.robust.tools import batch_of, tiny

_CRASHES = Path(__file__).parent / "crashes"
TARGETS = ("file", "text", "grammar", "state", "chat")
# Of csrc/fuzz/fuzz_text.cpp, in its order: name, kind, the way to cut words.
VOCABULARIES = (
    ("gpt2", "gpt2", "gpt-2"), ("llama", "llama", "default"), ("bert", "bert", "default"),
    ("t5", "t5", "default"), ("rwkv", "rwkv", "default"), ("tekken", "gpt2", "tekken"),
    ("deepseek-v3", "gpt2", "deepseek-v3"), ("plamo2", "plamo2", "default"),
)  # fmt: skip
_TEXTS = (
    "Hello, world! 123", "  two  spaces\n\nand\ttabs", "\u4e2d\u6587\uff0c\u6d4b\u8bd5",
    "\u00e9\u00e8\u0301 <|im_end|> <0x41>", "a" * 300, "''s 't 12345678",
)  # fmt: skip
_GRAMMARS = (
    JSON_OBJECT, 'root ::= "a"', 'root ::= [a-z]+ ("b" | "c"){2,5}', "root ::= [^\\n]* #x\nb ::= .",
    'root ::= <|im_end|> a\na ::= "\\x41\\u4e2d" a?',
)  # fmt: skip
# Of csrc/fuzz/fuzz_chat.cpp: schemas, templates, requests, answers.
_CHATS = (
    (0, ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "required": ["a"],'
        ' "$defs": {"b": {"enum": [1, "x", null]}}, "additionalProperties": false}')),
    (0, ('{"type": "array", "minItems": 2, "maxItems": 5, "items": {"type": "string",'
        ' "pattern": "^[a-z]{2,3}(x|y)?$"}}')),
    (0, ('{"anyOf": [{"type": "integer", "minimum": -3, "maximum": 120}, {"const": "\\u4e2d"},'
        ' {"type": "string", "format": "date-time"}, {"allOf": [{"type": "object"}]}]}')),
    (1, ("{%- set ns = namespace(a=[1]) -%}{% for m in messages if m.role != 'x' %}"
        "{{ m['content'][:3] | trim | upper }}{{ loop.index0 }}{% endfor %}"
        "{% macro f(x, y=2) %}{{ x ~ y }}{% endmacro %}{{ f(1) }}{{ tools | tojson(indent=2) }}")),
    (1, ("{% if tools is defined and tools is not none %}<tools>{{ tools[0].function.name }}"
        "{% endif %}{{ raise_exception('no') if messages | length > 9 else 1.5 // 2 }}")),
    (2, ('{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1",'
        ' "type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}]},'
        ' {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a"}]}],'
        ' "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],'
        ' "tool_choice": "required", "parallel_tool_calls": true, "reasoning_format": "deepseek",'
        ' "variables": {"enable_thinking": false}}')),
    (2, '{"messages": [{"role": "user", "content": "a"}], "json_schema": "{}", "grammar": ""}'),
    (3, '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'),
    (7, '<think>a</think><tool_call>{"name": "f", "argu'),
)  # fmt: skip


def _vocabulary(kind: str, pre: str) -> GgufFile:
    file = first_header("llama")
    file.keys |= tokenizer(kind)
    file.keys["tokenizer.ggml.pre"] = Value("str", pre)
    if kind != "gpt2":
        texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
        texts += [*"abcdefghijklmnopqrstuvwxyz \u2581", "\u2581the", "he", "##ed", "ing"]
        n = len(texts)
        byte = 1 if kind == "bert" else 6  # the engine knows no bytes there
        types = [2, 3, 3, *([byte] * 256), *([1] * (n - 259))]
        file.keys["tokenizer.ggml.tokens"] = Value("[str]", texts)
        file.keys["tokenizer.ggml.token_type"] = Value("[i32]", types)
        file.keys["tokenizer.ggml.scores"] = Value("[f32]", [-float(i) for i in range(n)])
        file.keys["tokenizer.ggml.bos_token_id"] = Value("u32", 1)
        file.keys["tokenizer.ggml.eos_token_id"] = Value("u32", 2)
        file.keys["tokenizer.ggml.unknown_token_id"] = Value("u32", 0)
    return file


def write(folder: Path) -> None:
    """Writes all of it."""
    models = folder / "models"
    for name in (*TARGETS, "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, kind, pre in VOCABULARIES:
        _vocabulary(kind, pre).write(models / f"{name}.gguf")
    # Of these the states: "gpt2" has its weights too.
    shutil.copy(tiny("llama"), models / "gpt2.gguf")
    shutil.copy(tiny("qwen35"), models / "hybrid.gguf")
    for arch in ("llama", "qwen35", "gemma3", "mamba2", "bert", "olmo2", "deepseek4", "rwkv6"):
        first_header(arch).write(folder / "file" / arch)
    for name, _, _ in VOCABULARIES:
        shutil.copy(models / f"{name}.gguf", folder / "file" / f"v-{name}")
    for which in range(len(VOCABULARIES)):
        for i, text in enumerate(_TEXTS):
            (folder / "text" / f"{which}-{i}").write_bytes(bytes([which, i % 4]) + text.encode())
    for i, grammar in enumerate(_GRAMMARS):
        (folder / "grammar" / str(i)).write_text(grammar, encoding="utf-8")
    for i, (which, chat) in enumerate(_CHATS):
        (folder / "chat" / str(i)).write_bytes(bytes([which]) + chat.encode())
    for i, arch in enumerate(("llama", "qwen35")):
        with Context(Model(tiny(arch)), n_ctx=64, n_batch=32, n_ubatch=32, n_threads=1) as context:
            context.decode(batch_of([65, 66, 67, 68]))
            state = context.memory.save(0)
            # Behind the seal is what the engine gave.
            (folder / "state" / arch).write_bytes(bytes([i]) + bytes(state[HEADER_BYTES:]))
    for target in TARGETS:
        if (_CRASHES / target).is_dir():
            shutil.copytree(_CRASHES / target, folder / target, dirs_exist_ok=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
