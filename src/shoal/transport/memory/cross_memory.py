"""Reading another process's memory directly: Linux's cross-memory attach. Nothing is ever written there."""

from __future__ import annotations

import ctypes
import errno
import os

from shoal.transport.native import native

_PR_SET_PTRACER = 0x59616D61  # tells Yama which process may read this one's memory


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_read = getattr(_libc, "process_vm_readv", None)  # some C libraries do not have it
if _read is not None:
    _read.restype = ctypes.c_ssize_t


def allow(process: int) -> None:
    """Let that process and its descendants read this one's memory, if the kernel requires permission. Never fails."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def is_gone(process: int) -> bool:
    """Whether the process has given up its memory: it is dead, though its pidfd tells only once that memory is freed.

    Freeing takes 0.2 s for each GB here. False where this cannot be told.
    """
    if _read is None:
        return False
    byte = ctypes.c_char()
    here, there = _Piece(ctypes.addressof(byte), 1), _Piece(0, 1)  # no process maps address 0, so nothing is ever read
    return _read(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0 and ctypes.get_errno() == errno.ESRCH


def read(process: int, remote: int, local: int, size: int) -> None:
    """Copy `size` bytes at address `remote` of another process to `local` of this one. `OSError`: it is impossible."""
    if native is not None:
        native.read(process, remote, local, size)
        return
    if _read is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while size:
        here, there = _Piece(local, size), _Piece(remote, size)
        got = _read(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got <= 0:
            error = ctypes.get_errno() or errno.EFAULT
            raise OSError(error, os.strerror(error))
        local, remote, size = local + got, remote + got, size - got
