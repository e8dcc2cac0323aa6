"""Stores the state of a fit atomically, for the run that wrote it only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch

from pyllama_spec.train.corpus.store import check_same
from pyllama_spec.train.errors import CheckpointError
from pyllama_spec.train.files import write_atomic

_FORMAT = 1


class Checkpoints:
    """The files of a folder: `last.pt` to continue from, and `best.pt` to export."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder, self._identity = folder, identity

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Writes a state."""
        content = {"format": _FORMAT, "identity": self._identity, "state": state}
        write_atomic(self._path(name), lambda file: save_whole(content, file))

    def load(self, name: str) -> dict[str, Any] | None:
        """Loads a state; None if there is none."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            known = content["format"] == _FORMAT
            identity, state = content["identity"], content["state"]
        except Exception as error:  # noqa: BLE001 - whatever a damaged file makes of unpickling
            raise CheckpointError(
                f"{path} is damaged ({type(error).__name__}: {error}); --restart begins the "
                "training again with the same text"
            ) from None
        if not known:
            raise CheckpointError(f"{path} is of another version; --restart begins again")
        check_same(identity, self._identity, path, ", or --restart to train from the beginning")
        checkpoint: dict[str, Any] = state
        return checkpoint

    @property
    def remedy(self) -> str:
        """The remedy for a diverged fit: its last state and how to restart, as "... with"."""
        return f"The checkpoint in {self.folder} is of before; begin again with --restart and"

    def clear(self) -> None:
        """Deletes the files."""
        for name in ("last", "best"):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"


class KeptInMemory(Checkpoints):
    """The best state of a fit in memory, for a fit without files."""

    def __init__(self) -> None:
        super().__init__(Path(), {})
        self._best: dict[str, Any] | None = None

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Keeps the weights to export; ignores states to continue from."""
        if name == "best":
            head = {key: value.detach().cpu().clone() for key, value in state["head"].items()}
            self._best = {**state, "head": head}

    def load(self, name: str) -> dict[str, Any] | None:
        """The best state; None if there is none."""
        return self._best if name == "best" else None

    @property
    def remedy(self) -> str:
        """See Checkpoints."""
        return "The draft is as it was; begin again with"

    def clear(self) -> None:
        """Drops the state."""
        self._best = None


class _Disk:
    """A file that keeps the system's error, which torch would hide for a full disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def save_whole(content: dict[str, Any], file: BinaryIO) -> None:
    """torch.save() that raises OSError if a write fails."""
    disk = _Disk(file)
    try:
        torch.save(content, disk)
    except RuntimeError:
        if disk.error is None:
            raise
        raise disk.error from None
