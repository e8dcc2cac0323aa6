"""What a context counts: the use of its threads, and transfers between host and devices."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyllama_spec.engine.binding import check, ffi, lib


class ThreadUse(NamedTuple):
    """Growing counts of a target's context and its drafts'; 0 with one thread.

    If other programs use the cores, threads wait for the one that lost its core. This wait is
    measured. If fewer threads are faster, fewer compute, with equal numbers.

    Attributes:
        n_graphs: physical batches that several threads could compute.
        n_with_fewer: the number of those computed by fewer than all threads.
    """

    n_graphs: int = 0
    n_with_fewer: int = 0


class Transfers(NamedTuple):
    """Growing counts; all 0 if everything is on the CPU.

    Attributes:
        bytes_to_device: from the host to devices: ids, positions, masks, input rows of a draft.
        bytes_to_host: from devices to the host: layer inputs, logits, candidates of a draft.
        bytes_between: from one device to another directly.
        copies_to_device, copies_to_host, copies_between: the numbers of copies.
        synchronisations: how often the host waited for a device; blocking copies are not counted.
        graphs: graphs handed to a device: with an unsplit model, one per physical batch.
    """

    bytes_to_device: int = 0
    bytes_to_host: int = 0
    bytes_between: int = 0
    copies_to_device: int = 0
    copies_to_host: int = 0
    copies_between: int = 0
    synchronisations: int = 0
    graphs: int = 0

    def since(self, before: Transfers) -> Transfers:
        """The difference to the counts `before`."""
        return Transfers(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Transfers) -> Transfers:
        """The sum of both."""
        return Transfers(*(a + b for a, b in zip(self, other, strict=True)))


NO_TRANSFERS = Transfers()


def read_transfers(handle: Any, *, with_drafts: bool) -> Transfers:
    """The transfers of a context, or of all contexts that share its threads."""
    raw = ffi.new("struct llama_spec_transfers *")
    check(lib.llama_spec_get_transfers(handle, with_drafts, raw), "cannot read the context")
    return Transfers(
        raw.bytes_to_device, raw.bytes_to_host, raw.bytes_between, raw.n_to_device, raw.n_to_host,
        raw.n_between, raw.n_synchronisations, raw.n_graphs,
    )  # fmt: skip
