"""Models and seeds for the targets of csrc/fuzz.

    python -m tests.fuzz.corpus FOLDER

FOLDER/models gets a vocabulary of each kind, and models for saved states; FOLDER/TARGET the seeds
that libFuzzer begins with. What once crashed lies in tests/fuzz/crashes/TARGET and is copied there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyllama_spec.engine import Context, Model
from pyllama_spec.engine.framing import HEADER_BYTES
from pyllama_spec.generation.json_grammar import JSON_OBJECT
from tests.fuzz.architectures import first_header, tokenizer
from tests.fuzz.gguf_bytes import GgufFile, Value
from tests.robust.tools import batch_of, tiny

_CRASHES = Path(__file__).parent / "crashes"
TARGETS = ("file", "text", "grammar", "state")
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


def _vocabulary(kind: str, pre: str) -> GgufFile:
    file = GgufFile({"general.architecture": Value("str", "llama"), **tokenizer(kind)})
    file.keys["tokenizer.ggml.pre"] = Value("str", pre)
    if kind != "gpt2":
        texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
        texts += [*"abcdefghijklmnopqrstuvwxyz \u2581", "\u2581the", "he", "##ed", "ing"]
        n = len(texts)
        types = [2, 3, 3, *([6] * 256), *([1] * (n - 259))]
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
