"""The wheel: one for all Pythons, without files that are not needed to run."""

from __future__ import annotations

import json
import platform
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from pyllama_spec.engine.cpu_variants import CPU_VARIANTS
from tests.wheel.environment import (
    ROOT,
    Environment,
    check_generates,
    perm_model,
    run,
    tracked_files,
)

# An engine for each variant of the CPU, and what chooses among them.
ENGINES = [f"pyllama_spec/_engine_{variant}.abi3.so" for variant in CPU_VARIANTS]
MODULES = [*ENGINES, "pyllama_spec/_processor.abi3.so"]
LICENSES = [f"pyllama_spec/licenses/{name}-LICENSE.txt" for name in ("llama.cpp", "nlohmann-json")]
# The C library and its parts, and GCC's; libstdc++ is linked in.
SYSTEM_LIBRARY = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux.*)$")
NAME = re.compile(r"pyllama_spec-(?P<version>[0-9.]+)-cp310-abi3-[a-z0-9_]+\.whl$")
MB = 1 << 20


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_name_and_tag(wheel: Path, unpacked: Path) -> None:
    match = NAME.match(wheel.name)
    assert match, wheel.name
    info = unpacked / f"pyllama_spec-{match['version']}.dist-info"
    tags = Parser().parsestr((info / "WHEEL").read_text()).get_all("Tag")
    assert tags == [f"cp310-abi3-manylinux_2_28_{platform.machine()}"]
    metadata = Parser().parsestr((info / "METADATA").read_text())
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE", "vendor/NOTICE"]


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
    of_info = ("METADATA", "RECORD", "WHEEL", "entry_points.txt")
    expected = tracked_files("pyllama_spec") | {*MODULES, *LICENSES}
    expected |= {f"{info}/{name}" for name in (*of_info, "licenses/LICENSE")}
    expected |= {f"{info}/licenses/vendor/NOTICE", f"{info}/sboms/pyllama_spec.cdx.json"}
    assert sorted(names) == sorted(expected)
    assert "pyllama_spec/py.typed" in names
    page = {f"pyllama_spec/server/page/{name}" for name in ("index.html", "page.css", "page.js")}
    assert page <= set(names)


@pytest.mark.parametrize("module", MODULES)
def test_module_exports_its_entry_and_nothing_else(unpacked: Path, module: str) -> None:
    lines = run("nm", "-D", "--defined-only", unpacked / module).stdout.splitlines()
    entry = "PyInit__engine" if module in ENGINES else "PyInit__processor"
    assert [line.split()[-1].partition("@")[0] for line in lines] == [entry]


@pytest.mark.parametrize("module", MODULES)
def test_module_needs_the_system_only(unpacked: Path, module: str) -> None:
    dynamic = run("readelf", "-d", "-W", unpacked / module).stdout
    assert not re.search(r"\((RPATH|RUNPATH)\)", dynamic)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed and all(SYSTEM_LIBRARY.match(name) for name in needed), needed


def test_auditwheel_allows_the_tag(wheel: Path) -> None:
    said = run(sys.executable, "-m", "auditwheel", "show", wheel).stdout
    (minor,) = re.findall(r'platform tag:\s+"manylinux_2_(\d+)_', said)
    assert int(minor) <= 28


def test_no_path_of_the_builder(unpacked: Path) -> None:
    # Assertions of the engine name their source file; its place on the builder's disk is not part.
    source = re.compile(rb"/[\w.+-]+(?:/[\w.+-]+)*/[\w.+-]+\.(?:cpp|cc|c|hpp|h|cu)\b")
    places = [str(place).encode() for place in (ROOT, Path.home())]
    for path in (p for p in unpacked.rglob("*") if p.is_file()):
        data = path.read_bytes()
        assert not [place for place in places if place + b"/" in data], path
        absolute = {
            m.group() for m in source.finditer(data) if data[m.start() - 1 : m.start()] in b"\0"
        }
        assert not absolute, f"{path.name}: {sorted(absolute)[:5]}"
    # The pattern would see them.
    assert all(b"ggml/src/ggml.c\0" in (unpacked / name).read_bytes() for name in ENGINES)


def test_size(wheel: Path, unpacked: Path) -> None:
    assert wheel.stat().st_size <= 20 * MB
    for name in MODULES:
        assert (unpacked / name).stat().st_size < (12 if name in ENGINES else 1) * MB
        assert b".debug_info" not in (unpacked / name).read_bytes()


def test_generates_in_a_clean_environment(installed: Environment) -> None:
    report = check_generates(installed)
    assert report["engine"]


def test_an_extra_brings_its_packages_and_leaves_the_engine_alone(
    wheel: Path, tmp_path: Path
) -> None:
    """`pip install ".[convert]"` would compile it again; by the package's name pip keeps it."""
    environment = Environment.make(tmp_path / "extra")
    environment.install(wheel)
    code = (
        "import pyllama_spec, pathlib; folder = pathlib.Path(pyllama_spec.__file__).parent; "
        "print(*sorted((p.name, p.stat().st_mtime_ns) for p in folder.glob('*.so')))"
    )
    before = environment.run("-c", code).stdout
    environment.install("pyllama_spec[convert]")
    assert environment.run("-c", code).stdout == before != ""
    environment.run("-c", "import gguf")


def test_command_line_in_a_clean_environment(installed: Environment) -> None:
    model, _ = perm_model()
    words = ["generate", "-m", str(model), "-d", "prompt-lookup", "-p", "Hel", "-n", "8", "--json"]
    said = run(installed.folder / "bin/pyllama-spec", *words, env=installed.variables()).stdout
    assert len(json.loads(said)["tokens"]) == 8
