"""The cffi builder: reads the declaration from the headers of the C ABI, their only place.

Run by CMake as ``python -m cffi.gen_src exec-python csrc/ffi_build.py OUT``.
"""

from pathlib import Path

from cffi import FFI

BEGIN, END = "/* cdef begin */", "/* cdef end */"


HEADERS = ("base/abi_types.h", "abi/llama-spec.h")


def declaration(header: Path) -> str:
    """The part of a header between its two markers."""
    _, _, rest = header.read_text(encoding="utf-8").partition(BEGIN)
    body, end, _ = rest.partition(END)
    if not end:
        raise SystemExit(f"{header} has no '{BEGIN}' ... '{END}' part")
    return body


# exec-python runs this file without __file__; cffi passes the path as co_filename.
HERE = Path(declaration.__code__.co_filename).resolve().parent

ffibuilder = FFI()
ffibuilder.cdef("".join(declaration(HERE / name) for name in HEADERS))
ffibuilder.cdef('extern "Python" bool pyllama_spec_on_progress(float fraction, void * user);')
ffibuilder.cdef('extern "Python" bool pyllama_spec_wants_to_stop(void);')
ffibuilder.cdef(
    'extern "Python" bool pyllama_spec_on_next(void * user, int32_t chain, int32_t id, float p);'
)
ffibuilder.set_source("pyllama_spec._engine", '#include "abi/llama-spec.h"', py_limited_api=True)
