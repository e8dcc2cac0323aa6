"""Compiled-in third-party code is named in the packages, with its licence."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.upstream.built import newest_build
from tests.wheel.environment import ROOT, run

SBOM = ROOT / "vendor/sbom.cdx.json"
LICENSES = "pyllama_spec/licenses"
# The text of each part that is compiled in, by its name in the bill; GCC's exception asks for none.
TEXTS = {
    "llama.cpp": ("llama.cpp-LICENSE.txt", "The ggml authors"),
    "ggml": ("llama.cpp-LICENSE.txt", "The ggml authors"),
    "nlohmann-json": ("nlohmann-json-LICENSE.txt", "Niels Lohmann"),
}
RUNTIME = {"libstdc++", "libgcc"}


def write(out: Path, root: Path = ROOT) -> dict[str, Any]:
    """The output of vendor/sbom.py."""
    run(sys.executable, root / "vendor/sbom.py", "--out", out)
    bill: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return bill


def parts(bill: dict[str, Any], scope: str | None = None) -> dict[str, dict[str, Any]]:
    """The components of a scope; None for what is compiled in."""
    return {part["name"]: part for part in bill["components"] if part.get("scope") == scope}


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_bill_in_the_source_is_current(tmp_path: Path) -> None:
    write(tmp_path / "bill.json")
    hint = "run python vendor/sbom.py, and commit what it writes"
    assert (tmp_path / "bill.json").read_bytes() == SBOM.read_bytes(), hint


def test_each_part_has_a_licence_and_a_name_in_the_notice() -> None:
    bill = json.loads(SBOM.read_text(encoding="utf-8"))
    notice = (ROOT / "vendor/NOTICE").read_text(encoding="utf-8").lower()
    for name, part in parts(bill).items():
        assert part["licenses"][0]["expression"], name
        said = {"nlohmann-json": "json for modern c++", "arm-optimized-routines": "arm's optimized"}
        assert said.get(name, name) in notice
        assert part.get("copyright", "").lower() in notice
    references = {part["bom-ref"] for part in bill["components"]} | {"pyllama_spec"}
    for line in bill["dependencies"]:
        assert {line["ref"], *line["dependsOn"]} <= references


def test_the_bill_is_where_pep_770_wants_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        assert name.endswith("/sboms/pyllama_spec.cdx.json")
        assert archive.read(name) == SBOM.read_bytes()


def test_the_bill_says_what_the_metadata_says(metadata: Message) -> None:
    bill = json.loads(SBOM.read_text(encoding="utf-8"))
    whole = bill["metadata"]["component"]
    assert whole["version"] == metadata["Version"]
    assert whole["licenses"] == [{"expression": metadata["License-Expression"]}]
    # The packages are those that pip installs.
    wanted: dict[str, set[str]] = {"required": set(), "optional": set()}
    for text in metadata.get_all("Requires-Dist") or []:
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-")
        wanted["optional" if "extra ==" in text else "required"].add(name)
    wanted["optional"] -= wanted["required"]
    assert {scope: set(parts(bill, scope)) for scope in wanted} == wanted


def test_the_wheel_has_the_text_of_each_licence(wheel: Path) -> None:
    bill = json.loads(SBOM.read_text(encoding="utf-8"))
    inside = {name for name, part in parts(bill).items() if "description" not in part}
    assert inside - RUNTIME == set(TEXTS)
    with zipfile.ZipFile(wheel) as archive:
        for file, author in TEXTS.values():
            text = archive.read(f"{LICENSES}/{file}").decode()
            assert author in text and "Permission is hereby granted" in text
            assert file in (ROOT / "vendor/NOTICE").read_text(encoding="utf-8")


def test_nothing_else_of_the_engines_own_vendors_is_compiled_in(wheel: Path) -> None:
    # What each object was compiled from, as ninja has noted it; `wheel` has been built by then.
    noted = (newest_build() / ".ninja_deps").read_bytes()
    folders = set(re.findall(rb"vendor/llama\.cpp/vendor/([\w-]+)/", noted))
    assert folders == {b"nlohmann", b"miniaudio"}
    assert b"common/base64.hpp" not in noted and b"llamafile/sgemm" not in noted
    assert b"common/jinja/lexer.cpp" in noted  # the pattern would see them
