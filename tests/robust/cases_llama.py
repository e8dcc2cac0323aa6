"""Llama used wrongly, and what it says of the text that was generated before a failure."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pyllama_spec import Llama
from pyllama_spec.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    ContextFullError,
    EngineError,
    ModelLoadError,
    OutOfMemoryError,
    PyllamaSpecError,
    QueueFullError,
    RemoteError,
    SchemaError,
    UnknownKeywordError,
    UnsupportedError,
)

from .harness import CaseList
from .tools import N_VOCAB, tiny, with_key, written

CASES = CaseList()

_NAN = float("nan")


def _any(value: Any) -> Any:
    """A value of the wrong type, as mypy may not see it."""
    return value


Call = Callable[[Path], object]


def llama(**options: Any) -> Llama:
    return Llama(tiny(), **{"n_ctx": 64, "n_threads": 2, **options})


def _open(**options: Any) -> Call:
    return lambda _: llama(**options)


CASES.table(
    "llama",
    {
        "n_ctx_0": (_open(n_ctx=0), None, ""),
        "n_ctx_negative": (_open(n_ctx=-1), ArgumentError, "or None (of Llama() also 0)"),
        "n_ctx_billion": (_open(n_ctx=10**9), OutOfMemoryError, "for 1000000000 tokens"),
        "lora_missing": (lambda f: llama(lora_path=f / "no.gguf"), ModelLoadError, "no.gguf"),
        "lora_is_a_model": (_open(lora_path=tiny("qwen3")), ModelLoadError, "adapter"),
        "kv_overrides_of_shapes": (
            _open(kv_overrides={"llama.block_count": 99}), ArgumentError, "llama.block_count",
        ),
        "kv_half_text": (_open(kv_overrides={"general.name": "\ud800"}), ArgumentError, "half of"),
        "kv_half_key": (_open(kv_overrides={"tokenizer.ggml.\ud800": 1}), ArgumentError, "half of"),
        "kv_overrides_of_no_type": (
            _open(kv_overrides={"llama.context_length": None}), ArgumentError, "context_length",
        ),
        "draft_model": (_open(draft_model=5), ArgumentError, "draft_model=5"),
        "tokenizer": (_open(tokenizer=5), UnsupportedError, "tokenizer=5"),
        "chat_handler": (_open(chat_handler=5), ArgumentError, "chat_handler=5"),
        "logits_all": (_open(logits_all=3), ArgumentError, "logits_all"),
        "pooling_type": (_open(pooling_type=9), ArgumentError, "pooling_type=9"),
        "pooling_name": (_open(pooling_type="avg"), ArgumentError, "pooling_type='avg'"),
        "missing_model": (lambda f: Llama(f / "no.gguf"), ModelLoadError, "does not exist"),
        "encoder": (lambda _: Llama(tiny("bert")), UnsupportedError, "encoder"),
        "draft_missing": (lambda f: llama(draft=f / "no.gguf"), ModelLoadError, "no.gguf"),
        "draft_misspelt": (_open(draft="prompt-look"), ArgumentError, "prompt-lookup"),
        "draft_of_wrong_kind": (_open(draft=tiny("bert")), ArgumentError, "(bert)"),
        "draft_no_gguf": (
            lambda f: llama(draft=written(f, b"PK" * 99)), ModelLoadError, "not a GGUF",
        ),
        "draft_int": (_open(draft=5), ArgumentError, "draft=5"),
        "n_draft_negative": (_open(draft="prompt-lookup", n_draft=-1), ArgumentError, "-1"),
        "acceptance": (_open(acceptance="rejection"), ArgumentError, "acceptance='rejection'"),
        "acceptance_none": (_open(acceptance=None), ArgumentError, "acceptance=None"),
        "n_draft_text": (_open(draft="prompt-lookup", n_draft="x"), ArgumentError, "'x'"),
        "seed_text": (_open(seed="x"), ArgumentError, "'x'"),
        "seed_huge": (_open(seed=2**40), ArgumentError, str(2**40)),
        "chat_format": (_open(chat_format="alpaca-9"), PyllamaSpecError, "alpaca-9"),
        "chat_format_int": (_open(chat_format=3), ArgumentError, "not 3"),
        "chat_template": (_open(chat_template="{% for %}"), PyllamaSpecError, "template"),
        "chat_template_int": (_open(chat_template=3), ArgumentError, "not 3"),
        "p_min_without_a_file": (_open(p_min=0.5), ArgumentError, "p_min"),
        "lookup_without_a_file": (_open(lookup=3), ArgumentError, "lookup"),
        "n_parallel_0": (_open(n_parallel=0), ArgumentError, "n_parallel=0"),
        "n_parallel_text": (_open(n_parallel="8"), ArgumentError, "n_parallel='8'"),
        "n_parallel_huge": (_open(n_parallel=10**6), ArgumentError, "n_parallel=1000000"),
        "n_batch": (_open(n_batch=0), ArgumentError, "n_batch=0"),
        "n_ubatch": (_open(n_ubatch=-1), ArgumentError, "n_ubatch=-1"),
        "n_gpu_layers": (_open(n_gpu_layers="all"), ArgumentError, "n_gpu_layers='all'"),
        "devices": (_open(devices=["no such"]), ArgumentError, "no device 'no such'"),
        "draft_gpu_layers": (
            _open(draft=tiny("eagle3", target_layers=(0, 1, 2)), draft_gpu_layers="all"),
            ArgumentError, "n_gpu_layers='all'",
        ),
        "draft_memory_empty": (
            _open(draft="suffix", draft_memory=""), ArgumentError, 'draft_memory=""',
        ),
        "draft_memory_folder": (
            _open(draft="suffix", draft_memory=tempfile.gettempdir()), PyllamaSpecError, "",
        ),
        "draft_n_ctx_0": (
            _open(draft=tiny("llama"), draft_n_ctx=0), ArgumentError, "draft_n_ctx=0",
        ),
        "draft_n_ctx_text": (
            _open(draft=tiny("llama"), draft_n_ctx="all"), ArgumentError, "draft_n_ctx='all'",
        ),
        "rpc_servers": (_open(rpc_servers=["nowhere"]), ArgumentError, "rpc_servers"),
        "rpc_servers_unreachable": (
            _open(rpc_servers=["127.0.0.1:1"], n_gpu_layers=-1), RemoteError, "127.0.0.1:1",
        ),
        "rpc_timeout": (
            _open(rpc_servers=["127.0.0.1:1"], n_gpu_layers=-1, rpc_timeout="long"),
            ArgumentError, "rpc_timeout='long'",
        ),
        "main_gpu": (_open(main_gpu=None), ArgumentError, "main_gpu=None"),
        "split_mode": (_open(split_mode="x"), ArgumentError, "'x'"),
        "tensor_split": (_open(tensor_split=[-1.0]), ArgumentError, "tensor_split"),
        "flash_attn": (_open(flash_attn="on"), ArgumentError, "flash_attn='on'"),
        "type_k": (_open(type_k="q9"), ArgumentError, "type_k='q9'"),
        "type_k_of_4300_digits": (_open(type_k=10**4300), ArgumentError, "type_k"),
        "type_v": (_open(type_v=16), ArgumentError, "type_v=16"),
        "rope_freq_base": (_open(rope_freq_base=-1.0), ArgumentError, "rope_freq_base"),
        "rope_freq_scale": (_open(rope_freq_scale="x"), ArgumentError, "rope_freq_scale"),
        "rope_scaling_type": (_open(rope_scaling_type="x"), ArgumentError, "rope_scaling_type='x'"),
        "split_mode_number": (_open(split_mode=7), ArgumentError, "split_mode=7"),
        "offload_kqv": (_open(offload_kqv="yes"), ArgumentError, "offload_kqv='yes'"),
        "swa_full": (_open(swa_full=3), ArgumentError, "swa_full=3"),
        "use_mmap": (_open(use_mmap=3), ArgumentError, "use_mmap"),
        "use_mlock": (_open(use_mlock="yes"), ArgumentError, "use_mlock"),
        "last_n_tokens_size": (
            _open(last_n_tokens_size=-2), ArgumentError, "last_n_tokens_size=-2",
        ),
    },
)  # fmt: skip


def _complete(prompt: Any = "Hello", **options: Any) -> Call:
    return lambda _: llama().create_completion(prompt, **options)


def _chat(messages: Any, **options: Any) -> Call:
    return lambda _: llama().create_chat_completion(messages, **options)


_USER = {"role": "user", "content": "a"}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _deep(n: int) -> dict[str, Any]:
    """A schema that is nested n times."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


CASES.table(
    "request",
    {
        "prompt_too_long": (_complete("x" * 500), ContextFullError, "n_ctx"),
        "prompt_empty": (_complete([]), ArgumentError, "no tokens"),
        "prompt_none": (_complete(None), ArgumentError, "None"),
        "prompt_int": (_complete(7), ArgumentError, "not 7"),
        "prompt_negative": (_complete([1, -1]), ArgumentError, "-1"),
        "prompt_past_the_last": (_complete([N_VOCAB]), ArgumentError, str(N_VOCAB)),
        "prompt_floats": (_complete([1.5]), ArgumentError, "1.5"),
        "prompt_texts": (_complete(["a"]), None, ""),
        "prompts_mixed": (_complete(["a", 3]), ArgumentError, "prompt 1 of the list"),
        "prompts_none": (_complete(["a", None]), ArgumentError, "not None"),
        "prompts_arrays": (_complete([np.array([28, 29])]), ArgumentError, "token id"),
        "prompts_empty": (_complete(["a", []]), ArgumentError, "no tokens"),
        "prompts_negative": (_complete([[1], [2, -1]]), ArgumentError, "-1"),
        "prompts_deep": (_complete([[1], [[2]]]), ArgumentError, "[2]"),
        "prompts_too_long": (_complete(["a", "x" * 500]), ContextFullError, "shorten prompt 1 of"),
        "prompts_stream": (_complete(["a"], stream=True), UnsupportedError, "one prompt"),
        "max_tokens_text": (_complete(max_tokens="9"), ArgumentError, "max_tokens='9'"),
        "max_tokens_huge": (_complete(max_tokens=2**70), None, ""),
        "unknown_option": (_complete(temprature=1), UnknownKeywordError, "temperature"),
        "temperature_nan": (_complete(temperature=float("nan")), ArgumentError, "temperature=nan"),
        "stop_empty": (_complete(stop=""), ArgumentError, "stop"),
        "stop_int": (_complete(stop=5), ArgumentError, "stop=5"),
        "stop_bytes": (_complete(stop=[b"a"]), ArgumentError, "b'a'"),
        "grammar": (_complete(grammar="root ::= ("), ArgumentError, "grammar"),
        "penalty_last_n": (_complete(penalty_last_n=-2), ArgumentError, "penalty_last_n=-2"),
        "min_keep": (_complete(min_keep=-1), ArgumentError, "min_keep=-1"),
        "typical_p": (_complete(typical_p=-1), ArgumentError, "typical_p=-1"),
        "top_n_sigma": (_complete(top_n_sigma=_NAN), ArgumentError, "top_n_sigma=nan"),
        "frequency_penalty": (
            _complete(frequency_penalty=_NAN), ArgumentError, "frequency_penalty=nan",
        ),
        "presence_penalty": (
            _complete(presence_penalty="x"), ArgumentError, "presence_penalty='x'",
        ),
        "dry_multiplier": (_complete(dry_multiplier=_NAN), ArgumentError, "dry_multiplier=nan"),
        "dry_base": (_complete(dry_base=_NAN), ArgumentError, "dry_base=nan"),
        "dry_allowed_length": (
            _complete(dry_allowed_length=-1), ArgumentError, "dry_allowed_length=-1",
        ),
        "dry_penalty_last_n": (
            _complete(dry_penalty_last_n=-2), ArgumentError, "dry_penalty_last_n=-2",
        ),
        "dry_breakers": (_complete(dry_breakers=3), PyllamaSpecError, "dry_breakers"),
        "xtc_probability": (_complete(xtc_probability=2.0), ArgumentError, "xtc_probability=2.0"),
        "xtc_threshold": (_complete(xtc_threshold=_NAN), ArgumentError, "xtc_threshold=nan"),
        "mirostat_mode": (_complete(mirostat_mode=3), ArgumentError, "mirostat_mode=3"),
        "mirostat_tau": (_complete(mirostat_tau=_NAN), ArgumentError, "mirostat_tau=nan"),
        "mirostat_eta": (_complete(mirostat_eta=_NAN), ArgumentError, "mirostat_eta=nan"),
        "stopping_criteria": (_complete(stopping_criteria=5), ArgumentError, "not 5"),
        "response_format": (_complete(response_format={"type": "x"}), ArgumentError, "'x'"),
        "bias": (_complete(logit_bias={N_VOCAB: 1.0}), ArgumentError, str(N_VOCAB)),
        "logprobs": (_complete(logprobs=-1), ArgumentError, "logprobs=-1"),
        "logprobs_bool": (_complete(logprobs=True), ArgumentError, "give the number of alternat"),
        "temp": (_complete(temp=0.1), ArgumentError, "did you mean temperature?"),
        "processor": (_complete(logits_processor=3), ArgumentError, "3"),
        "processor_none": (
            _complete(logits_processor=lambda ids, row: None), ArgumentError, "returned None; ret",
        ),
        "tfs_z": (_complete(tfs_z=0.5), UnsupportedError, "tfs_z=0.5"),
        "repeat_penalty_0": (_complete(repeat_penalty=0), ArgumentError, "repeat_penalty"),
        "no_answers": (_complete(n=0), ArgumentError, "n=0"),
        "min_tokens": (_complete(min_tokens=-1), ArgumentError, "min_tokens=-1"),
        "max_completion_tokens": (
            _complete(max_completion_tokens=1.5), ArgumentError, "max_completion_tokens=1.5",
        ),
        "ignore_eos": (_complete(ignore_eos=3), ArgumentError, "ignore_eos=3"),
        "stop_token_ids": (_complete(stop_token_ids=[-1]), ArgumentError, "-1"),
        "bad_words": (_complete(bad_words=[""]), ArgumentError, "every text"),
        "keep_stop": (_complete(include_stop_str_in_output=3), ArgumentError, "=3"),
        "thinking_token_budget": (
            _complete(thinking_token_budget=5), UnsupportedError, "thinking_token_budget=5",
        ),
        "reasoning_effort": (_complete(reasoning_effort="x"), ArgumentError, "'x'"),
        "continue_final_message": (_complete(continue_final_message=3), ArgumentError, "=3"),
        "add_generation_prompt": (_complete(add_generation_prompt=3), ArgumentError, "=3"),
        "return_token_ids": (_complete(return_token_ids=3), ArgumentError, "=3"),
        "return_token_sources": (
            _complete(return_token_sources=3), ArgumentError, "return_token_sources=3",
        ),
        "request_acceptance": (_complete(acceptance="x"), ArgumentError, "acceptance='x'"),
        "remember": (_complete(remember=3), ArgumentError, "remember=3"),
        "prediction": (_complete(prediction=3), ArgumentError, "prediction must be"),
        "stream_options": (_complete(stream_options=3), ArgumentError, "stream_options=3"),
        "user": (_complete(user=3), ArgumentError, "user must be a str"),
        "context_shift": (_complete(context_shift=3), ArgumentError, "context_shift=3"),
        "n_keep": (_complete(n_keep=-2), ArgumentError, "n_keep=-2"),
        "schema_no_dict": (
            _complete(response_format={"type": "json_object", "schema": 3}), ArgumentError, "3",
        ),
        "schema_missing": (
            _complete(response_format={"type": "json_schema"}), ArgumentError, "schema",
        ),
        "schema_unknown": (
            _complete(response_format={"type": "json_object", "schema": {"type": "no"}}),
            SchemaError, "type",
        ),
        "schema_deep": (
            _complete(response_format={"type": "json_object", "schema": _deep(500)}),
            ArgumentError, "nested",
        ),
        "schema_deeper": (
            _complete(response_format={"type": "json_object", "schema": _deep(100000)}),
            ArgumentError, "JSON",
        ),
        "tools_text": (_chat([_USER], tools="x"), ArgumentError, "tools='x'"),
        "tools_no_name": (_chat([_USER], tools=[{"type": "function"}]), ArgumentError, "function"),
        "tool_choice": (
            _chat([_USER], tools=[_TOOL], tool_choice="g"), ArgumentError, "names no function",
        ),
        "tool_choice_without_tools": (
            _chat([_USER], tool_choice="required"), ArgumentError, "needs tools",
        ),
        "reasoning_format": (_chat([_USER], reasoning_format="x"), ArgumentError, "'x'"),
        "embed_without": (lambda _: llama().embed("a"), UnsupportedError, "embedding=True"),
        "embed_float": (
            lambda _: llama(embedding=True, pooling_type="mean").embed(_any([3.5])),
            ArgumentError, "3.5",
        ),
        "eval_too_long": (lambda _: llama().eval([28] * 65), ContextFullError, "reset"),
        "eval_id": (lambda _: llama().eval([N_VOCAB]), ArgumentError, str(N_VOCAB)),
        "sample_first": (lambda _: llama().sample(), ArgumentError, "eval"),
        "generate_too_long": (
            lambda _: list(llama().generate([28] * 64)), ContextFullError, "prompt alone",
        ),
        "cache": (lambda _: llama().set_cache(_any({})), ArgumentError, "cache"),
        "suffix": (_complete(suffix="x"), UnsupportedError, "fill"),
        "messages_text": (_chat("hello"), ArgumentError, "messages"),
        "messages_empty": (_chat([]), ArgumentError, "messages"),
        "messages_no_role": (_chat([{"content": "a"}]), ArgumentError, "role"),
        "messages_image": (
            _chat([{"role": "user", "content": [{"type": "image_url"}]}]), UnsupportedError, "text",
        ),
        "template_that_fails": (
            lambda _: llama(chat_template="{{ 1 / 0 }}").create_chat_completion(
                [{"role": "user", "content": "a"}]
            ),
            PyllamaSpecError, "template",
        ),
        "template_that_escapes": (
            lambda _: llama(
                chat_template="{{ messages.__class__.__mro__[1].__subclasses__() }}"
            ).create_chat_completion([{"role": "user", "content": "a"}]),
            PyllamaSpecError, "template",
        ),
    },
)  # fmt: skip


def _partial(act: Callable[[], object]) -> None:
    """Passes on what an exception holds of the text so far, as a message to look at."""
    try:
        act()
    except PyllamaSpecError as error:
        raise type(error)(f"{error.partial_text!r} {tuple(error.partial_tokens)!r}") from error


def _stuck(**options: Any) -> dict[str, Any]:
    """Options of a request that fails after "ab": its grammar ends, and no end token may come."""
    probe = llama()
    vocab = probe._runtime.model.vocab
    ends = {i: float("-inf") for i in range(N_VOCAB) if vocab.is_eog(i)}
    probe.close()
    return {"grammar": 'root ::= "ab"', "logit_bias": ends, "temperature": 0, **options}


@CASES.add(EngineError, "'ab'", "(97, 98)")
def partial_text_of_a_completion(folder: Path) -> None:
    options = _stuck()
    _partial(lambda: llama().create_completion("x", **options))


@CASES.add(EngineError, "'ab'", "(97, 98)")
def partial_text_of_a_draft(folder: Path) -> None:
    options = _stuck()
    _partial(lambda: llama(draft="prompt-lookup").create_completion("abababababab", **options))


@CASES.add(EngineError, "'ab'", "(97, 98)")
def partial_text_of_a_stream(folder: Path) -> None:
    options = _stuck(stream=True)
    _partial(lambda: list(llama().create_completion("x", **options)))


@CASES.add(EngineError, "NaN")
def nan_model(folder: Path) -> None:
    broken = Llama(with_key(folder, "rope.freq_base", float("nan")), n_ctx=64, n_threads=2)
    broken.create_completion("Hello there", temperature=0.8)


@CASES.add(None)
def usable_after_a_failure(folder: Path) -> None:
    model, fresh = llama(), llama()
    for bad in ({"grammar": "root ::= ("}, _stuck(), {"stop": ""}):
        try:
            model.create_completion("abc", **bad)
        except PyllamaSpecError:
            continue
        raise AssertionError(bad)
    want = fresh.create_completion("abc", temperature=0, max_tokens=8)
    got = model.create_completion("abc", temperature=0, max_tokens=8)
    assert got["choices"] == want["choices"]


@CASES.add(None)
def context_filled_to_the_last_cell(folder: Path) -> None:
    for n_draft in (0, 1, 7, 32):
        result = llama(draft="prompt-lookup", n_draft=n_draft).create_completion(
            "ab" * 20, max_tokens=None, temperature=0
        )
        assert result["choices"][0]["finish_reason"] == "length"
        assert result["usage"]["total_tokens"] in (64, 65)


@CASES.add(ClosedError, "closed")
def closed(folder: Path) -> None:
    model = llama()
    model.close()
    model.close()
    model.create_completion("a")


@CASES.add(ClosedError, "closed")
def closed_under_a_stream(folder: Path) -> None:
    model = llama()
    stream = iter(model.create_completion("a", max_tokens=40, stream=True))
    next(stream)
    model.close()
    list(stream)


@CASES.add(None)
def second_request_beside_a_stream(folder: Path) -> None:
    model = llama()
    stream = iter(model.create_completion("a", max_tokens=40, stream=True))
    next(stream)
    model.create_completion("b")
    assert len(list(stream)) > 1


@CASES.add(ArgumentError, "prefix_cache_bytes=-1")
def prefix_cache_bytes(_: Path) -> None:
    llama(prefix_cache_bytes=-1)


@CASES.add(ArgumentError, "max_waiting=-1")
def a_line_of_no_length(folder: Path) -> None:
    llama(max_waiting=-1)


@CASES.add(ArgumentError, "timeout_s=-1")
def an_end_before_the_beginning(folder: Path) -> None:
    llama().create_completion("a", timeout_s=-1)


@CASES.add(QueueFullError, "max_waiting=0")
def one_request_more_than_may_wait(folder: Path) -> None:
    model, refused = llama(max_waiting=0), threading.Event()

    def hold(ids: Any, row: Any) -> Any:
        refused.wait(60)
        return row

    stream = model.create_completion("a", max_tokens=2, stream=True, logits_processor=hold)
    stream.start()
    try:
        model.create_completion("b")
    finally:
        refused.set()
        stream.abort()


@CASES.add(BusyError, "callback")
def a_request_in_a_callback(folder: Path) -> None:
    model = llama()
    model.create_completion("a", logits_processor=lambda ids, row: model.create_completion("b"))


@CASES.add(None)
def eight_threads_take_turns(folder: Path) -> None:
    model = llama(n_ctx=128)
    want = model.create_completion("abc", temperature=0, max_tokens=8)["choices"]
    wrong: list[object] = []

    def ask() -> None:
        for _ in range(10):
            try:
                got = model.create_completion("abc", temperature=0, max_tokens=8)["choices"]
            except Exception as error:  # noqa: BLE001 - any of them is a failure
                wrong.append(error)
                return
            if got != want:
                wrong.append(got)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@CASES.add(None)
def closed_while_others_wait(folder: Path) -> None:
    model = llama(n_ctx=2048)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            model.create_completion("abc", max_tokens=2000)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    model.close()
    for thread in threads:
        thread.join()
    assert all(isinstance(error, PyllamaSpecError) for error in errors), errors
