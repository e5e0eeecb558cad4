"""What a collective outside loops gave, as bytes that a newcomer can be told, and back.

Small results only: a newcomer gets larger ones with the state.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from shoal.bounds import Items
from shoal.checkpoint.state_tree import dtype_named, flatten, tensor_places, unflatten
from shoal.errors import UsageError, WireError

MOST_BYTES = 16 * 1024  # of one result


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    skeleton: Annotated[bytes, Meta(max_length=MOST_BYTES)]
    tensors: Items[Annotated[bytes, Meta(max_length=MOST_BYTES)]]


def encode_result(value: Any) -> bytes | None:
    """None for a result that is too large, or that a state cannot hold."""
    try:
        skeleton, tensors = flatten(value, named="the result")
    except UsageError:
        return None
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) + len(skeleton) > MOST_BYTES:
        return None
    return msgspec.msgpack.encode(_Encoded(skeleton, tuple(map(_bytes, tensors))))


def decode_result(data: bytes) -> Any:
    """Raises WireError for bytes that are no result."""
    try:
        encoded = msgspec.msgpack.decode(data, type=_Encoded)
        places = tensor_places(encoded.skeleton)
        tensors = [_tensor(part, place.shape, place.dtype) for part, place in zip(encoded.tensors, places, strict=True)]
    except (msgspec.MsgspecError, ValueError, RuntimeError) as error:
        raise WireError(f"not the result of a collective: {error}") from None
    return unflatten(encoded.skeleton, tensors)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _tensor(data: bytes, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    kind = dtype_named(dtype)
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
