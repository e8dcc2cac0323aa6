"""Command lines of llama-server, and their meaning here."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from pyllama_spec.errors import ArgumentError
from pyllama_spec.llama.open_options import OpenOptions
from pyllama_spec.server import llama_server
from pyllama_spec.server.llama_server import FLAGS, IDLE, is_idle
from pyllama_spec.server.models import Keys

# The values that an option's function takes.
_TAKES = re.compile(r"\]\s*\(\s*common_params\s*&[^,)]*((?:,[^,)]*)*)\)")
_SOURCE = Path(__file__).parents[2] / "vendor/llama.cpp/common/arg.cpp"
_EAGLE3 = (
    "-m t.gguf -md e.gguf --spec-type draft-eagle3 --spec-draft-n-max 4 --spec-draft-p-min 0.5 "
    "-c 8192 -np 1 -ngl 99 -fa on --port 8081 --jinja --temp 0"
)
_OVERRIDES = "-m t.gguf --override-kv a.b=int:4 --override-kv c=bool:true,d=str:x"
# As they stand in pull requests and pages.
_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": (
        _EAGLE3,
        {"model_path": "t.gguf", "draft": "e.gguf", "n_draft": 4, "p_min": 0.5, "n_ctx": 8192,
         "n_parallel": 1, "n_gpu_layers": 99, "flash_attn": True},
    ),
    "mtp": ("-m t.gguf --spec-type draft-mtp --draft-max 3 -ngl all -fa auto",
            {"draft": "mtp", "n_draft": 3, "n_gpu_layers": -1, "flash_attn": None}),
    "simple": ("-m t.gguf -md d.gguf --draft 16 --draft-min 1 -ngld 99",
               {"draft": "d.gguf", "n_draft": 16, "draft_gpu_layers": 99}),
    "ngram": ("-m t.gguf --spec-type ngram-mod --spec-ngram-mod-n-match 24",
              {"draft": "prompt-lookup"}),
    "none": ("-m t.gguf -md e.gguf --spec-type none", {"draft": None}),
    "slots": ("-m t.gguf -c 4096 -np 4", {"n_ctx": 1024, "n_parallel": 4}),
    "shared": ("-m t.gguf -c 4096 -np 4 -kvu", {"n_ctx": 4096, "n_parallel": 4}),
    "own length": ("-m t.gguf -c 0 -np 2", {"n_ctx": 0, "n_parallel": 2}),
    "cache": ("-m t.gguf -ctk q8_0 -ctv f16 -cram 256 -t 2 -tb 4 -b 128 -ub 64 --no-mmap --mlock",
              {"type_k": "q8_0", "type_v": "f16", "prefix_cache_bytes": 256 << 20, "n_threads": 2,
               "n_threads_batch": 4, "n_batch": 128, "n_ubatch": 64, "use_mmap": False,
               "use_mlock": True}),
    "places": ("-m t.gguf -dev CUDA0,CUDA1 -ts 3,1 -sm row -mg 1 --rpc a:1,b:2",
               {"devices": ["CUDA0", "CUDA1"], "tensor_split": [3, 1], "split_mode": "row",
                "main_gpu": 1, "rpc_servers": ["a:1", "b:2"]}),
    "overrides": (_OVERRIDES,
                  {"kv_overrides": {"a.b": 4, "c": True, "d": "x"}}),
    "pictures": ("-m t.gguf -mm p.gguf --no-mmproj-offload --image-max-tokens 512",
                 {"mmproj_path": Path("p.gguf"), "mmproj_offload": False, "image_max_tokens": 512}),
    "pictures beside": ("-m t.gguf --mmproj-auto", {"mmproj_path": "auto"}),
    "no pictures": ("-m t.gguf --mmproj p.gguf --no-mmproj", {"mmproj_path": None}),
    "ranks": ("-m t.gguf --reranking", {"embedding": True, "pooling_type": "rank"}),
    "template": ("-m t.gguf --chat-template llama3", {"chat_format": "llama-3"}),
    "own template": ("-m t.gguf --chat-template {{messages}}", {"chat_template": "{{messages}}"}),
}  # fmt: skip


@pytest.mark.parametrize("name", _LINES)
def test_a_line_of_llama_server(name: str) -> None:
    line, expected = _LINES[name]
    meant = llama_server.plan(line.split(), {})
    assert {key: meant.keywords[key] for key in expected} == expected
    OpenOptions.from_keywords("t.gguf", {k: v for k, v in meant.keywords.items()
                                         if k != "model_path"})  # fmt: skip


def test_what_requests_get_where_they_do_not_say() -> None:
    line = (
        "-m t.gguf -n 64 --temp 0.5 -s 42 --top-k 9 --repeat-last-n 32 --ignore-eos --keep 4 "
        "--context-shift --reasoning-budget 100 --alias m,n --no-slots --metrics --no-webui"
    )
    settings = llama_server.plan(line.split(), {}).settings
    assert settings.defaults == {
        "max_tokens": 64, "temperature": 0.5, "seed": 42, "top_k": 9, "penalty_last_n": 32,
        "ignore_eos": True, "n_keep": 4, "context_shift": True,
    }  # fmt: skip
    assert settings.chat_defaults == {"reasoning_format": "auto", "thinking_token_budget": 100}
    assert (settings.alias, *settings.aliases) == ("m", "n")
    assert (settings.has_slots, settings.has_metrics) == (False, True)
    assert not settings.has_page
    off = ["-m", "t.gguf", "--reasoning", "off"]
    assert llama_server.plan(off, {}).settings.chat_defaults["reasoning_effort"] == "none"
    plain = llama_server.plan(["-m", "t.gguf"], {}).settings
    assert plain.defaults == {"max_tokens": -1, "temperature": 0.8}


def test_the_environment_counts_where_a_flag_does_not() -> None:
    environment = {
        "LLAMA_ARG_MODEL": "e.gguf", "LLAMA_ARG_CTX_SIZE": "512", "LLAMA_ARG_N_PARALLEL": "1",
        "LLAMA_API_KEY": "k", "LLAMA_ARG_ENDPOINT_METRICS": "1", "LLAMA_ARG_KV_UNIFIED": "off",
    }  # fmt: skip
    meant = llama_server.plan(["-c", "256"], environment)
    assert (meant.keywords["model_path"], meant.keywords["n_ctx"]) == ("e.gguf", 256)
    assert meant.settings.has_metrics
    assert Keys(meant.settings.api_keys).caller_of("k")
    assert Keys(meant.settings.api_keys).caller_of("x") is None


@pytest.mark.parametrize("line, named", [
    ("--port 1", "-m"), ("-m t.gguf -c", "-c"), ("-m t.gguf -c many", "-c"),
    ("-m t.gguf -r \\xff", "-r"), ("-m t.gguf --spec-type draft-eagle3", "-md"),
    ("-m t.gguf --override-kv a=int:x", "--override-kv"),
    ("-m t.gguf -fa perhaps", "-fa"),
    ("-m t.gguf --chat-template-file /no/where", "--chat-template-file"),
    ("-m t.gguf --ssl-key-file k", "--ssl-cert-file"),
    ("-hf ggml-org/x", "-hf"), ("-m t.gguf --models-dir d", "--models"),
    # What each request would be refused for.
    ("-m t.gguf --min-p 7", "--min-p"), ("-m t.gguf -s -9", "-s"),
])  # fmt: skip
def test_a_line_that_is_refused(line: str, named: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(named)):
        llama_server.plan(line.split(), {})


def test_the_table_is_that_of_the_pin() -> None:
    """Each flag is llama-server's, with a value or without one as there."""
    source = _SOURCE.read_text("utf-8")
    by_name = {name: flag for flag in FLAGS for name in flag.names}
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len({*names})
    assert not [name for name in names if is_idle(name)]
    older = {"--mlock", "--mmap", "--no-mmap", "--allowed-hosts", "--media-hosts"}
    for name in {*names, *(one for one in IDLE if "*" not in one)} - older:
        found = re.search(rf'\{{[^{{}}]*"{re.escape(name)}"[^{{}}]*\}},', source)
        assert found is not None, name
        takes = _TAKES.search(source, found.end())
        assert takes is not None
        n = sum("bool" not in one for one in takes[1].split(",") if one.strip())
        assert name in IDLE or n == (by_name[name].value is None), name


@pytest.mark.parametrize("line, variable, value, expected", [
    ("", "LLAMA_ARG_NO_KV_OFFLOAD", "0", ("offload_kqv", False)),  # whatever its value is
    ("", "LLAMA_ARG_KV_OFFLOAD", "off", ("offload_kqv", False)),
    ("-kvo", "LLAMA_ARG_NO_KV_OFFLOAD", "1", ("offload_kqv", True)),
    ("-c 64 -np 4", "LLAMA_ARG_KV_UNIFIED", "on", ("n_ctx", 64)),
    ("-c 64 -np 4", "LLAMA_ARG_NO_KV_UNIFIED", "1", ("n_ctx", 16)),
    ("--ctx_size 64 --n_gpu_layers 3 -np 1", "A", "", ("n_ctx", 64)),
    ("--cache_type-k q8_0 --no_mmap", "A", "", ("type_k", "q8_0")),
    ("--chat-template my_format", "A", "", ("chat_format", "my_format")),  # a value stays
])  # fmt: skip
def test_a_variable_may_switch_off_and_a_flag_may_have_underscores(
    line: str, variable: str, value: str, expected: tuple[str, Any]
) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split()], {variable: value})
    assert meant.keywords[expected[0]] == expected[1]


@pytest.mark.parametrize("flags, meant", [([], "a\n€"), (["--no-escape"], r"a\n\xe2\x82\xac")])
def test_a_reverse_prompt_has_escapes(flags: list[str], meant: str) -> None:
    line = ["-m", "t.gguf", "-r", r"a\n\xe2\x82\xac", *flags, "--reverse-prompt", "END"]
    assert llama_server.plan(line, {}).settings.defaults["stop"] == [meant, "END"]


@pytest.mark.parametrize("line, level, file", [
    ("", logging.INFO, None), ("--log-disable", logging.WARNING, None),
    ("-lv 1", logging.ERROR, None), ("-lv 2", logging.WARNING, None), ("-lv 5", logging.INFO, None),
    ("--log-file a.log --log-verbosity 3", logging.INFO, Path("a.log")),
])  # fmt: skip
def test_what_is_logged_under_their_flags(line: str, level: int, file: Path | None) -> None:
    meant = llama_server.plan(["-m", "t.gguf", *line.split()], {})
    assert (meant.log_level, meant.log_file) == (level, file)


def test_adapters_and_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    line = f"-m t.gguf --lora a,b --api-key-file {keys} --api-key three,four"
    meant = llama_server.plan(line.split(), {"LLAMA_API_KEY": "five"})
    assert meant.adapters == ["a", "b"]
    known = Keys(meant.settings.api_keys)
    assert all(known.caller_of(key) for key in ("one", "two", "three", "four"))
