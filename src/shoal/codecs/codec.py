"""The interface of a codec: how a flat tensor becomes the bytes that cross from one host to another, and back.

A codec sees one-dimensional contiguous CPU tensors of floating point numbers. It is told which tensors it serves, and
on which leg of their way, so that it may keep what its bytes left out of one step and add it to the next (its residual,
see `residuals`). That is state of one worker: a step that is redone puts it back, and a checkpoint keeps it.
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

    CONTRIBUTION = "contribution"  # it is added to those of others: a worker's gradients, or a machine's
    SUM = "sum"  # it is the sum of all contributions, on its way back to everybody
    VALUES = "values"  # it replaces what the receiver has: parameters from a server, by a codec that `is_lossless`


class TensorKey(msgspec.Struct, frozen=True):
    """Which tensor is encoded. The same key means the same elements of the same tensors in every step."""

    tensors: str  # name of a group of tensors, stable over steps and generations
    leg: Leg
    start: int = 0  # where the encoded run begins among the group's elements; it depends on how many workers there are


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a codec that has nothing to set."""


class Codec(ABC):
    """One per worker for the whole job. Its settings are `Settings`, checked by msgspec when the codec is made."""

    name: ClassVar[str]  # as in `--codec`
    wire_id: ClassVar[int]  # 0..255, in every frame; never given to another codec later. From 128 on: not Shoal's own
    raw: ClassVar[bool] = False  # the bytes are the tensor's memory as it is: nobody needs to call the codec
    is_lossless: ClassVar[bool] = False  # decoding gives the same bits again: values of parameters are encoded too
    Settings: ClassVar[type[msgspec.Struct]] = NoSettings  # fields with defaults: `--codec NAME:FIELD=VALUE,...`

    def __init__(self, settings: Any = None) -> None:
        """`settings`: an instance of `Settings`; None stands for its defaults."""
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def most_bytes(self, elements: int, dtype: torch.dtype) -> int:
        """How many bytes `encode` makes of so many elements at most: a receiver takes no frame that is longer."""

    @abstractmethod
    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        """The bytes that travel; whoever decodes them gets the same bits. May share memory with the tensor."""

    @abstractmethod
    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None:
        """Fill `tensor`. Bytes that no `encode` of as many elements makes are a `WireError`."""

    def state(self) -> dict[str, torch.Tensor]:
        """The residual, empty where there is none. The codec never changes these tensors: it makes new ones."""
        return {}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:  # noqa: B027  most codecs keep nothing
        """Go on with what `state` once gave; an empty one begins anew. Entries that cannot be its own are ignored."""
