"""Gives Wine 8 what packages import of Windows and Wine lacks, in libraries that MinGW builds.

NumPy's complex functions are in a library that hands on all others; the name that the packages'
files import is changed to it. Rust's packages take random bytes from a library of one function.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_TOOLS = "x86_64-w64-mingw32-"
_WINDOWS, _OURS = "api-ms-win-crt-math-l1-1-0.dll", "xpi-ms-win-crt-math-l1-1-0.dll"
_REAL = {"creal", "cimag", "cabs", "carg"}
_COMPLEX = {
    "csin", "ccos", "ctan", "csinh", "ccosh", "ctanh", "casin", "cacos", "catan", "casinh",
    "cacosh", "catanh", "cexp", "clog", "csqrt", "cpow",
}  # fmt: skip
_RANDOM = """#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(void * data, size_t n) {
    return RtlGenRandom(data, (ULONG) n);
}
"""
# Windows hands complex numbers over as structures, in memory.
_PREFIX = """#include <complex.h>
typedef struct { double re, im; } pair;
typedef struct { float re, im; } pairf;
#define IN(z) (z.re + z.im * I)
"""


def _functions() -> list[str]:
    """The names of the functions of Windows' C library."""
    gcc = [f"{_TOOLS}gcc", "-print-file-name=libucrtbase.a"]
    library = subprocess.run(gcc, check=True, capture_output=True, text=True).stdout.strip()
    names = subprocess.run([f"{_TOOLS}nm", library], check=True, capture_output=True, text=True)
    return sorted(set(re.findall(r" I __imp_(\w+)", names.stdout)))


def _wrapper(name: str) -> str | None:
    """A complex function of MinGW's as Windows calls it."""
    plain = name.removesuffix("f")
    end = "f" if name.endswith("f") else ""
    kind, pair = ("float", "pairf") if end else ("double", "pair")
    if plain in _REAL:
        return f"{kind} our_{name}({pair} a) {{ return {name}(IN(a)); }}"
    if plain not in _COMPLEX:
        return None
    more, its = (f", {pair} b", ", IN(b)") if plain == "cpow" else ("", "")
    return (
        f"{pair} our_{name}({pair} a{more}) {{ {kind} complex z = {name}(IN(a){its});\n"
        f"    return ({pair}) {{ creal{end}(z), cimag{end}(z) }}; }}"
    )


def _build(library: Path, source: str, *more: Path | str) -> None:
    code = library.with_suffix(".c")
    code.write_text(source)
    command = [f"{_TOOLS}gcc", "-shared", "-static", "-O1", "-o", library, code, *more]
    subprocess.run(command, check=True)


def add_libraries(packages: Path, python: Path) -> None:
    """Builds the libraries beside Python and has the packages' files import them."""
    source, exports = [_PREFIX], [f"LIBRARY {_OURS}", "EXPORTS"]
    for name in _functions():
        wrapper = _wrapper(name)
        exports.append(f"{name} = our_{name}" if wrapper else f"{name} = ucrtbase.{name}")
        source.append(wrapper or "")
    definitions = python / "math.def"
    definitions.write_text("\n".join(exports) + "\n")
    _build(python / _OURS, "\n".join(source) + "\n", definitions)
    _build(python / "bcryptprimitives.dll", _RANDOM, "-ladvapi32")
    for path in packages.rglob("*.*"):
        if path.suffix in {".pyd", ".dll"}:
            path.write_bytes(path.read_bytes().replace(_WINDOWS.encode(), _OURS.encode()))
