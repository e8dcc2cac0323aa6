"""A missing library of a backend gives one line with the remedy."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from pyllama_spec.engine.cpu_variants import explained

_GLIBC = "{}: cannot open shared object file: No such file or directory"
_MUSL = "Error loading shared library {}: No such file or directory (needed by /x/_engine.so)"


@pytest.mark.parametrize("said", [_GLIBC, _MUSL])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("libcublas.so.13", "pip install nvidia-cublas "),
        ("libcudart.so.12", "pip install nvidia-cublas-cu12 "),
        ("libvulkan.so.1", "apt-get install libvulkan1"), ("libother-5.so.2", "pip install"),
    ],
)  # fmt: skip
def test_the_remedy_is_named(name: str, remedy: str, said: str) -> None:
    error = explained(ImportError(said.format(name), name="a", path="b"))
    assert str(error).startswith(name) and remedy in str(error)
    assert (error.name, error.path) == ("a", "b")


def test_other_errors_stay() -> None:
    for message in ("DLL load failed", "/x/_engine.so: undefined symbol: f", "no libx.so.1"):
        error = ImportError(message)
        assert explained(error) is error


def test_as_the_loader_says_it(tmp_path: Path) -> None:
    """The error of the loader for a module without its library."""
    (tmp_path / "gone.c").write_text("int gone(void) { return 1; }\n")
    (tmp_path / "m.c").write_text("int gone(void); void * PyInit_m(void) { gone(); return 0; }\n")
    library, module = tmp_path / "libpyllama-gone.so.1", tmp_path / "m.so"
    shared = ["gcc", "-shared", "-fPIC"]
    subprocess.run([*shared, tmp_path / "gone.c", f"-Wl,-soname,{library.name}", "-o", library],
                   check=True)  # fmt: skip
    subprocess.run([*shared, tmp_path / "m.c", library, "-o", module], check=True)
    library.unlink()
    spec = importlib.util.spec_from_file_location("m", module)
    assert spec is not None
    with pytest.raises(ImportError) as error:
        importlib.util.module_from_spec(spec)
    assert str(explained(error.value)).startswith("libpyllama-gone.so.1 was not found, which this")
