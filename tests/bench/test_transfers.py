"""The figures of bench for transfers between host and devices."""

from __future__ import annotations

from pathlib import Path

from pyllama_spec.bench import run, table, to_json
from pyllama_spec.bench.figures import Pair
from pyllama_spec.engine import Transfers
from tests.bench.tools import made_up_result, made_up_run, one_prompt, tiny_config

PLAIN = Transfers(8000, 20, 0, 18, 2, 0, 26, 2)
SPEC = Transfers(30_000, 12_345, 600, 60, 9, 3, 90, 15)


def test_it_is_per_round_over_all_texts() -> None:
    plain = made_up_run([(0, 0)] * 2, 1.0, transfers=PLAIN)
    spec = made_up_run([(4, 4), (4, 0), (4, 2)], 1.0, transfers=SPEC)
    result = made_up_result([one_prompt(Pair(plain, spec), Pair(plain, spec))])
    lines = [line.split() for line in table(result).splitlines()]
    head = next(i for i, words in enumerate(lines) if words[:4] == ["per", "round", "kB", "to"])
    assert lines[head + 1] == ["plain", "4.00", "0.01", "0.00", "10.0", "13.0", "1.0"]
    assert lines[head + 2] == ["with", "draft", "10.00", "4.12", "0.20", "24.0", "30.0", "5.0"]
    assert result.comparison.spec.transfers == SPEC.plus(SPEC)


def test_the_cpu_has_none(tmp_path: Path) -> None:
    result = run(tiny_config(tmp_path, repeats=1, n_tokens=8))
    assert "kB to devices" not in table(result)
    zero = dict.fromkeys(Transfers._fields, 0.0)
    assert to_json(result)["crossings_per_round"] == {"plain": zero, "spec": zero}
