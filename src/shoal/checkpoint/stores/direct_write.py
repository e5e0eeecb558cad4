"""Writing a file past the page cache, as far as its bytes lie on block boundaries in memory and in the file.

The disk then takes the bytes straight from the memory: no copy in the kernel, hardly any processor time taken from
training, and the cache keeps the pages that training reads. Bytes off the boundaries, and all bytes where the file
system has no direct writes, go through the cache. Neither way is durable by itself: the caller flushes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable

from shoal.checkpoint.stores.store import Buffer

BLOCK = 4096  # bytes; boundaries of this size are enough for all present disks
NOT_OFFERED = (errno.EINVAL, errno.EOPNOTSUPP)  # what file systems without direct writes answer


class DirectWriter:
    """Appends to a file that is open for writing and empty."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0  # bytes written so far
        self._flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)  # as they are now
        self._is_offered = True  # until the file system says otherwise

    def write(self, chunks: Iterable[Buffer]) -> None:
        """Raises OSError."""
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            while rest:
                rest = rest[self._write_some(rest) :]

    def _write_some(self, data: memoryview) -> int:
        blocks = self._whole_blocks(data)
        if blocks:
            try:
                self._switch(self._flags | os.O_DIRECT)
                return self._append(data[:blocks])
            except OSError as error:
                if error.errno not in NOT_OFFERED:
                    raise
                self._is_offered = False
        self._switch(self._flags & ~os.O_DIRECT)
        return self._append(data)

    def _whole_blocks(self, data: memoryview) -> int:
        """How many of these bytes can be written past the cache now."""
        if not self._is_offered or data.readonly or len(data) < BLOCK or self._position % BLOCK:
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        return 0 if address % BLOCK else len(data) // BLOCK * BLOCK

    def _switch(self, flags: int) -> None:
        if flags != self._flags:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)
            self._flags = flags

    def _append(self, data: memoryview) -> int:
        count = os.write(self._descriptor, data)
        self._position += count
        return count
