"""Checks a CUDA build on a machine without a GPU, at the end of `make build-cuda`.

It links the required libraries and none that only a driver provides, hides its symbols, and without
a driver it can be imported and computes on the CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

from pyllama_spec.engine import Batch, Context, Model, supports_gpu
from pyllama_spec.engine.system import backends
from tests.models import model_path

# Where the import found it.
MODULE = str(sys.modules["pyllama_spec._engine"].__file__)
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")


def main() -> int:
    """Prints what was found."""
    faults = [*_link_faults(), *_run_faults()]
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    return bool(faults)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _link_faults() -> list[str]:
    """Prints the needed libraries and the exported names; returns the faults."""
    libraries = sorted(_NEEDED.findall(_output("readelf", "-dW", MODULE)))
    print(f"{MODULE}: {Path(MODULE).stat().st_size / 1e6:.0f} MB")
    print(f"needs {', '.join(libraries)}")
    names = [
        line.split()[-1] for line in _output("nm", "-D", "--defined-only", MODULE).splitlines()
    ]
    print(f"exports {', '.join(names)}")
    faults = [
        f"it needs no {name}: the CUDA backend is not in it"
        for name in ("libcublas.so.", "libcudart.so.")
        if not any(library.startswith(name) for library in libraries)
    ]
    if any(library.startswith("libcuda.so") for library in libraries) and not supports_gpu():
        faults.append("it needs the driver's libcuda, which a machine without a driver lacks")
    if names != ["PyInit__engine"]:
        faults.append("it exports more than PyInit__engine")
    return faults


def _run_faults() -> list[str]:
    """Prints the devices and a decode's place; returns the faults."""
    faults, devices, has_gpu = [], backends(), supports_gpu()
    print(f"devices by backend: {devices}")
    if "CUDA" not in devices or bool(devices["CUDA"]) != has_gpu:
        faults.append(f"supports_gpu() says {has_gpu}")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        with Model(model_path("llama"), n_gpu_layers=-1) as model:
            print(repr(model), *(str(note.message) for note in notes), sep="\n")
            if model.is_on_gpu != has_gpu or bool(notes) == has_gpu:
                faults.append("layers that were asked for are missing, and nothing says so")
            with Context(model, n_ctx=64) as context:
                batch = Batch(8)
                batch.extend([1, 2, 3], 0, output_last=True)
                context.decode(batch)
                print(f"decoded; the likeliest token is {int(context.logits(2).argmax())}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
