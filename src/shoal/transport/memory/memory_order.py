"""The order in which other processes see what this one writes to shared memory, and fences where that has to be forced.

x86 processors show writes to others in the order in which they were made, and read in order. Others (ARM, POWER,
RISC-V) do not: there a fence is needed between what is told and the word that tells it, and between reading that word
and reading what it tells of. Python has no fence; the C extension has one. Where neither the processor keeps the order
nor the extension is there, memory is not shared at all: bytes go through sockets.
"""

from __future__ import annotations

import platform
import threading

from shoal.transport.native import native

_ORDERED = ("x86_64", "amd64", "i386", "i486", "i586", "i686")


def keeps_order(machine: str) -> bool:
    """Whether processors of this kind keep the order of writes, and that of reads. Pure."""
    return machine.lower() in _ORDERED


def why_not_shared(machine: str, *, has_fence: bool) -> str:
    """Why memory cannot be shared between processes there; empty where it can. Pure."""
    if keeps_order(machine) or has_fence:
        return ""
    return (
        f"processors of type {machine} do not keep the order of writes and the C extension, which has fences, is not "
        "there: memory is not shared, and all goes through sockets"
    )


# Whether order has to be forced: callers ask before they call `fence`, since a call costs more than the question.
is_weak = not keeps_order(platform.machine())
why_not = why_not_shared(platform.machine(), has_fence=native is not None)
_lock = threading.Lock()


def fence() -> None:
    """What was written before is seen before what is written afterwards; the same for reads. For weak processors."""
    if native is not None:
        native.fence()


def full_fence() -> None:
    """What was written before is seen by others before what is read afterwards is read: no processor keeps that."""
    if native is not None:
        native.fence()
    else:
        with _lock:  # x86 cannot take a lock without it, and others do not come here
            pass
