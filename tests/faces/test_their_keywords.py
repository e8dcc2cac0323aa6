"""llama-cpp-python's keywords and values: used as given, or refused by name."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyllama_spec.llama_cpp as llama_cpp
from pyllama_spec import ArgumentError, Llama, UnsupportedError
from tests.faces.tools import GREEDY, PROMPT, open_tiny, text_of
from tests.models import model_path

# With what they are there by default, or with what changes nothing.
NEUTRAL: dict[str, Any] = {
    "logits_all": True, "embedding": False, "vocab_only": False, "lora_path": None,
    "lora_base": None, "lora_scale": 1.0, "kv_overrides": None, "chat_handler": None,
    "tokenizer": None, "draft_model": None, "numa": False, "no_perf": True, "op_offload": True,
    "swa_full": None, "yarn_ext_factor": -1.0, "yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0, "yarn_orig_ctx": 0, "spm_infill": False, "n_threads_batch": 2,
    "pooling_type": -1, "attention_type": -1, "rope_scaling_type": -1, "split_mode": 1,
    "type_k": 1, "type_v": 1, "flash_attn": False, "tensor_split": None,
}  # fmt: skip
# Its Llama(), as of 0.3.36.
THEIR_KEYWORDS = (
    "model_path n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock "
    "kv_overrides seed n_ctx n_batch n_ubatch n_threads n_threads_batch rope_scaling_type "
    "pooling_type attention_type rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor "
    "yarn_beta_fast yarn_beta_slow yarn_orig_ctx logits_all embedding offload_kqv flash_attn "
    "op_offload swa_full no_perf last_n_tokens_size lora_base lora_scale lora_path numa "
    "chat_format chat_handler draft_model tokenizer type_k type_v spm_infill verbose"
)
# Its requests, in their positional order.
THEIR_COMPLETION = (
    "prompt suffix max_tokens temperature top_p min_p typical_p logprobs echo stop "
    "frequency_penalty presence_penalty repeat_penalty top_k stream seed tfs_z mirostat_mode "
    "mirostat_tau mirostat_eta model stopping_criteria logits_processor grammar logit_bias"
)
THEIR_CHAT = (
    "messages functions function_call tools tool_choice temperature top_p top_k min_p typical_p "
    "stream stop seed response_format max_tokens presence_penalty frequency_penalty "
    "repeat_penalty tfs_z mirostat_mode mirostat_tau mirostat_eta model logits_processor grammar "
    "logit_bias logprobs top_logprobs"
)


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_signatures_are_theirs_first() -> None:
    for function, theirs in (
        (Llama.__init__, THEIR_KEYWORDS), (Llama.create_completion, THEIR_COMPLETION),
        (Llama.__call__, THEIR_COMPLETION), (Llama.create_chat_completion, THEIR_CHAT),
    ):  # fmt: skip
        assert parameters(function)[: len(theirs.split())] == theirs.split()


def test_who_overrides_create_completion_means_calls_too() -> None:
    class Counting(Llama):
        n_calls = 0

        def create_completion(self, *options: Any, **more: Any) -> Any:
            self.n_calls += 1
            return super().create_completion(*options, **more)

    with Counting(model_path("llama"), n_ctx=64, n_threads=1) as llm:
        by_place: Any = llm(PROMPT, None, 3, temperature=0.0)
        text = text_of(by_place)
        assert llm.n_calls == 1
        assert text_of(llm.create_completion(PROMPT, max_tokens=3, temperature=0.0)) == text
        assert llm.n_calls == 2


def test_neutral_keywords_change_nothing() -> None:
    with open_tiny() as plain:
        expected = text_of(plain(PROMPT, max_tokens=12, **GREEDY))
    with open_tiny(**NEUTRAL) as llm:
        assert text_of(llm(PROMPT, max_tokens=12, **GREEDY)) == expected
        assert llm.context_params.n_threads_batch == 2
        assert llm.no_perf is True


def test_unknown_keywords_warn_and_unknown_options_raise() -> None:
    with pytest.warns(UserWarning, match="did you mean n_ctx"):
        open_tiny(n_ctxx=3).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_tiny(f16_kv=True, n_parts=-1).close()  # of old versions
    with pytest.warns(UserWarning, match="numa") as warned:
        open_tiny(numa=1).close()
    assert Path(warned[0].filename).name == "tools.py"  # whose call of Llama() it is
    with open_tiny() as llm, pytest.raises(ArgumentError, match="temperature"):
        llm(PROMPT, temprature=0.0)


def test_a_models_seed_begins_a_stream_and_a_requests_gives_its_text() -> None:
    hot: dict[str, Any] = {"temperature": 2.0, "max_tokens": 12, "top_k": 0, "min_p": 0.0}
    with open_tiny(seed=5) as llm:
        texts = [text_of(llm(PROMPT, **hot)) for _ in range(3)]
        assert len(set(texts)) == 3
        llm.set_seed(5)
        assert [text_of(llm(PROMPT, **hot)) for _ in range(3)] == texts
        own = text_of(llm(PROMPT, seed=7, **hot))
        assert text_of(llm(PROMPT, seed=7, **hot)) == own
        llm.set_seed(5)
        state = llm.save_state()
        assert text_of(llm(PROMPT, **hot)) == texts[0]
        llm.load_state(state)
        assert text_of(llm(PROMPT, **hot)) == texts[0]
    with open_tiny("prompt-lookup", seed=5) as llm:
        assert [text_of(llm(PROMPT, **hot)) for _ in range(3)] == texts


def test_drafts_in_their_form() -> None:
    class Constant(llama_cpp_draft()):  # type: ignore[misc]
        n_calls = 0

        def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
            Constant.n_calls += 1
            assert input_ids.dtype == np.intc
            return np.array([97, 97, 97])

    with open_tiny() as plain:
        expected = text_of(plain([97] * 40, max_tokens=20, **GREEDY))
    for draft in (llama_cpp.LlamaPromptLookupDecoding(2, 5), Constant()):
        with open_tiny(draft_model=draft) as llm:
            found = llm([97] * 40, max_tokens=20, **GREEDY)
            assert text_of(found) == expected
            assert found["speculation"]["drafted"] > 0
    assert Constant.n_calls > 0
    with pytest.raises(ArgumentError):
        open_tiny("prompt-lookup", draft_model=Constant())


def llama_cpp_draft() -> Any:
    from pyllama_spec.llama_cpp.llama_speculative import LlamaDraftModel

    return LlamaDraftModel


def test_vocab_only_and_what_it_refuses() -> None:
    with Llama(model_path("llama"), vocab_only=True) as llm:
        assert llm.detokenize(llm.tokenize(b"abc")) == b"abc"
        assert llm.tokenizer().encode("abc") == llm.tokenize(b"abc", special=True)
        assert llm.n_vocab() == 320
        with pytest.raises(UnsupportedError, match="vocab_only"):
            llm("abc")


def test_kv_overrides() -> None:
    key = "llama.context_length"
    with open_tiny(kv_overrides={key: 128, "general.name": "other"}, n_ctx=0) as llm:
        assert llm.n_ctx() == 128
    longer: dict[str, Any] = {"kv_overrides": {key: 128}, "n_ctx": 256}
    with pytest.warns(UserWarning, match="n_ctx=256 is more than the 128"), open_tiny(**longer):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_tiny(**longer, rope_freq_scale=0.5).close()
    with open_tiny(kv_overrides={"tokenizer.ggml.add_bos_token": False}) as llm:
        assert not llm.model.vocab.adds_bos
