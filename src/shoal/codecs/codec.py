"""The interface of a codec: how a flat tensor becomes bytes and back.

Both calls work on one-dimensional contiguous CPU tensors. A lossy codec keeps its error-feedback residual itself; the
codec's number travels in every frame, so that a receiver never guesses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch


class Codec(ABC):
    name: ClassVar[str]  # as in `--codec`
    wire_id: ClassVar[int]  # 0..255, in every frame; never given to another codec later
    lossless: ClassVar[bool]
    raw: ClassVar[bool] = False  # the bytes are the tensor's memory as it is: they may be received into it, in pieces

    @abstractmethod
    def encoded_bytes(self, elements: int, dtype: torch.dtype) -> int:
        """How many bytes `encode` makes of so many elements: the receiver checks a frame against it."""

    @abstractmethod
    def encode(self, tensor: torch.Tensor) -> memoryview:
        """The bytes that travel. May share memory with the tensor."""

    @abstractmethod
    def decode(self, data: memoryview, tensor: torch.Tensor) -> None:
        """Fill `tensor` from bytes of exactly `encoded_bytes` length."""
