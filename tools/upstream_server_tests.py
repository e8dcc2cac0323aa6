"""Runs the tests of the engine's own server against our server with its flags.

    python -m tools.upstream_server_tests [--work DIR] [--json OUT.json] [FILE ...]

The tests are in the source package that vendor/sync.py fetches. They are unpacked and run
unchanged. LLAMA_SERVER_BIN_PATH names a script that starts our server, and tiny random models
replace those of the hub, a random picture its pictures. Tests marked slow need models of gigabytes
and are left out, as they are upstream without SLOW_TESTS. The output has a line for each file, and
for each test that does not pass the line of it that failed, the error, and the server's. FILE is
such as test_basic.py [all].
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.upstream.run import ROOT, archive

_TESTS = "tools/server/tests"
_WORDS = "models/ggml-vocab-{}.gguf"
# What is read beside their own folder.
_BESIDE = (
    "models/templates", "tools/mtmd/test-1.jpeg", _WORDS.format("bert-bge"),
    _WORDS.format("llama-spm"),
)  # fmt: skip
_PORT = 18990
# Hub models, and the tiny model that replaces each, with their vocabulary if the source has it.
_STAND_INS = {
    "stories260K": ("llama", ""), "stories15M_MOE": ("qwen3moe", "llama-spm"),
    "stories15M-q4_0": ("llama", "llama-spm"), "bert-bge-small": ("bert", "bert-bge"),
    "jina-reranker": ("reranker", ""), "tinygemma3": ("sees", ""),
}  # fmt: skip
# Started in place of llama-server.
_LAUNCHER = """#!{python}
import sys
sys.path.insert(0, {root!r})
from pyllama_spec.server.llama_server import main
from tools.upstream_server_tests import with_stand_ins
sys.exit(main(with_stand_ins(sys.argv[1:], {models!r})))
"""
# A pytest plugin: no models are fetched before the tests; a test that downloads gets a stand-in.
_PLUGIN = '''import shutil
import sys
import types

import requests


def get(url, *given, **more):
    """A picture of the hub that a test asks for itself."""
    if not url.startswith("https://huggingface.co/"):
        return fetched(url, *given, **more)
    return types.SimpleNamespace(content={picture!r}, raise_for_status=lambda: None)


fetched, requests.get = requests.get, get


def download(url, out):
    """A file of the hub that a test asks for itself."""
    if not url.endswith("stories15M-q4_0.gguf"):
        raise OSError(f"no stand-in for {{url}}")
    shutil.copyfile({model!r}, out)


sys.modules["wget"] = types.SimpleNamespace(download=download)


def pytest_collection_modifyitems(items):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
'''


class Outcome(NamedTuple):
    """The result of one of their tests."""

    file: str
    name: str
    state: str
    why: str


def unpack(work: Path) -> Path:
    """Unpacks their tests below `work` if they are missing; returns their folder."""
    file, folder = archive()
    tests = work / _TESTS
    if not all((work / one).exists() for one in (_TESTS, *_BESIDE)):
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
    """Writes the launcher and the plugin; returns the launcher's path."""
    from tests.media_tools import file_of, picture, projector

    models = {name: str(stand_in(tests, *one)) for name, one in _STAND_INS.items()}
    models["its projector"] = str(projector("gemma3").path)
    launcher = tests / "llama-server"
    text = _LAUNCHER.format(python=sys.executable, root=str(ROOT), models=models)
    launcher.write_text(text)
    launcher.chmod(0o755)
    plugin = _PLUGIN.format(model=models["stories15M-q4_0"], picture=file_of(picture(32, 32)))
    (tests / "stand_ins.py").write_text(plugin, encoding="utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    return launcher


def stand_in(tests: Path, kind: str, vocabulary: str) -> Path:
    """A tiny model of a kind, with a vocabulary of the source if one is named."""
    from gguf import GGUFReader

    from tests.media_tools import seeing
    from tests.models import ARCHITECTURES, TinyConfig, model_path
    from tests.models.eagle3 import copy_tokenizer
    from tests.models.keys import add_keys, writing
    from tests.models.sketch import Sketch

    if kind == "sees":
        return seeing("gemma3").path
    if not vocabulary:
        return model_path(kind)
    path = tests / "tmp" / f"{kind}-{vocabulary}.gguf"
    words = tests.parents[2] / _WORDS.format(vocabulary)
    n_vocab = len(GGUFReader(words).fields["tokenizer.ggml.tokens"].data)
    model = Sketch(TinyConfig(kind, n_vocab=n_vocab))
    ARCHITECTURES[kind](model)
    model.meta.pop("tokenizer.ggml.token_type_count", None)  # a key of the vocabulary
    with writing(path, kind) as writer:
        add_keys(writer, model.meta)
        copy_tokenizer(writer, words)
        for name, array in model.tensors.items():
            writer.add_tensor(name, array)
    return path


def with_stand_ins(arguments: Sequence[str], models: Mapping[str, str]) -> list[str]:
    """A command line with a local file in place of the hub's model."""
    words, given, asked = list[str](), iter(arguments), ""
    for word in given:
        if word in ("--hf-repo", "--hf-file"):
            asked += f"{next(given)} "
        else:
            words.append(word)
    if asked:
        found = [path for name, path in models.items() if name in asked]
        words += ["--model", found[0] if found else f"no-stand-in-for:{asked.strip()}"]
        if "tinygemma3" in asked:
            words += ["--mmproj", models["its projector"]]
    return words


def run_file(tests: Path, launcher: Path, file: str, timeout_s: int) -> list[Outcome]:
    """Runs one of their test files."""
    report = tests / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ, "LLAMA_SERVER_BIN_PATH": str(launcher), "PORT": str(_PORT),
        "PYTHONPATH": str(tests), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", f"unit/{file}", "-q", "-m", "not slow", "-p", "stand_ins",
        "-p", "no:cacheprovider", f"--junitxml={report}", f"--timeout={timeout_s}",
        "--timeout-method=signal", "-o", "junit_logging=system-out",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tests, env=environment, capture_output=True, text=True, check=False
    )
    if not report.exists():
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise SystemExit(f"{file} cannot be run; pip install --group test?\n{said}")
    return [_outcome(file, case) for case in ET.parse(report).iter("testcase")]


def _outcome(file: str, case: ET.Element) -> Outcome:
    name = case.get("name", "")
    for child in case:
        if child.tag in ("failure", "error"):
            log = case.findtext("system-out") or ""
            why = _why(child.get("message") or "", child.text or "", log)
            return Outcome(file, name, "failed", why)
        if child.tag == "skipped":
            return Outcome(file, name, "skipped", child.get("message") or "")
    return Outcome(file, name, "passed", "")


def _why(message: str, text: str, log: str) -> str:
    """The line that failed, the test's error and the server's error."""
    told = re.findall(r"pyllama-spec-llama-server: error: (.*)", log)
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith(">")]
    return " | ".join((*lines[-1:], *message.splitlines()[:1], *told[:1]))[:300]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "upstream-server-tests")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT.json")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="limit of one test")
    args = parser.parse_args(arguments)
    tests = unpack(args.work.resolve())
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
                print(f"  {one.state} {one.name}: {one.why}", flush=True)
    n = Counter(one.state for one in outcomes)
    print(f"{n['passed']} of {len(outcomes)} passed, {n['failed']} failed, {n['skipped']} skipped")
    if args.json is not None:
        rows = [one._asdict() for one in outcomes]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
