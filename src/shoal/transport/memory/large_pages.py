"""Shared memory in large pages, if the kernel can: a copy looks up 512 times fewer pages and takes a third less time.

The kernel gives shared memory small pages unless its administrator says otherwise. Since Linux 6.1 a process may ask
for large pages in place of small ones that exist. That takes about 5 ms for each, so it is done in the background;
where it cannot be done, everything works with small pages.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref

LARGE_PAGE = 2 << 20  # bytes
_MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_aligned(descriptor: int, size: int, *, writable: bool) -> ctypes.Array[ctypes.c_ubyte]:
    """A shared file, mapped at an address that large pages need. It is unmapped when nothing refers to the result."""
    length = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    reserved = _map(0, length + LARGE_PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    address = -(-reserved // LARGE_PAGE) * LARGE_PAGE
    end = reserved + length + LARGE_PAGE
    try:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        _map(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
    except OSError:
        _libc.munmap(reserved, end - reserved)
        raise
    for start, stop in ((reserved, address), (address + length, end)):
        if stop > start:
            _libc.munmap(start, stop - start)
    mapped = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, length).atexit = False  # the process's end unmaps everything
    return mapped


def _map(address: int, size: int, protection: int, flags: int, descriptor: int) -> int:
    found: int = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"{os.strerror(error)}: {size} bytes of shared memory cannot be mapped")
    return found


class Collapse:
    """Brings a range of a writable, aligned mapping into large pages, in the background. All of it takes memory."""

    def __init__(self, mapped: ctypes.Array[ctypes.c_ubyte], start: int, stop: int) -> None:
        """`start` and `stop` in bytes. Only parts that fill a whole large page become one."""
        self._mapped = mapped
        self._places = range(-(-start // LARGE_PAGE), stop // LARGE_PAGE)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-large-pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and leave the rest in small pages. Safe to call twice."""
        self._is_over.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until all pages are done."""
        self._thread.join()

    def _run(self) -> None:
        base = ctypes.addressof(self._mapped)
        for place in self._places:
            self._mapped[place * LARGE_PAGE]  # there must be a small page before there can be a large one
            refused = _libc.madvise(base + place * LARGE_PAGE, LARGE_PAGE, _MADV_COLLAPSE) != 0
            if self._is_over.is_set() or (refused and ctypes.get_errno() not in (errno.EAGAIN, errno.EBUSY)):
                return  # the kernel is too old, or has no large pages left
