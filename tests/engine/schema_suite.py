"""The JSON Schema Test Suite beside our grammars: `python -m tests.engine.schema_suite [draft]`.

It comes in the source package of jsonschema, which pip downloads into the cache. Each instance is
matched against the grammar of its schema. An invalid one must be refused; a valid one, in the
format of json.dumps(), may be refused where docs/schemas.md says that the grammar is narrower.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyllama_spec.errors import SchemaError
from pyllama_spec.schema import schema_rules
from tests.engine.grammar_walk import GrammarWalk

PACKAGE, VERSION = "jsonschema", "4.26.0"
DRAFTS = ("draft2020-12", "draft2019-09", "draft7", "draft6", "draft4")
# Annotations in the specification that a validator may assert: a text of JSON, or bytes.
_CONTENT = "optional/content.json"


def suite(folder: Path, draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each group of instances of a draft, with the name of its file."""
    archive = next(folder.glob(f"{PACKAGE}-*.tar.gz"))
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda one: one.name):
            _, found, name = member.name.partition(f"/json/tests/{draft}/")
            if found and name.endswith(".json"):
                file = files.extractfile(member)
                assert file is not None
                for group in json.load(file):
                    yield name, group


def judge(group: dict[str, Any]) -> tuple[str, Counter[str], list[str]]:
    """The outcome for a schema and its instances, and the wrongly accepted ones."""
    try:
        walk = GrammarWalk(schema_rules(group["schema"]).grammar)
    except SchemaError as error:
        return error.keyword or "nothing fits", Counter({"schemas refused": 1}), []
    counts, wrong = Counter({"schemas kept": 1}), []
    for one in group["tests"]:
        text = json.dumps(one["data"], ensure_ascii=False)
        try:
            is_taken = walk.takes(text.encode().decode())
        except UnicodeEncodeError:  # an unpaired surrogate
            is_taken = walk.takes(json.dumps(one["data"]))
        counts["valid" if one["valid"] else "invalid"] += 1
        counts["valid, not written"] += one["valid"] and not is_taken
        if is_taken and not one["valid"]:
            counts["invalid, taken"] += 1
            wrong.append(f"{group['description']}: {one['description']}: {text[:100]}")
    return "", counts, wrong


def main(drafts: list[str]) -> int:
    """Prints a line per draft, and what is taken wrongly."""
    warnings.simplefilter("ignore")
    n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        command += ["--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}"]
        subprocess.run(command, check=True)
        for draft in drafts or list(DRAFTS):
            counts: Counter[str] = Counter()
            refused: Counter[str] = Counter()
            for name, group in suite(Path(folder), draft):
                why, found, wrong = judge(group)
                if name == _CONTENT:
                    continue
                counts += found
                refused[why] += bool(why)
                n_wrong += len(wrong)
                for line in wrong:
                    print(f"TAKEN {draft} {name}: {line}")
            print(draft, dict(counts))
            print("  refused:", dict(refused.most_common()))
    return int(n_wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
