"""The rules of the architecture that no linter knows; run by ``make quality``.

Budgets of lines, the direction of imports between layers, the one package that imports the
compiled module, tests for a drafter's kind, and forbidden text. Prints one line per fault; exit
code 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pyllama_spec"
# A room is a folder, or the files of one; its budget is in lines, docstrings included. A number
# goes down with the room. Whoever raises one writes the reason behind it, in the same line.
BUDGETS = {
    # The files beside the rooms: the table of options has the help and the names of all faces.
    "pyllama_spec": 1_430,
    "pyllama_spec/bench": 1_230,  # 30 for prompts with pictures (issue 63)
    "pyllama_spec/chat": 2_365,  # 375 for pictures and sounds, 220 of them for URLs (issue 63)
    "pyllama_spec/cli": 2_180,  # 50 for --image, --audio and doctor (issue 63)
    "pyllama_spec/convert": 2_500,
    "pyllama_spec/drafters": 5_165,  # 75 for the rows of pictures and sounds (issue 63)
    "pyllama_spec/engine": 4_400,  # 520 for projectors and their rows (issue 63)
    "pyllama_spec/gguf": 900,
    "pyllama_spec/llama": 4_795,  # 265 for who reads pictures, and until when (issue 63)
    "pyllama_spec/llama_cpp": 1_095,  # 45 for handlers of pictures (issue 63)
    "pyllama_spec/requests": 2_340,
    "pyllama_spec/schema": 3_520,
    "pyllama_spec/server": 5_610,  # 80 for the dialects' pictures (issue 63)
    "pyllama_spec/speculative": 4_230,  # 90 for pictures
    "pyllama_spec/train": 5_800,
    "tests": 51_185,  # 2,600 for pictures and sounds (issue 63)
    "benchmarks": 1_230,
    "tools": 2_970,  # 75 for the judge of pictures (issue 63)
    # 2,220 for repacked weights (issue 58), 290 for schemas of tools (60), 520 for pictures (63)
    "csrc": 16_740,
}
# In words, bars of tables among them: what is written by hand in docs/.
DOCS_BUDGET = 32_900  # 100 for pictures and a loop with tools
WRITTEN_BY_PROGRAMS = ("docs/command-line.md",)
# One round, whoever shares it: the functions that step() goes through.
LOOP = (
    "pyllama_spec/speculative/round.py",
    (
        "step",
        "_compute",
        "_decide",
        "_draft",
        "_decode",
        "_decode_alone",
        "_decode_batch",
        "_commit",
        "_commit_prompt",
        "_accept",
        "_sample",
    ),
    240,
)

# The package's folders, from the ground up: imports go to a lower layer, or stay in the folder.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "_version", "lazy_imports"),
    ("files", "options", "terminal"),
    ("gguf",),
    ("engine",),
    ("schema",),
    ("drafters", "convert", "constraints"),
    ("speculative",),
    # A prompt's text, and what computes it: neither knows the other.
    ("chat", "requests"),
    ("llama",),
    ("train", "bench", "server"),
    # Names of others over all of it, their server's too.
    ("llama_cpp",),
    ("cli",),
    # The package itself: it hands out what users import, and is the command line.
    ("", "__main__"),
)
# Folders that do not import another one, though it lies below them.
APART = (("train", "convert"),)
BINDING = f"{PACKAGE}.engine.binding"
# Tests of what stands in the C ABI and in no class of ours.
SEES_BINDING = ("tests/engine/", "tests/robust/")
# Kinds of drafters are known to their own folder and its registry: anybody else asks a Drafter.
KINDS = "drafters"

# The folders of csrc/, from the ground up, as LAYERS: what the engine's own libraries compile, then
# what the module adds. devices/ holds no source.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("kernels", "rpc", "cpu_variants"),
    ("base",),
    ("checks",),
    # What the engine calls: neither knows the other.
    ("hooks", "drafts"),
    ("abi",),
    ("fuzz",),
)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)

# Written so that these lines do not match themselves.
HOSTS = re.compile(r"pyp{1}i[.]org|python{1}hosted|de{1}b[.]deb|regist{1}ry[.]n")
PLACES = re.compile(r"(^|[^A-Za-z0-9_.])/(work|ro{2}t|farm)/")
DESTROYED = re.compile(r"thread_local std{1}::")
SKIPS = {"skip": 0, "skipif": 1, "xfail": 0}


def listed_files() -> list[str]:
    """The files that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(listed.split("\n")) if name and (ROOT / name).is_file())


def folder_of(module: str) -> str | None:
    """The folder of a module of the package, such as "engine"; None for one without a layer."""
    name = module.removeprefix(PACKAGE).lstrip(".").partition(".")[0]
    return name if any(name in layer for layer in LAYERS) else None


def layer_of(folder: str) -> int:
    """How high a folder lies; 0 is the ground."""
    return next(i for i, layer in enumerate(LAYERS) if folder in layer)


def module_name(path: str) -> str:
    """pyllama_spec/engine/model.py -> pyllama_spec.engine.model."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, path: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of each module that a file imports, wherever in it."""
    package = module_name(path).split(".")
    package = package if path.endswith("__init__.py") else package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in modules else base


def room_of(path: str) -> str:
    """The room that a file counts for: of the package its folder, else the first folder."""
    folders = path.split("/")[:-1]
    return "/".join(folders[:2] if folders[:1] == [PACKAGE] else folders[:1])


def budget_faults(n_lines: dict[str, int], n_words: int) -> Iterator[str]:
    """Rooms above their budget, and rooms without one."""
    for room, n in sorted(n_lines.items()):
        if room.startswith(PACKAGE) and room not in BUDGETS:
            yield f"{room}: this room has no budget: give it one in tests/check_architecture.py"
        elif n > BUDGETS.get(room, n):
            yield f"{room}: {n} lines, and its budget is {BUDGETS[room]}: carry something away"
    if n_words > DOCS_BUDGET:
        yield f"docs: {n_words} words, and the budget is {DOCS_BUDGET}: carry something away"


def loop_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """A round that no longer fits on a few pages."""
    loop, names, most = LOOP
    if path != loop:
        return
    sizes = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    if missing := [name for name in names if name not in sizes]:
        yield f"{path}: no {', '.join(missing)}: name its functions in check_architecture.py"
    elif (n := sum(sizes[name] for name in names)) > most:
        yield f"{path}: the loop ({' + '.join(names)}) has {n} lines; at most {most}"


def import_faults(path: str, tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Imports that go up or sideways, and those that see the compiled module."""
    in_package = path.startswith(f"{PACKAGE}/")
    in_engine = path.startswith(f"{PACKAGE}/engine/")
    folder = folder_of(module_name(path)) if in_package else None
    if in_package and folder is None:
        yield f"{path}: this folder has no layer: give it one in tests/check_architecture.py"
    for line, name in imported(tree, path, modules):
        top, _, _ = name.partition(".")
        bare = name in (f"{PACKAGE}._engine", "_cffi_backend") or top == "cffi"
        if bare and not in_engine and path != "csrc/ffi_build.py":
            yield f"{path}:{line}: imports {name}; only {PACKAGE}/engine/ sees it"
        if name == BINDING and not in_engine and not path.startswith(SEES_BINDING):
            yield f"{path}:{line}: imports {name}; only {PACKAGE}/engine/ sees ffi and lib"
        if not in_package or top != PACKAGE or bare:
            continue
        if (folder, folder_of(name)) in APART:
            yield f"{path}:{line}: {folder} imports {name}; what both need belongs below them"
        there = folder_of(name)
        if folder is None or there in (None, folder):
            continue
        assert there is not None
        if layer_of(there) >= layer_of(folder):
            yield f"{path}:{line}: {folder or PACKAGE} imports {name}; imports only go down"


def included(path: str, text: str, files: set[str]) -> Iterator[tuple[int, str]]:
    """Line and path of each file of csrc/ that one of them includes; the engine's are left out."""
    beside = path.rpartition("/")[0]
    for match in INCLUDE.finditer(text):
        named = (f"{beside}/{match[1]}", f"csrc/{match[1]}")
        if target := next((name for name in named if name in files), None):
            yield text.count("\n", 0, match.start(1)) + 1, target


def include_faults(path: str, text: str, files: set[str]) -> Iterator[str]:
    """Includes in csrc/ that go up or sideways."""
    floors = {folder: i for i, floor in enumerate(FLOORS) for folder in floor}
    folder = path.split("/")[1]
    if folder not in floors:
        yield f"{path}: this folder has no floor: give it one in tests/check_architecture.py"
        return
    for line, target in included(path, text, files):
        below = target.split("/")[1]
        if below != folder and floors.get(below, len(FLOORS)) >= floors[folder]:
            yield f"{path}:{line}: {folder} includes {target}; includes only go down"


def kind_faults(path: str, tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Questions for the kind of a drafter outside of the folder of drafters."""
    if not path.startswith(f"{PACKAGE}/") or path.startswith(f"{PACKAGE}/{KINDS}/"):
        return
    kinds = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}.{KINDS}")
        for alias in node.names
        if alias.name != "Drafter"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if asked & kinds:
                yield f"{path}:{node.lineno}: asks for the kind {', '.join(asked & kinds)}"


def modules_named(path: str, tree: ast.AST, modules: set[str]) -> set[str]:
    """The modules of this tree that one of them imports, for types alone too."""
    names = {name for _, name in imported(tree, path, modules)}
    return (names & modules) - {module_name(path)}


def circle_faults(graph: dict[str, set[str]]) -> Iterator[str]:
    """Modules that import each other, by way of others or not; a package counts as its parts do.

    An import for types alone counts too: a reader of one module needs the other. In csrc/, a header
    and the source with its name count as one.
    """
    done: set[str] = set()

    def walk(module: str, trail: list[str]) -> Iterator[str]:
        if module in trail:
            yield f"a circle of imports: {' -> '.join([*trail[trail.index(module) :], module])}"
        elif module not in done:
            for name in sorted(graph.get(module, ())):
                yield from walk(name, [*trail, module])
            done.add(module)

    for module in sorted(graph):
        yield from walk(module, [])


def text_faults(path: str, text: str) -> Iterator[str]:
    """Registries' hosts, paths of a machine, and objects that Windows cannot end a thread with."""
    for number, line in enumerate(text.split("\n"), 1):
        if HOSTS.search(line):
            yield f"{path}:{number}: names a package registry's host"
        if PLACES.search(line):
            yield f"{path}:{number}: names a place of one machine"
        if DESTROYED.search(line):
            yield f"{path}:{number}: a thread destroys it when it ends: OF_THREAD of csrc/rpc/"


def skip_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """Skips without a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in SKIPS:
            owner = ast.unparse(node.value)
            call = next(
                (c for c in ast.walk(tree) if isinstance(c, ast.Call) and c.func is node), None
            )
            n_args = len(call.args) if call else 0
            has_reason = call is not None and any(k.arg == "reason" for k in call.keywords)
            if owner in ("pytest", "pytest.mark") and not has_reason and n_args <= SKIPS[node.attr]:
                yield f"{path}:{node.lineno}: {owner}.{node.attr} without a reason"


def faults() -> Iterator[str]:
    """All of them."""
    files = listed_files()
    modules = {module_name(path) for path in files if path.endswith(".py")}
    graph: dict[str, set[str]] = {}
    n_lines: dict[str, int] = {}
    n_words = 0
    for path in files:
        if path.startswith("vendor/llama.cpp/"):
            yield f"{path}: the engine's source is fetched, never committed"
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", "replace")
        if path.endswith((".py", ".c", ".cpp", ".h")):
            n_lines[room_of(path)] = n_lines.get(room_of(path), 0) + text.count("\n")
        if re.match(r"docs/.*\.md$", path) and path not in WRITTEN_BY_PROGRAMS:
            n_words += len(text.split())
        yield from text_faults(path, text)
        if path.startswith("csrc/") and path.endswith((".c", ".cpp", ".h")):
            yield from include_faults(path, text, set(files))
            unit = path.rpartition(".")[0]
            names = {name.rpartition(".")[0] for _, name in included(path, text, set(files))}
            graph.setdefault(unit, set()).update(names - {unit})
        if path.endswith(".py"):
            tree = ast.parse(text, path)
            yield from loop_faults(path, tree)
            yield from import_faults(path, tree, modules)
            yield from kind_faults(path, tree, modules)
            yield from skip_faults(path, tree)
            if path.startswith(f"{PACKAGE}/"):
                graph[module_name(path)] = modules_named(path, tree, modules)
    yield from budget_faults(n_lines, n_words)
    yield from circle_faults(graph)


def main() -> int:
    """Prints the faults; 1 when there are any."""
    all_faults = list(faults())
    for fault in all_faults:
        print(fault)
    if not all_faults:
        print(f"the architecture holds: {len(listed_files())} files")
    return 1 if all_faults else 0


if __name__ == "__main__":
    sys.exit(main())
