"""The bytes of a server group's messages: a fixed head (magic, version, two lengths), the body, raw bytes. Pure.

Lengths are checked before anything is read, decoding checks types, and anything that is no message of ours is a
`WireError`. Both ends have already proved that they hold the token (`transport.connection`).
"""

from __future__ import annotations

import struct

import msgspec

from shoal.errors import WireError
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.parameter_messages import AnyNote

MAGIC = b"SHPM"
MAX_BODY_BYTES = 16 * 1024 * 1024  # the largest table fits
MAX_PAYLOAD_BYTES = 1 << 40
_HEAD = struct.Struct("!4sBxxxIQ")  # magic, version, length of the body, length of the payload
HEAD_BYTES = _HEAD.size

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyNote] = msgspec.msgpack.Decoder(AnyNote)


def encode_note(note: Note, payload: int = 0) -> bytes:
    """Head and body of a message that `payload` raw bytes follow."""
    body = _encoder.encode(note)
    if len(body) > MAX_BODY_BYTES or not 0 <= payload <= MAX_PAYLOAD_BYTES:
        raise WireError(f"a {type(note).__name__} of {len(body)} and {payload} bytes is over the limit")
    return _HEAD.pack(MAGIC, PARAMETER_VERSION, len(body), payload) + body


def decode_head(head: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Lengths of the body and of the payload that a head of `HEAD_BYTES` announces."""
    if len(head) != HEAD_BYTES:
        raise WireError(f"a head has {HEAD_BYTES} bytes, not {len(head)}")
    magic, version, body, payload = _HEAD.unpack(head)
    if magic != MAGIC:
        raise WireError(f"a message starts with {magic!r} instead of {MAGIC!r}: it is not Shoal's, or out of step")
    if version != PARAMETER_VERSION:
        raise WireError(
            f"a message has version {version}; this program speaks {PARAMETER_VERSION}: install the same Shoal"
        )
    if not 0 < body <= MAX_BODY_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise WireError(f"a message announces {body} and {payload} bytes; that is over the limit")
    return body, payload


def decode_body(body: bytes | bytearray | memoryview) -> AnyNote:
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message of a server group: {error}") from None
