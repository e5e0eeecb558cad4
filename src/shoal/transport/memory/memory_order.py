"""The order in which other processes see this one's writes to shared memory, and fences that force it.

x86 processors make writes visible to others in order, and read in order. Others (ARM, POWER, RISC-V) do not: they need
a fence between writing data and writing the word that announces it, and between reading that word and reading the data.
Python has no fence; the C extension has one. If the processor does not keep the order and the extension is missing,
memory is not shared at all: bytes go through sockets.
"""

from __future__ import annotations

import platform
import threading

from shoal.transport.native import native

_ORDERED = ("x86_64", "amd64", "i386", "i486", "i586", "i686")


def keeps_order(machine: str) -> bool:
    """Whether processors of this kind keep the order of writes and of reads. Pure."""
    return machine.lower() in _ORDERED


def why_not_shared(machine: str, *, has_fence: bool) -> str:
    """Why processes cannot share memory on such a machine; empty: they can. Pure."""
    if keeps_order(machine) or has_fence:
        return ""
    return (
        f"processors of type {machine} do not keep the order of writes and the C extension, which has fences, is not "
        "there: memory is not shared, and all goes through sockets"
    )


# Whether order has to be forced. Callers check this before they call `fence`, since the call costs more than the check.
is_weak = not keeps_order(platform.machine())
why_not = why_not_shared(platform.machine(), has_fence=native is not None)
_lock = threading.Lock()


def fence() -> None:
    """Earlier writes are seen before later writes, and earlier reads come before later reads. For weak processors."""
    if native is not None:
        native.fence()


def full_fence() -> None:
    """Others see earlier writes before this process makes later reads: no processor keeps that order by itself."""
    if native is not None:
        native.fence()
    else:
        with _lock:  # taking a lock is a full fence on x86; other processors get here only with the extension
            pass
