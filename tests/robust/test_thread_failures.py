"""An assertion of the engine in the middle of a graph, on each of the threads that compute it.

The load refuses everything that a file can make the engine assert on. So the table of a draft's ids
is changed on disk once the file is mapped: half of the threads read each end of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from pyllama_spec.engine import Batch, Context, Model
from pyllama_spec.errors import EngineError
from tests.models import build_eagle3
from tests.oracles import run_child, tiny

N_DRAFT = 64


def opened(path: Path, target: Context) -> tuple[Context, Batch]:
    """A draft that computes on its target's threads, and a batch for it."""
    model = Model(path)
    context = Context(
        model,
        target=target,
        n_ctx=64,
        n_batch=32,
        n_ubatch=32,
        n_threads=target.n_threads,
        is_window=True,
    )
    n_features = len(model.target_layers) * target.model.info.n_embd
    batch = Batch(4, n_row=n_features, n_model_row=context.n_row)
    batch.extend([1, 2, 3], 0, rows=[np.ones((3, n_features), np.float32)], output_all=True)
    return context, batch


def damage(path: Path, at: int) -> Callable[[], None]:
    """Puts an id that no vocabulary has into the file; the call that is returned heals it."""
    table = next(t for t in GGUFReader(path).tensors if t.name == "d2t")

    def write(value: int) -> None:
        with path.open("r+b") as file:
            file.seek(table.data_offset + 8 * at)
            file.write(np.int64(value).tobytes())

    healthy = int(table.data[at])
    write(1 << 40)
    return lambda: write(healthy)


def cpu_s_of_a_second() -> float:
    """Seconds of processors that this process takes while it does nothing for one."""
    before = time.process_time()
    time.sleep(1.0)
    return time.process_time() - before


def fails_and_goes_on(path: Path, n_threads: int, at: int) -> None:
    """A typed error, no thread that spins, and a pool that computes for others as before."""
    build_eagle3(path, n_draft_vocab=N_DRAFT)
    target = Context(tiny("llama"), n_ctx=64, n_threads=n_threads)
    draft, batch = opened(path, target)
    other, _ = opened(path, target)
    text = Batch(8)
    text.extend([1, 2, 3], 0, output_last=True)
    target.decode(text)
    expected = target.logits(2).copy()
    heal = damage(path, at)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"stopped at .*GGML_ASSERT|unknown state"):
            draft.decode(batch)
    # Awake threads wait for work for some 0.1 s of a processor: longer where others have it too.
    assert any(cpu_s_of_a_second() < 0.1 for _ in range(5)), "a thread spins"
    heal()
    for _ in range(20):
        target.memory.clear()
        target.decode(text)
        np.testing.assert_array_equal(target.logits(2), expected)
    other.decode(batch)
    again, _ = opened(path, target)
    again.decode(batch)
    np.testing.assert_array_equal(again.logits(2), other.logits(2))
    for context in (draft, target, other, again):
        context.close()


PROGRAM = """
import sys
from pathlib import Path
from tests.robust.test_thread_failures import fails_and_goes_on
fails_and_goes_on(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.mark.parametrize("at", [0, N_DRAFT - 1])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_assertion_in_a_graph(n_threads: int, at: int, tmp_path: Path) -> None:
    result = run_child(PROGRAM, str(tmp_path / "draft.gguf"), str(n_threads), str(at))
    assert (result.stdout, result.stderr) == ("", "")


def test_a_thread_that_does_not_start_for_a_sound() -> None:
    """Those before it are waited for: else the process would end."""
    done = run_child("""
import resource
from pathlib import Path
from pyllama_spec.errors import EngineError
from tests.media_tools import projector, sound
ears, tone = projector("ultravox"), sound(3.0)
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (13 << 20),) * 2)
try:
    ears.prepared_audio(tone)
except EngineError:
    print("refused")
""")
    assert "refused" in done.stdout
