"""Models and seeds for the targets of csrc/fuzz.

    python -m tests.fuzz.corpus FOLDER

FOLDER/models gets two models, and FOLDER/TARGET the seeds for libFuzzer.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyllama_spec.constraints import JSON_OBJECT
from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.framing import HEADER_BYTES
from tests.robust.tools import batch_of, tiny

TARGETS = ("grammar", "state", "chat")
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


def write(folder: Path) -> None:
    """Writes all of it."""
    models = folder / "models"
    for name in (*TARGETS, "models"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny("llama"), models / "gpt2.gguf")
    shutil.copy(tiny("qwen35"), models / "hybrid.gguf")
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


if __name__ == "__main__":
    write(Path(sys.argv[1]))
