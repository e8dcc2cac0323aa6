"""Checks that rows are equal on a processor that this machine lacks and that Bochs emulates.

    python -m tools.emulated_rows --bochs DIR --debs DIR [--level LEVEL] [--arch ARCH ...] [WHEEL]

It boots a Linux whose only program is tools/emulated_guest.py, with the engine of the wheel
(dist/*.whl) and tiny models of the given architectures. Bochs executes each instruction as
documented, AVX-512 with BF16 too, but some hundred times slower. Booting takes a minute and a half
of processor time, each file with each cache type a few seconds. CONTRIBUTING.md explains --bochs
and --debs.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyllama_spec.engine.cpu_variants import CPU_VARIANTS
from tests.models import model_path
from tests.parity.latent_files import LATENT, latent_path
from tests.parity.sessions import TOYS

_GUEST = Path(__file__).with_name("emulated_guest.py")
_ARCHS = ("deepseek2", "glm-dsa", "bailingmoe3", "llama", "qwen35moe")
_SEEDS = (1, 2)  # of the weights and sizes of latent_path()
_PACKAGES = ("numpy", "numpy.libs", "cffi")
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3", "config-*",
    "__pycache__", "include", "f2py", "*.gguf", "*.pyi", "*.a",
)  # fmt: skip
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc; /bin/busybox mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
export OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 HOME=/ PYTHONPATH=/app
cd /app; {python} -u {guest} {arguments}
echo END; /bin/busybox poweroff -f
"""
_ISOLINUX = """DEFAULT l
LABEL l
 KERNEL /vmlinuz
 APPEND initrd=/initrd console=ttyS0 quiet rdinit=/init mitigations=off nokaslr nosmap nosmep \
no5lvl nopku apparmor=0 audit=0 tsc=reliable clocksource=tsc no_timer_check lpj=1000000
"""
# Bochs models with more features put this kernel into a loop of faults.
_BOCHSRC = """megs: 1536
romimage: file={bochs}/bios/BIOS-bochs-latest
vgaromimage: file={bochs}/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
cpu: model=corei7_skylake_x, ips=80000000, add_features="avx512vnni avx512bf16"
display_library: nogui
boot: cdrom
ata0-master: type=cdrom, path={folder}/boot.iso, status=inserted
com1: enabled=1, mode=file, dev={folder}/serial.txt
log: {folder}/bochs.log
panic: action=fatal
clock: sync=none, time0=utc
"""


def _shared_libraries(root: Path) -> set[Path]:
    """The system libraries that the programs and modules below a folder link to."""
    files = [str(p) for p in root.rglob("*") if ".so" in p.name or os.access(p, os.X_OK)]
    found: set[Path] = set()
    for file in (f for f in files if Path(f).is_file()):
        run = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        words = (word for line in run.stdout.splitlines() for word in line.split())
        found |= {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    return {p for p in found if not p.is_relative_to(root)}


def _fill(root: Path, wheel: Path, busybox: Path, files: Iterable[Path]) -> Path:
    """Copies everything the guest needs; returns the path of its Python."""
    for name in ("bin", "proc", "dev", "app"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.base_prefix, "bin", version)
    to = root / python.relative_to("/")
    to.parent.mkdir(parents=True)
    shutil.copy(python, to)
    library = Path(sys.base_prefix, "lib", version)
    shutil.copytree(library, root / library.relative_to("/"), ignore=_LEFT_OUT)
    packages = Path(sys.prefix, "lib", version, "site-packages")
    for name in _PACKAGES:
        shutil.copytree(packages / name, root / "app" / name, ignore=_LEFT_OUT)
    for file in (*packages.glob("_cffi_backend*"), _GUEST, *files):
        shutil.copy(file, root / "app")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if not n.endswith(".gguf")]
        archive.extractall(root / "app", names)
    for path in sorted(_shared_libraries(root)):
        at = root / path.relative_to("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, at)
    return python


def _cpio(root: Path) -> Iterator[bytes]:
    """The folder as an initrd archive (cpio, "newc")."""

    def entry(name: str, mode: int, data: bytes) -> bytes:
        numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % n for n in numbers) + name.encode() + b"\0"
        return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)

    for path in sorted(root.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        yield entry(str(path.relative_to(root)), path.stat().st_mode, data)
    yield entry("TRAILER!!!", 0, b"")


def _make_image(folder: Path, root: Path, debs: Path) -> None:
    iso = folder / "iso"
    (iso / "isolinux").mkdir(parents=True)
    shutil.copy(debs / "usr/lib/ISOLINUX/isolinux.bin", iso / "isolinux")
    shutil.copy(debs / "usr/lib/syslinux/modules/bios/ldlinux.c32", iso / "isolinux")
    shutil.copy(next((debs / "boot").glob("vmlinuz-*")), iso / "vmlinuz")
    (iso / "isolinux/isolinux.cfg").write_text(_ISOLINUX)
    with gzip.open(iso / "initrd", "wb", compresslevel=1) as file:
        file.writelines(_cpio(root))
    boot = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4"
    subprocess.run(
        [
            debs / "usr/bin/xorriso", "-as", "mkisofs", "-quiet", "-o", folder / "boot.iso",
            *boot.split(), "-boot-info-table", iso,
        ],
        env={**os.environ, "LD_LIBRARY_PATH": str(debs / "usr/lib/x86_64-linux-gnu")},
        check=True,
    )  # fmt: skip


def _run(folder: Path, bochs: Path, limit_s: float) -> str:
    """Runs the machine until it ends or its time is up; returns its serial output."""
    (folder / "bochsrc").write_text(_BOCHSRC.format(bochs=bochs.resolve(), folder=folder))
    serial, shown, end = folder / "serial.txt", 0, time.monotonic() + limit_s
    with subprocess.Popen(
        [bochs / "bochs", "-q", "-f", folder / "bochsrc"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
    ) as machine:  # fmt: skip
        text = ""
        while machine.poll() is None and time.monotonic() < end and "\nEND" not in text:
            time.sleep(1)
            text = serial.read_text(errors="replace") if serial.exists() else ""
            print(text[shown:], end="", flush=True)
            shown = len(text)
            if "Kernel panic" in text:
                break
        machine.kill()
    return text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", nargs="?", type=Path, help="default: the wheel in dist/")
    parser.add_argument("--bochs", type=Path, required=True, help="folder of the Bochs build")
    parser.add_argument("--debs", type=Path, required=True, help="folder of unpacked packages")
    parser.add_argument("--level", choices=list(CPU_VARIANTS), default=list(CPU_VARIANTS)[-1])
    parser.add_argument("--arch", nargs="+", default=list(_ARCHS))
    parser.add_argument("--minutes", type=float, default=30)
    return parser.parse_args()


def main() -> int:
    """Runs the comparison in the guest; returns 0 if all rows are equal."""
    options = _options()
    wheel = options.wheel or next(Path("dist").glob("*.whl"))
    files = [model_path(arch) for arch in options.arch if arch in TOYS]
    files += [latent_path(arch, seed) for arch in options.arch if arch in LATENT for seed in _SEEDS]
    features = ",".join(name for names in CPU_VARIANTS.values() for name in names)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        root = folder / "root"
        python = _fill(root, wheel, options.debs / "bin/busybox", files)
        words = [options.level, features, *(file.name for file in files)]
        init = _INIT.format(python=python, guest=_GUEST.name, arguments=" ".join(words))
        (root / "init").write_text(init)
        (root / "init").chmod(0o755)
        _make_image(folder, root, options.debs)
        text = _run(folder, options.bochs, 60 * options.minutes)
    return 0 if "\nequal" in text else 1


if __name__ == "__main__":
    raise SystemExit(main())
