"""Memory that one process writes and others of the same machine read: anonymous, and freed with the last of them.

A process proves that it shares a machine with another: it opens the other's arena through the kernel and finds in it
the random bytes that the other announced. Names of hosts, containers or namespaces play no part.

An offer cannot be trusted: it may name a pipe that nobody writes, a device that reacts to being opened, or a file that
shrinks. So the file is examined before it is opened (`O_PATH` opens nothing), exactly the examined file is opened, and
only a sealed file in anonymous memory, of the announced size, is mapped. Not here: what is written into an arena
(`team`, and the collectives' mailbox).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import stat
from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from shoal.bounds import Ordinal, Size
from shoal.transport.memory import memory_order
from shoal.transport.memory.large_pages import LARGE_PAGE, Collapse, map_aligned

NONCE_BYTES = 32
RESERVED = 64  # bytes at the start of every arena: the nonce and spare room
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # so that mapped pages never vanish under a reader
MOST_BYTES = 1 << 40


class Offer(msgspec.Struct, frozen=True):
    """What other processes need to find an arena and recognise it."""

    process: Ordinal
    descriptor: Ordinal
    size: Size
    nonce: Annotated[bytes, Meta(max_length=64)]


class _Mapping:
    """A mapped file. It stays mapped after `close` while something still refers to its memory."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        self._mapped: ctypes.Array[ctypes.c_ubyte] | None = map_aligned(descriptor, size, writable=writable)
        memory = memoryview(self._mapped).cast("B")
        self.memory = memory if writable else memory.toreadonly()
        self.address = ctypes.addressof(self._mapped)
        self.size = size

    def close(self) -> None:
        """Safe to call twice."""
        self.memory.release()
        self._mapped = None


class Arena(_Mapping):
    """An arena that this process writes."""

    def __init__(self, descriptor: int, size: int, nonce: bytes) -> None:
        super().__init__(descriptor, size, writable=True)
        self._descriptor = descriptor
        self._collapse: Collapse | None = None
        self.memory[:NONCE_BYTES] = nonce
        self.offer = Offer(process=os.getpid(), descriptor=descriptor, size=size, nonce=nonce)

    @classmethod
    def create(cls, size: int) -> Self:
        """An arena of zeros; pages take memory only when they are written."""
        descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            return cls(descriptor, size, secrets.token_bytes(NONCE_BYTES))
        except BaseException:
            os.close(descriptor)
            raise

    def use_large_pages(self, start: int, stop: int) -> None:
        """Bring bytes `start` to `stop` into large pages, if the kernel can, in the background. All take memory."""
        if self._collapse is None and self._mapped is not None and stop - start >= LARGE_PAGE:
            self._collapse = Collapse(self._mapped, start, stop)

    def withdraw(self) -> None:
        """Close the descriptor, so that nobody else can open the arena; existing mappings stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        if self._collapse is not None:
            self._collapse.close()
            self._collapse = None
        self.withdraw()
        super().close()


class PeerArena(_Mapping):
    """Another process's arena, mapped read-only."""

    @classmethod
    def open(cls, offer: Offer) -> Self | None:
        """None: the arena is not on this machine, this process may not open it, or it cannot be trusted."""
        if memory_order.why_not or not RESERVED <= offer.size <= MOST_BYTES:
            return None
        try:
            descriptor = _open_memory(f"/proc/{offer.process:d}/fd/{offer.descriptor:d}")
        except OSError:
            return None
        try:
            # Check the seals before the size: a file that is sealed against shrinking and growing keeps its size.
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) != _SEALS or os.fstat(descriptor).st_size != offer.size:
                return None
            if not secrets.compare_digest(os.pread(descriptor, NONCE_BYTES, 0), offer.nonce):
                return None
            return cls(descriptor, offer.size, writable=False)
        except OSError:  # that descriptor is something else by now
            return None
        finally:
            os.close(descriptor)


def _open_memory(path: str) -> int:
    """A descriptor for reading, if the path leads to a file in anonymous memory; else `OSError`. Never blocks."""
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        about = os.fstat(found)
        # Only pages of the usual size: reading a huge page that cannot be allocated would kill this process.
        if not stat.S_ISREG(about.st_mode) or about.st_nlink or os.fstatvfs(found).f_bsize != mmap.PAGESIZE:
            raise OSError(errno.EINVAL, "not a file in anonymous memory")
        # Through the descriptor, which stays the examined file even if the path leads elsewhere by now.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{found:d}", flags)
    finally:
        os.close(found)


def address_of(buffer: mmap.mmap | memoryview | bytearray) -> int:
    """Where a buffer lies in this process's memory; it may be read-only."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def word_at(address: int) -> ctypes.c_uint32:
    """A 32-bit word of shared memory: reading and writing `.value` is one access."""
    return ctypes.c_uint32.from_address(address)
