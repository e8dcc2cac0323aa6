"""Reprs at a prompt: file, sizes, draft, open or closed."""

from __future__ import annotations

from pyllama_spec import Llama
from pyllama_spec.engine import Context, Model
from tests.models import model_path


def test_a_model_and_its_context() -> None:
    path = model_path("qwen35")
    with Model(path) as model:
        assert path.name in repr(model) and "qwen35" in repr(model) and "open" in repr(model)
        with Context(model, n_ctx=128, n_seq_max=2, n_rs_seq=3, n_threads=1) as context:
            for part in (path.name, "n_ctx=64", "2 sequences", "n_rs_seq=3", "open"):
                assert part in repr(context)
        assert "closed" in repr(context)
    assert repr(model) == f"<Model '{path.name}', closed>"


def test_a_llama() -> None:
    path = model_path("llama")
    with Llama(str(path), draft="prompt-lookup", n_ctx=64, n_parallel=3) as llm:
        for part in (path.name, "n_ctx=64", "n_parallel=3", "prompt-lookup"):
            assert part in repr(llm)
        stream = llm([1, 2, 3], max_tokens=3, temperature=0.0, stream=True)
        assert repr(stream) == "<Stream: 0 tokens, going on>"
        list(stream)
        assert "ended" in repr(stream)
        assert "tokens" in repr(llm.save_state())
    assert "closed" in repr(llm)
