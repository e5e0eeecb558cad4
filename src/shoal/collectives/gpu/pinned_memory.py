"""A pool of pinned host memory, which GPUs copy to and from by themselves.

It is ordinary memory of this process, in large pages, that is then registered with CUDA: other processes of this
machine read it a third faster than memory that CUDA allocates. A tensor's memory goes back into the pool by itself when
the last view of it is gone. Not here: what is copied when (`gpu_copies`).
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
MOST_BYTES = 256 * 1024 * 1024  # of one block; larger ones are ordinary memory, which the GPU copies more slowly
HUGE_PAGE = 2 * 1024 * 1024
_PORTABLE = 1  # cudaHostRegisterPortable: for all GPUs of this process

Register = Callable[[int, int], bool]  # takes address and bytes, returns whether they are pinned now


class PinnedMemory:
    """A pool of blocks, whose sizes are powers of two. From any thread."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._guard = threading.Lock()
        self._idle: dict[int, list[mmap.mmap]] = defaultdict(list)  # by size
        self.bytes = 0  # in blocks, idle or not

    def take(self, size: int) -> torch.Tensor:
        """`size` bytes, uninitialized."""
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
        # After a fork, parent and child share pages until one writes; the GPU would then go on with the old pages.
        block.madvise(mmap.MADV_DONTFORK)
        if length >= HUGE_PAGE:
            block.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self._register(address, length)  # if that fails, copies are slower but still correct
        self.bytes += length
        return block


class _Loan(ctypes.Array[ctypes.c_char]):
    """Memory on loan. torch keeps it alive as long as any tensor uses it."""

    _type_ = ctypes.c_char
    _length_ = 0
    give_back: Any

    def __del__(self) -> None:
        self.give_back()


@lru_cache(maxsize=64)
def _loan_type(length: int) -> Any:
    return type("_Loan", (_Loan,), {"_length_": length})


def block_bytes(size: int) -> int:
    """The smallest power of two that holds `size` bytes. Pure."""
    return max(LEAST_BYTES, 1 << max(size - 1, 0).bit_length())


def _register_with_cuda(address: int, size: int) -> bool:
    runtime: Any = torch.cuda.cudart()  # starts CUDA if it was not started yet
    if int(runtime.cudaHostRegister(address, size, _PORTABLE)) == 0:
        return True
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")  # CUDA reports the error again at the next kernel: let that happen here
    return False


pool = PinnedMemory(_register_with_cuda)
