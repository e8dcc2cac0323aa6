"""The remedy for a missing shared library of a backend: an ImportError in one line."""

from __future__ import annotations

import re

# The messages of the loaders of glibc and of musl.
_MISSING = re.compile(
    r"^(?:Error loading shared library )?(?P<name>lib[\w+-]+\.so[.\d]*): "
    r"(?:cannot open shared object file|No such file)"
)
_CUDA = re.compile(r"lib(cublas|cublasLt|cudart)\.so\.(?P<major>\d+)$")


def explained(error: ImportError) -> ImportError:
    """The same error with the remedy, if it names a library that a backend needs."""
    match = _MISSING.search(str(error))
    if match is None:
        return error
    name = match["name"]
    return ImportError(
        f"{name} was not found, which this build of pyllama_spec needs: {_remedy(name)}",
        name=error.name, path=error.path,
    )  # fmt: skip


def _remedy(name: str) -> str:
    cuda = _CUDA.match(name)
    if cuda is not None:
        major = int(cuda["major"])
        end = "" if major >= 13 else f"-cu{major}"  # their names had the version in them before 13
        return (
            f"pip install nvidia-cublas{end} nvidia-cuda-runtime{end}, beside this package, or put "
            "the toolkit's folder of libraries into LD_LIBRARY_PATH"
        )
    if name.startswith("libcuda."):
        return (
            "it comes with NVIDIA's driver. Install that, or build for machines without one: "
            "pip install . -C cmake.define.GGML_CUDA=ON -C cmake.define.GGML_CUDA_NO_VMM=ON"
        )
    if name.startswith("libvulkan."):
        return "install Vulkan's loader (on Debian and Ubuntu: apt-get install libvulkan1)"
    return "install the package that it belongs to, or build it here again: pip install ."
