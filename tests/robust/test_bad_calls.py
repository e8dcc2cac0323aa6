"""Every bad call raises one of our exceptions with the reason: no signal, hang, or print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest

from pyllama_spec import Llama, errors
from pyllama_spec.errors import CancelledError, ConversionError, ForkedError, PyllamaSpecError
from pyllama_spec.requests.options import RequestOptions

from .cases_fuzz import ARCHS, N_FLIPS
from .harness import Case, Outcome, cases_of, run_module

MODULES = (
    "cases_files", "cases_dflash", "cases_alike", "cases_blocks", "cases_decode", "cases_state",
    "cases_sampling", "cases_llama", "cases_cli",
)  # fmt: skip
FUZZ = ("cases_fuzz", "cases_heads")
TABLE = [(module, case) for module in MODULES for case in cases_of(module)]
FUZZ_TABLE = [(module, case) for module in FUZZ for case in cases_of(module)]

_HERE = Path(__file__).parent
# Errors that have tests of their own: of conversion, interruptions, and forks.
_ELSEWHERE = (ConversionError, CancelledError, ForkedError)

Running = dict[str, Future[dict[str, Outcome]]]


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The modules that the session's tests need, two at a time: the test machine has two cores."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["module"] for item in items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(2) as pool:
        order = [module for module in (*FUZZ, *MODULES) if module in wanted]
        yield {module: pool.submit(run_module, module) for module in order}


def _ids(table: list[tuple[str, Case]]) -> list[str]:
    return [f"{module.removeprefix('cases_')}-{case.name}" for module, case in table]


@pytest.mark.parametrize(("module", "case"), TABLE, ids=_ids(TABLE))
def test_bad_call(running: Running, module: str, case: Case) -> None:
    outcome = running[module].result()[case.name]
    assert outcome.problem() is None
    if case.raises is None:
        assert outcome.kinds == ()
        return
    assert outcome.kinds, "nothing was raised"
    assert case.raises.__name__ in outcome.kinds, outcome.message
    for part in case.says:
        assert part in outcome.message


@pytest.mark.parametrize(("module", "case"), FUZZ_TABLE, ids=_ids(FUZZ_TABLE))
def test_damaged_file(running: Running, module: str, case: Case) -> None:
    """A flipped byte may be harmless; the generated text then ends as usual."""
    outcome = running[module].result()[case.name]
    assert outcome.problem() is None


# What cannot be given wrongly: the paths of files have cases of their own names, and any value of
# `verbose` is true or false.
_WITHOUT_CASES = {"model_path", "verbose", "unknown", "return"}
# Odd values of these are thrown by tests/unit/test_arguments.py alone.
_THROWN = {
    "attention_type", "lora_base", "lora_scale", "n_threads_batch", "no_perf", "numa", "op_offload",
    "spm_infill", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_ext_factor",
    "yarn_orig_ctx", "grammar_prefill", "grammar_trigger_tokens", "penalize_prompt",
    "thought_is_open", "thought_tags", "thought_close", "grammar_skips_thoughts",
}  # fmt: skip


def _without_a_case(faces: Iterable[str]) -> set[str]:
    """The names without a case."""
    sources = "".join((_HERE / f"{module}.py").read_text(encoding="utf-8") for module in MODULES)
    return {name for name in faces if not re.search(rf"\b{name}\b", sources)}


def test_everything_that_users_give_has_a_case() -> None:
    known = _WITHOUT_CASES | _THROWN
    assert _without_a_case(set(Llama.__init__.__annotations__) - known) == set()
    assert _without_a_case({field.name for field in fields(RequestOptions)} - known) == set()


def test_every_error_of_the_engine_is_met() -> None:
    met = {case.raises for _, case in TABLE if case.raises is not None}
    assert {kind for kind in _kinds() if not issubclass(kind, _ELSEWHERE)} <= met


def _kinds() -> list[type[PyllamaSpecError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PyllamaSpecError)
    ]


def test_each_part_of_a_file_is_damaged() -> None:
    """Keys, the texts of tokens, and weights, for each kind of model."""
    names = [case.name for _, case in FUZZ_TABLE]
    for arch in ARCHS:
        assert sum(name.startswith(f"{arch}_") for name in names) == N_FLIPS


def test_command_ends_with_its_exit_code(tmp_path: Path) -> None:
    """The program's own exit code, as the shell sees it."""
    for words, code in ((["generate", "-m", str(tmp_path / "no.gguf"), "-p", "a"], 1), ([], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "pyllama_spec.cli", *words],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"NO_COLOR": "1"},
            timeout=300,
        )
        assert done.returncode == code
        assert "Traceback" not in done.stderr
