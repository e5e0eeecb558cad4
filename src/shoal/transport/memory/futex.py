"""Sleeping on a 32-bit word of shared memory until somebody wakes its sleepers: Linux futexes between processes.

A sleeper may have mapped the word read-only. Not here: reading and writing the words.
"""

from __future__ import annotations

import ctypes
import platform

from shoal.transport.native import native

_NUMBERS = {"x86_64": 202, "aarch64": 98}  # of the system call
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_number = _NUMBERS.get(platform.machine(), 0)


def is_available() -> bool:
    return _number != 0


def wake(address: int) -> None:
    """Wake all that sleep on this word."""
    _call(address, _WAKE, _ALL, None)


def wait(address: int, expected: int, seconds: float, *, spin: int = 0) -> None:
    """Return when the word is not `expected`, when woken, or after `seconds`; sometimes for no reason.

    `spin`: how often to look at the word before sleeping, in C. Only useful if there are fewer ranks than cores.
    """
    if native is not None:
        native.wait(address, expected, spin, seconds)
    else:
        limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _call(address, _WAIT, expected, ctypes.byref(limit))


def _call(address: int, what: int, value: int, limit: object) -> None:
    _libc.syscall(ctypes.c_long(_number), ctypes.c_void_p(address), what, ctypes.c_uint32(value), limit, None, 0)
