"""The tests of the engine's own server, against ours under its flags.

    python -m tools.upstream_server_tests [--work DIR] [--json OUT.json] [FILE ...]

The tests lie in the source package that vendor/sync.py fetches. They are unpacked beside and run as
they are, with LLAMA_SERVER_BIN_PATH naming a script that starts ours, and tiny random models in the
place of those that they take from the hub. Their tests marked slow, which need models of gigabytes,
are left out, as they are there without SLOW_TESTS. What is printed: a line for each file, and for
each test that does not pass the reason. FILE: such as test_basic.py; all without one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.models import model_path
from tests.upstream.run import ROOT, archive

_TESTS = "tools/server/tests"
# What they read beside their own folder.
_BESIDE = ("models/templates",)
_PORT = 18990
# Models of the hub, and what stands in for each: none of them can be had here.
_STAND_INS = {
    "stories260K": "llama", "stories15M_MOE": "qwen3moe", "bert-bge-small": "bert",
    "jina-reranker": "reranker",
}  # fmt: skip
# Started in the place of llama-server. What it is given of the hub becomes a file.
_LAUNCHER = """#!{python}
import sys
sys.path.insert(0, {root!r})
from pyllama_spec.server.llama_server import main
words, given = [], iter(sys.argv[1:])
asked = ""
for word in given:
    if word in ("--hf-repo", "--hf-file"):
        asked += next(given) + " "
    else:
        words.append(word)
if asked:
    models = {models!r}
    found = [path for name, path in models.items() if name in asked]
    words += ["--model", found[0] if found else "no-stand-in-for:" + asked.strip()]
raise SystemExit(main(words))
"""
# Read by pytest there: models are not fetched before the tests, but stood in for as they are asked.
_PLUGIN = '''import shutil
import sys
import types


def download(url, out):
    """A file of the hub that a test asks for itself."""
    if not url.endswith(".gguf"):
        raise OSError(f"no stand-in for {{url}}")
    shutil.copyfile({model!r}, out)


sys.modules["wget"] = types.SimpleNamespace(download=download)


def pytest_collection_modifyitems(items):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
'''
# Why a test cannot pass here, by a pattern of its name.
_REASONS: tuple[tuple[str, str], ...] = ()


class Outcome(NamedTuple):
    """How one of their tests ended.

    Attributes:
        file: of the test.
        name: of it, with its parameters.
        state: passed, failed or skipped.
        why: what it says, where it did not pass.

    """

    file: str
    name: str
    state: str
    why: str


def unpack(work: Path) -> Path:
    """The folder of their tests, below a folder that is made once."""
    file, folder = archive()
    tests = work / _TESTS
    if not tests.exists():
        with tarfile.open(file) as package:
            for member in package:
                inner = member.name.removeprefix(f"{folder}/")
                if member.isfile() and inner.startswith((f"{_TESTS}/", *_BESIDE)):
                    target = work / inner
                    target.parent.mkdir(parents=True, exist_ok=True)
                    data = package.extractfile(member)
                    assert data is not None
                    target.write_bytes(data.read())
    return tests


def prepare(tests: Path) -> Path:
    """Writes the launcher and the plugin; the path of the launcher."""
    models = {name: str(model_path(kind)) for name, kind in _STAND_INS.items()}
    launcher = tests / "llama-server"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, root=str(ROOT), models=models))
    launcher.chmod(0o755)
    plugin = _PLUGIN.format(model=models["stories260K"])
    (tests / "stand_ins.py").write_text(plugin, encoding="utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    return launcher


def run_file(tests: Path, launcher: Path, file: str, timeout_s: int) -> list[Outcome]:
    """Runs one file of theirs."""
    report = tests / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ, "LLAMA_SERVER_BIN_PATH": str(launcher), "PORT": str(_PORT),
        "PYTHONPATH": str(tests), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", f"unit/{file}", "-q", "-m", "not slow", "-p", "stand_ins",
        "-p", "no:cacheprovider", f"--junitxml={report}", f"--timeout={timeout_s}",
        "--timeout-method=signal",
    ]  # fmt: skip
    subprocess.run(command, cwd=tests, env=environment, capture_output=True, check=False)
    if not report.exists():
        return [Outcome(file, "(the file)", "failed", "pytest could not run it")]
    return [_outcome(file, case) for case in ET.parse(report).iter("testcase")]


def _outcome(file: str, case: ET.Element) -> Outcome:
    name = case.get("name", "")
    for child in case:
        if child.tag in ("failure", "error"):
            return Outcome(file, name, "failed", _why(child.get("message") or "", child.text or ""))
        if child.tag == "skipped":
            return Outcome(file, name, "skipped", child.get("message") or "")
    return Outcome(file, name, "passed", "")


def _why(message: str, text: str) -> str:
    """The line that failed, and what was wrong with it."""
    said = re.findall(r"^error: (.*)$|^\S*llama-server: error: (.*)$", text, re.MULTILINE)
    told = [one for pair in said for one in pair if one]
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith(">")]
    parts = [*lines[-1:], message.splitlines()[0] if message else "", *told[:1]]
    return " | ".join(part for part in parts if part)[:300]


def known_reason(outcome: Outcome) -> str | None:
    """Why a test cannot pass here; None where nobody has said so."""
    place = f"{outcome.file}::{outcome.name}"
    return next((why for pattern, why in _REASONS if re.search(pattern, place)), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 where a test fails without a known reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "upstream-server-tests")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT.json")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="of one test")
    args = parser.parse_args(arguments)
    tests = unpack(args.work)
    launcher = prepare(tests)
    files = args.files or sorted(one.name for one in (tests / "unit").glob("test_*.py"))
    outcomes: list[Outcome] = []
    for file in files:
        ended = run_file(tests, launcher, file, args.timeout)
        outcomes += ended
        n = Counter(one.state for one in ended)
        print(f"{file}: {n['passed']} of {len(ended)} passed", flush=True)
        for one in ended:
            if one.state != "passed":
                print(f"  {one.state} {one.name}: {known_reason(one) or one.why}", flush=True)
    n = Counter(one.state for one in outcomes)
    print(f"{n['passed']} of {len(outcomes)} passed, {n['failed']} failed, {n['skipped']} skipped")
    if args.json is not None:
        rows = [one._asdict() | {"reason": known_reason(one)} for one in outcomes]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(any(one.state == "failed" and known_reason(one) is None for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
