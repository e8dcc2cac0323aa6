"""Runs the tests of the engine's own server against our server with its flags.

    python -m tools.upstream_server_tests [--work DIR] [--json OUT.json] [FILE ...]

The tests are in the source package that vendor/sync.py fetches. They are unpacked and run
unchanged. LLAMA_SERVER_BIN_PATH names a script that starts our server, and tiny random models
replace those of the hub. Tests marked slow need models of gigabytes and are left out, as they are
upstream without SLOW_TESTS. The output has a line for each file, and the reason for each test that
does not pass. FILE is a name such as test_basic.py; the default is all files.
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
# What the tests read outside their own folder.
_BESIDE = ("models/templates",)
_PORT = 18990
# Hub models, which are not available here, and the tiny model that replaces each.
_STAND_INS = {
    "stories260K": "llama", "stories15M_MOE": "qwen3moe", "bert-bge-small": "bert",
    "jina-reranker": "reranker",
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
_OTHER_MODEL = "it looks for the words, or the number of tokens, of a model that cannot be had here"
_INSIDE = "it reads llama-server's inner view of a request (__verbose, generation_settings)"
_PROGRESS = "it asks for events while the prompt is read (return_progress)"
_NO_IMAGES = "models see no images here"
_NO_CORS = "no page of another origin may call unless --cors-origins names it"
_OWN_FORM = "a form of llama-server's own that is not taken"
_OPENAIS = "the error has OpenAI's form, and the library's words"
# Why a test cannot pass here, by a pattern of its file and name; the first match counts.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"test_(mcp_servers|tools_builtin|proxy)\.|with_tools_enabled|cors_proxy",
     "the server runs no tools and forwards nothing; clients do"),
    (r"test_router\.|test_stream\.|localhost_(reflects|rejects)|aliases_and_tags",
     "one server has one model, of one name, and an answer lasts as long as its connection"),
    (r"test_slot_save\.|test_kv_keep", "slots are not saved; prompts are reused by themselves"),
    (r"test_vision_api\.|local_media|vision|with_image", _NO_IMAGES),
    (r"test_systemone\.", "models that decide on actions generate no texts"),
    (r"test_sleep\.", "a model stays loaded"),
    (r"test_compat_gcp\.", "there is no form of Vertex AI"),
    (r"test_lora\.|load_split_model", "the model, or its adapter, cannot be had here"),
    (r"multiple_addresses", "one address is listened at"),
    (r"test_server_props", "the place of the model's file is not told"),
    (r"test_no_ui|static_assets", "the page needs no flag, and a key like all others"),
    (r"test_ignore_eos\.|response_fields|verbose_debug|test_chat_template\b", _INSIDE),
    (r"assistant_prefill|vllm_compat", _INSIDE),
    (r"return_progress|prompt_progress|llama_telemetry", _PROGRESS),
    (r"context_size_exceeded|disabled_long_prompt|prompt_too_long", _OPENAIS),
    (r"cors_options", _NO_CORS),
    (r"anthropic_empty_messages", "nothing to answer is refused, as Anthropic does"),
    (r"spec_synth|with_and_without_draft|test_synth", "no draft is made up here"),
    (r"n_probs_post", "probabilities are those before the samplers"),
    (r"ctx_shift_enabled|with_ctx_shift|slot_ctx_not_exceeded",
     "the prompt has more tokens of a tiny model than its context; a shift needs max_tokens"),
    (r"apply_chat_template", "that template of llama-server's has no name here"),
    (r"invalid_chat_completion_req\[messages7", "two turns of the assistant are one here"),
    (r"embedding_(mixed|content_text|pooling_none|multiple_with_fa)", _OWN_FORM),
    (r"json_prompt_no_mtmd|tokens_input|logit_bias\[", _OWN_FORM),
    (r"process_start|metrics_(prometheus|prompt|predicted|embedding)",
     "a header, and names of figures, that are not there yet"),
    (r"test_n_probs", "tokens of one text are one of the likeliest ones"),
    (r"invalid_rerank_req", "no documents have no scores"),
    (r"test_infill\.|tokenize_with_bos", "a tiny model has other special tokens"),
    (r"test_completion|test_chat_completion|openai_library|response_format", _OTHER_MODEL),
    (r"embedding_usage|rerank|ctx_shift|multi_requests", _OTHER_MODEL),
)  # fmt: skip


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


def prepare(tests: Path, texts: Path | None) -> Path:
    """Writes the launcher and the plugin; returns the path of the launcher."""
    from tests.models import model_path

    models = {name: str(model_path(kind)) for name, kind in _STAND_INS.items()}
    if texts is not None:
        models["stories260K"] = str(texts.resolve())
    launcher = tests / "llama-server"
    text = _LAUNCHER.format(python=sys.executable, root=str(ROOT), models=models)
    launcher.write_text(text)
    launcher.chmod(0o755)
    plugin = _PLUGIN.format(model=models["stories260K"])
    (tests / "stand_ins.py").write_text(plugin, encoding="utf-8")
    (tests / "tmp").mkdir(exist_ok=True)
    return launcher


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
    subprocess.run(command, cwd=tests, env=environment, capture_output=True, check=False)
    if not report.exists():
        return [Outcome(file, "(the file)", "failed", "pytest could not run it")]
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
    parts = [*lines[-1:], message.splitlines()[0] if message else "", *told[:1]]
    return " | ".join(part for part in parts if part)[:300]


def known_reason(outcome: Outcome) -> str | None:
    """The reason why a test cannot pass here; None if none is listed."""
    place = f"{outcome.file}::{outcome.name}"
    return next((why for pattern, why in _REASONS if re.search(pattern, place)), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 if a test fails without a known reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "upstream-server-tests")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT.json")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="limit of one test")
    parser.add_argument("--model", type=Path, default=None, metavar="GGUF",
                        help="the text model in place of theirs [a tiny one]")  # fmt: skip
    args = parser.parse_args(arguments)
    tests = unpack(args.work.resolve())
    launcher = prepare(tests, args.model)
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
