"""A job's codec applied to blocks: which are encoded, under which keys, and how several make one payload.

Encoded blocks follow each other in a payload, and their lengths are in the message. Input from outside is checked
before memory is taken for it; an exception of the codec becomes a `WireError` that names the block. Blocks of complex
numbers are never encoded. Not here: what is encoded when (`client_push`, `pull_desk`) and decoded when (`staging`,
`client_pull`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.codecs.codec import Codec, Leg, TensorKey
from shoal.errors import WireError
from shoal.parameters.blocks.byte_views import torch_type
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.wire.tables import TableSpec


@dataclass(frozen=True)
class EncodedBlocks:
    """A message's payload."""

    lengths: tuple[int, ...]  # bytes of each block
    data: bytes


def joined_blocks(parts: Sequence[bytes | None]) -> EncodedBlocks | None:
    """None: some blocks are not encoded, or there is no byte to send; the blocks then travel unencoded."""
    found = [part for part in parts if part is not None]
    data = b"".join(found)
    return EncodedBlocks(tuple(map(len, found)), data) if data and len(found) == len(parts) else None


class BlockCodec:
    def __init__(self, table: TableSpec, text: str, codec: Codec) -> None:
        """`text`: name and settings of the codec, as in `--codec`."""
        self.text = text
        self.is_lossless = codec.is_lossless
        self._codec = codec
        self._lock = threading.Lock()  # a model on several devices gets gradients in several threads
        self._tensors = table.tensors
        self._blocks = blocks_of(table)

    def takes(self, number: int) -> bool:
        """Whether this block may be encoded."""
        return torch_type(self._blocks[number].dtype).is_floating_point

    def encode(self, number: int, leg: Leg, values: torch.Tensor) -> bytes:
        """Encode one block."""
        with self._lock:
            return bytes(self._codec.encode(self._key(number, leg), values))

    def decode(self, number: int, leg: Leg, data: memoryview, values: torch.Tensor) -> None:
        """Decode one block into `values`. `WireError`: the bytes do not encode such a block."""
        try:
            with self._lock:
                self._codec.decode(self._key(number, leg), data, values)
        except Exception as error:  # the bytes come from another process, the code perhaps from another package
            what = str(error) if isinstance(error, WireError) else f"{type(error).__name__}: {error}"
            raise WireError(f"block {number} as the codec {self.text} should have encoded it: {what}") from error

    def check(self, numbers: Sequence[int], lengths: Sequence[int], size: int) -> None:
        """`WireError`: a payload of this size cannot hold these blocks."""
        if len(lengths) != len(numbers) or sum(lengths) != size:
            raise WireError(f"{size} bytes come for {len(numbers)} blocks, of which the lengths say otherwise")
        for number, length in zip(numbers, lengths, strict=True):
            block = self._blocks[number]
            most = (
                self._codec.most_bytes(block.stop - block.start, torch_type(block.dtype)) if self.takes(number) else -1
            )
            if length > most:
                raise WireError(
                    f"{length} bytes come for block {number}, and the codec {self.text} makes {most} at most"
                )

    def encode_all(self, numbers: Sequence[int], leg: Leg, memory: torch.Tensor) -> EncodedBlocks | None:
        """Encode blocks that follow each other in `memory`, a tensor of bytes. None: the blocks travel unencoded."""
        if not all(map(self.takes, numbers)):
            return None
        views = self._views(numbers, memory)
        return joined_blocks([self.encode(number, leg, view) for number, view in zip(numbers, views, strict=True)])

    def decode_all(
        self, numbers: Sequence[int], leg: Leg, encoded: tuple[Sequence[int], memoryview], memory: torch.Tensor
    ) -> None:
        """Decode the blocks of a payload into `memory`, laid out as for `encode_all`. Call `check` first."""
        lengths, data = encoded
        self.check(numbers, lengths, len(data))
        ends = itertools.accumulate(lengths)
        for number, view, length, end in zip(numbers, self._views(numbers, memory), lengths, ends, strict=True):
            self.decode(number, leg, data[end - length : end], view)

    def _views(self, numbers: Sequence[int], memory: torch.Tensor) -> list[torch.Tensor]:
        blocks = [self._blocks[number] for number in numbers]
        parts = memory.split([block.size for block in blocks])
        return [part.view(torch_type(block.dtype)) for part, block in zip(parts, blocks, strict=True)]

    def _key(self, number: int, leg: Leg) -> TensorKey:
        block = self._blocks[number]
        return TensorKey(self._tensors[block.tensor].name, leg, block.start)
