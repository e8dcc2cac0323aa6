"""The cffi builder: reads the declaration from abi/llama-spec.h, so that it is written once.

Run by CMake as ``python -m cffi.gen_src exec-python csrc/ffi_build.py OUT``.
"""

from pathlib import Path

from cffi import FFI

BEGIN, END = "/* cdef begin */", "/* cdef end */"


def declaration(header: str) -> str:
    """The part of the header between its two markers."""
    _, _, rest = header.partition(BEGIN)
    body, found, _ = rest.partition(END)
    if not found:
        raise SystemExit(f"csrc/abi/llama-spec.h has no '{BEGIN}' ... '{END}' part")
    return body


# exec-python runs this file without __file__; cffi passes the path as co_filename.
HERE = Path(declaration.__code__.co_filename).resolve().parent

ffibuilder = FFI()
ffibuilder.cdef(declaration((HERE / "abi" / "llama-spec.h").read_text(encoding="utf-8")))
ffibuilder.cdef('extern "Python" bool pyllama_spec_on_progress(float fraction, void * user);')
ffibuilder.cdef('extern "Python" bool pyllama_spec_wants_to_stop(void);')
ffibuilder.set_source("pyllama_spec._engine", '#include "abi/llama-spec.h"', py_limited_api=True)
