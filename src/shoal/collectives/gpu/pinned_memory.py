"""Host memory that GPUs copy to and from by themselves, kept and used again.

It is ordinary memory of this process, in large pages, that is then registered with CUDA: neighbours on this machine
read it where it lies a third faster than memory that CUDA allocates. A tensor of it goes back into the pool when the
last view of it is gone, by itself. Not here: what is copied when (`gpu_copies`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

LEAST_BYTES = 64 * 1024
MOST_BYTES = 256 * 1024 * 1024  # of one piece; longer ones are ordinary memory, which the GPU copies more slowly
HUGE_PAGE = 2 * 1024 * 1024
_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs of this process

Register = Callable[[int, int], bool]  # address and bytes: whether they are pinned now


class PinnedMemory:
    """A pool of blocks, whose sizes are powers of two. From any thread."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._guard = threading.Lock()
        self._idle: dict[int, list[mmap.mmap]] = defaultdict(list)  # by size
        self.bytes = 0  # in blocks, idle or not

    def take(self, size: int) -> torch.Tensor:
        """So many bytes, with any values."""
        if not 0 < size <= MOST_BYTES:
            return torch.empty(size, dtype=torch.uint8)
        length = block_bytes(size)
        with self._guard:
            idle = self._idle[length]
            block = idle.pop() if idle else self._make(length)
        loan = _loan_type(length).from_buffer(block)
        loan.give_back = lambda: self._idle[length].append(block)  # appending needs no lock
        return torch.frombuffer(loan, dtype=torch.uint8, count=size)

    def _make(self, length: int) -> mmap.mmap:
        block = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # After a fork parent and child would share pages until one writes, and the GPU would go on with the old ones.
        block.madvise(mmap.MADV_DONTFORK)
        if length >= HUGE_PAGE:
            block.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self._register(address, length)  # where it cannot be, copies are slower and right all the same
        self.bytes += length
        return block


class _Loan(ctypes.Array[ctypes.c_char]):
    """Memory on loan. torch holds on to it as long as any tensor uses it."""

    _type_ = ctypes.c_char
    _length_ = 0
    give_back: Any

    def __del__(self) -> None:
        self.give_back()


@lru_cache(maxsize=64)
def _loan_type(length: int) -> Any:
    return type("_Loan", (_Loan,), {"_length_": length})


def block_bytes(size: int) -> int:
    """The power of two that holds so many bytes. Pure."""
    return max(LEAST_BYTES, 1 << max(size - 1, 0).bit_length())


def _register_with_cuda(address: int, size: int) -> bool:
    runtime: Any = torch.cuda.cudart()  # starts CUDA where nothing has yet
    if int(runtime.cudaHostRegister(address, size, _PORTABLE)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")  # CUDA keeps an error for whoever starts the next kernel to report: here
    return False


pool = PinnedMemory(_register_with_cuda)
