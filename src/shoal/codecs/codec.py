"""The interface of a codec: how a flat tensor becomes the bytes that cross from one host to another, and back.

A codec sees one-dimensional contiguous CPU tensors of floating point numbers. It is told which tensors it encodes and
on which leg of their way, so that it can add what its bytes left out of one step to the next (its residual, see
`residuals`). The residual is state of one worker: a step that is redone restores it, and a checkpoint keeps it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import torch


class Leg(enum.Enum):
    """What the receiver does with a tensor."""

    CONTRIBUTION = "contribution"  # added to the contributions of others: gradients of a worker, or of a machine
    SUM = "sum"  # taken as the sum of all contributions, on its way back to all ranks
    VALUES = "values"  # replaces the receiver's values: parameters from a server, by a codec that `is_lossless`


class TensorKey(msgspec.Struct, frozen=True):
    """Which tensor is encoded. The same key means the same elements of the same tensors in every step."""

    tensors: str  # name of a group of tensors, stable over steps and generations
    leg: Leg
    start: int = 0  # where the encoded run begins among the group's elements; depends on the number of workers


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a codec that has none."""


class Codec(ABC):
    """One per worker for the whole job. Its settings are `Settings`, checked by msgspec when the codec is made."""

    name: ClassVar[str]  # as in `--codec`
    wire_id: ClassVar[int]  # 0..255, in every frame; never reused for another codec. From 128 on: not Shoal's own
    raw: ClassVar[bool] = False  # the bytes are the tensor's memory, so that the codec is never called
    is_lossless: ClassVar[bool] = False  # decoding gives the same bits again: values of parameters are encoded too
    Settings: ClassVar[type[msgspec.Struct]] = NoSettings  # fields with defaults: `--codec NAME:FIELD=VALUE,...`

    def __init__(self, settings: Any = None) -> None:
        """`settings`: an instance of `Settings`; None means its defaults."""
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        """The most bytes that `encode` makes of so many elements: a receiver takes no longer frame."""

    @abstractmethod
    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        """The bytes to send; every receiver decodes them to the same bits. May share memory with the tensor."""

    @abstractmethod
    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:
        """Fill `tensor`. Raises `WireError` for bytes that `encode` cannot have made of as many elements."""

    def state(self) -> dict[str, torch.Tensor]:
        """The residual; empty if there is none. The codec never changes these tensors, but makes new ones."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:  # noqa: B027  most codecs keep nothing
        """Go on with an earlier `state`; an empty one starts from zero. Ignores entries that cannot be this codec's."""
