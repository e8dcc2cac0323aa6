"""What Windows says about the machine, and its console; empty elsewhere."""

from __future__ import annotations

import ctypes
import sys

if sys.platform == "win32":
    _KERNEL = ctypes.windll.kernel32
    # Of a record of GetLogicalProcessorInformation: eight-byte words, and the kind of a core.
    _N_WORDS, _CORE = 4, 0
    # GetStdHandle()'s numbers of stdout and stderr, and a console's flag.
    _OUTPUTS, _HAS_COLOURS = (-11, -12), 4

    def memory_bytes() -> int:
        """The machine's memory."""
        status = (ctypes.c_uint64 * 8)(64)  # its own size, and then the whole memory
        return status[1] if _KERNEL.GlobalMemoryStatusEx(status) else sys.maxsize

    def n_cores() -> int:
        """The physical cores; 0 where the system does not report them."""
        n_bytes = ctypes.c_ulong()
        _KERNEL.GetLogicalProcessorInformation(None, ctypes.byref(n_bytes))
        records = (ctypes.c_uint64 * (n_bytes.value // 8))()
        if not _KERNEL.GetLogicalProcessorInformation(records, ctypes.byref(n_bytes)):
            return 0
        return sum(kind & 0xFFFFFFFF == _CORE for kind in records[1::_N_WORDS])

    def show_colours() -> None:
        """Has the console obey the escape sequences of colours, as newer ones do unasked."""
        mode = ctypes.c_ulong()
        for number in _OUTPUTS:
            handle = _KERNEL.GetStdHandle(number)
            if _KERNEL.GetConsoleMode(handle, ctypes.byref(mode)):
                _KERNEL.SetConsoleMode(handle, mode.value | _HAS_COLOURS)
