"""Messages on a stream of bytes: the length of its body is before each, and checked against a limit. Pure.

Not here: what messages say (`messages`, `engines.nodes.agent_messages`), notes with large payloads (`note_frames`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from shoal.errors import WireError

PREFIX_BYTES = 4  # before each message

Decoded = TypeVar("Decoded")


def framed(body: bytes, most: int, name: str) -> bytes:
    """The body with its length before it. `most`: bytes that the receiver takes. `name`: of the message, for people."""
    if len(body) > most:
        raise WireError(f"a {name} message of {len(body)} bytes is over the limit of {most}")
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def body_length(prefix: bytes, most: int) -> int:
    """The length that a prefix announces, checked against the limit."""
    length = int.from_bytes(prefix, "big")
    if len(prefix) != PREFIX_BYTES or not 0 < length <= most:
        raise WireError(f"a message announces {length} bytes; 1 to {most} are allowed")
    return length


class MessageBuffer(Generic[Decoded]):
    """Bytes in, messages out."""

    def __init__(self, decode: Callable[[bytes], Decoded], most: int) -> None:
        """`most`: bytes of a body. `decode` raises `WireError` for what is no message."""
        self._decode = decode
        self._most = most
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> Decoded | None:
        """The next message that is whole, if there is one."""
        if len(self._bytes) < PREFIX_BYTES:
            return None
        end = PREFIX_BYTES + body_length(bytes(self._bytes[:PREFIX_BYTES]), self._most)
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[PREFIX_BYTES:end])
        del self._bytes[:end]
        return self._decode(body)
