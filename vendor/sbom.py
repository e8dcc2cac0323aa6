"""The bill of materials of pyllama_spec, CycloneDX 1.6 as JSON: what is compiled in, and required.

``python vendor/sbom.py`` writes vendor/sbom.cdx.json, which is committed. The sdist carries it, and
a wheel has it where PEP 770 wants it, in `.dist-info/sboms/`. The same inputs give the same bytes:
there is no time and no random number in it.

It needs the standard library (tomli on Python 3.10), and the engine's tree that sync.py has made.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SBOM = HERE / "sbom.cdx.json"
# Of what `pip install` brings along, beside what an extra asks for.
LICENSES = {"numpy": "BSD-3-Clause", "cffi": "MIT-0"}
# Other people's work inside ggml's and llama.cpp's own files, which their comments name.
ADAPTED = (
    ("yarn", "Copyright (c) 2023 Jeffrey Quesnelle and Bowen Peng", "MIT",
     "rotary scaling, in ggml/src/ggml-cpu/ops.cpp"),
    ("ggllm.cpp", "", "MIT", "the BPE tokenizer, in src/llama-vocab.cpp"),
    ("arm-optimized-routines", "Copyright (c) Arm Limited", "MIT OR Apache-2.0 WITH LLVM-exception",
     "expf() of vectors, in ggml/src/ggml-cpu/vec.h"),
)  # fmt: skip
Component = dict[str, Any]


def find(pattern: str, path: Path) -> str:
    """Read a version out of a file of the engine's tree; empty where another tree has none."""
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.DOTALL)
    return ".".join(match.groups()) if match else ""


def properties(**values: str) -> list[dict[str, str]]:
    """Name-value pairs of ours."""
    return [{"name": f"pyllama_spec:{key}", "value": value} for key, value in values.items()]


def purl(repository: str, version: str) -> str:
    """Name a repository of GitHub, at a tag where it is known."""
    return f"pkg:github/{repository}" + (f"@{version}" if version else "")


def component(name: str, version: str, license_: str, **more: Any) -> Component:
    """One part. An empty field is left out."""
    fields = {
        "type": "library", "bom-ref": name, "name": name, "version": version,
        "licenses": [{"expression": license_}] if license_ else [], **more,
    }  # fmt: skip
    return {key: value for key, value in fields.items() if value}


def compiled(tree: Path) -> list[Component]:
    """List what the engine's module is compiled from, by the tree and its stamp."""
    # sync.py wrote it. A tree that was copied from a checkout is of no known version.
    pin = json.loads((tree / ".pyllama-spec-stamp.json").read_text(encoding="utf-8"))
    commit = pin.get("commit", "")
    source = {"archive": pin["archive"], "archive_sha256": pin["sha256"]} if commit else {}
    authors = "Copyright (c) 2023-2026 The ggml authors"
    parts = r"VERSION_MAJOR (\d+).*?VERSION_MINOR (\d+).*?VERSION_PATCH (\d+)"
    ggml = find(parts, tree / "ggml/CMakeLists.txt")
    sounds = tree / "vendor/miniaudio/miniaudio.h"
    nlohmann = find(r"version (\d+)\.(\d+)\.(\d+)", tree / "vendor/nlohmann/json.hpp")
    return [
        component(
            "llama.cpp", commit, "MIT", copyright=authors, purl=purl("ggml-org/llama.cpp", commit),
            pedigree={"notes": "with the patches of vendor/patches/ in the source package"},
            properties=properties(**source),
        ),
        component("ggml", ggml, "MIT", copyright=authors, purl=purl("ggml-org/ggml", ggml)),
        component(
            "nlohmann-json", nlohmann, "MIT", copyright="Copyright (c) 2013-2025 Niels Lohmann",
            purl=purl("nlohmann/json", nlohmann),
            pedigree={"notes": "with llama.cpp's own patch, json-deep-nesting.patch"},
        ),
        component(
            "miniaudio", find(r"miniaudio - v(\d+)\.(\d+)\.(\d+)", sounds),
            "MIT-0 OR Unlicense", description="decodes sounds", purl=purl("mackron/miniaudio", ""),
        ),
        *(
            component(name, "", license_, copyright=copyright_, description=f"adapted: {what}")
            for name, copyright_, license_, what in ADAPTED
        ),
    ]  # fmt: skip


def required(project: dict[str, Any]) -> list[Component]:
    """List the Python packages: those that are always installed, and those of the extras."""
    wanted = [(text, "") for text in project["dependencies"]]
    for extra, texts in project["optional-dependencies"].items():
        wanted += [(text, extra) for text in texts]
    found: dict[str, Component] = {}
    for text, extra in wanted:
        name = re.split(r"[^\w.-]", text, maxsplit=1)[0].lower().replace("_", "-")
        if name in found:
            continue
        found[name] = component(
            name, "", LICENSES[name] if not extra else "",
            scope="optional" if extra else "required", purl=f"pkg:pypi/{name}",
            properties=properties(requirement=text, **({"extra": extra} if extra else {})),
        )  # fmt: skip
    return list(found.values())


def bill() -> dict[str, Any]:
    """Make the whole bill."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    # Linked in statically on Linux; the version is that of the compiler.
    runtime = [
        component(
            name, "", "GPL-3.0-or-later WITH GCC-exception-3.1",
            properties=properties(platform="linux"),
        )
        for name in ("libstdc++", "libgcc")
    ]  # fmt: skip
    parts = compiled(HERE / "llama.cpp") + runtime
    packages = required(project)
    inside = ["llama.cpp", *(part["bom-ref"] for part in runtime)]
    needed = [part["bom-ref"] for part in packages if part["scope"] == "required"]
    whole = component(
        "pyllama_spec", version, project["license"], purl=f"pkg:pypi/pyllama-spec@{version}"
    )  # fmt: skip
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": whole},
        "components": parts + packages,
        "dependencies": [
            {"ref": "pyllama_spec", "dependsOn": inside + needed},
            {"ref": "llama.cpp", "dependsOn": ["ggml", "nlohmann-json", "miniaudio", "ggllm.cpp"]},
            {"ref": "ggml", "dependsOn": ["yarn", "arm-optimized-routines"]},
        ],
    }


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description="write the bill of materials, CycloneDX JSON")
    parser.add_argument("--out", type=Path, default=SBOM, help="the file to write")
    out: Path = parser.parse_args().out
    out.write_text(json.dumps(bill(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
