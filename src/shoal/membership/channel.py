"""A client's end of a connection to the coordinator: connecting, being welcomed, cutting bytes into messages.

With deadlines. Not here: what is said (`client`), the coordinator's own end (`connections`), the handshake
(`transport.connection`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.errors import AddressUnavailable, Refused, WireError
from shoal.transport.connection import silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import ConnectorHandshake, Distrust, Key, Untrusted
from shoal.transport.connection.introduction import Introduction
from shoal.values import Address
from shoal.wire.messages import (
    Beat,
    CoordinatorMessage,
    Message,
    Turned,
    Welcome,
    body_length,
    decode_coordinator,
    encode,
)

PURPOSE = b"control"
RETRY_PAUSE = 0.05  # seconds before another try when the coordinator had no room for one more stranger
REACH_SECONDS = 2.0  # one attempt to reach its machine, which cannot be given up meanwhile
LOOK_SECONDS = 0.2  # between two looks whether the attempt is still wanted
PREFIX_BYTES = 4  # before each message, with the length of its body


AnyMessage = TypeVar("AnyMessage")


class _TurnedOff(Exception):
    """The coordinator closed the connection before it answered; another try may do better."""


class MessageBuffer(Generic[AnyMessage]):
    """Bytes in, messages out."""

    def __init__(self, decode: Callable[[bytes], AnyMessage]) -> None:
        self._decode = decode
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> AnyMessage | None:
        """The next message that is whole, if there is one."""
        if len(self._bytes) < PREFIX_BYTES:
            return None
        end = PREFIX_BYTES + body_length(bytes(self._bytes[:PREFIX_BYTES]))
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[PREFIX_BYTES:end])
        del self._bytes[:end]
        return self._decode(body)


@dataclass
class _Patience:
    deadline: float  # by time.monotonic
    is_over: Callable[[], bool]  # asked several times a second: nobody wants the connection any more

    def slice(self, longest: float) -> float:
        """Seconds of the next wait; a little even when time is over, so that what is there already can be read."""
        return max(0.001, min(longest, self.deadline - time.monotonic()))

    @property
    def is_out(self) -> bool:
        return time.monotonic() >= self.deadline or self.is_over()


def connect(
    address: Address, token: str, first: Message, *, timeout: float, is_over: Callable[[], bool] = lambda: False
) -> tuple[Endpoint, MessageBuffer[CoordinatorMessage], Welcome]:
    """A connection that has been welcomed, with whatever else has arrived on it already. It does not block."""
    patience = _Patience(time.monotonic() + timeout, is_over)
    while True:
        met = Introduction(_reach(address, patience), ConnectorHandshake(Key(PURPOSE, token)))
        try:
            _prove(met, address, patience)
            met.endpoint.sendall(encode(first))
            buffer = MessageBuffer(decode_coordinator)
            while (welcome := _await_welcome(met.endpoint, buffer, address, patience)) is None:
                patience.deadline = time.monotonic() + timeout
        except _TurnedOff:
            met.endpoint.close()
            if patience.slice(RETRY_PAUSE) < RETRY_PAUSE or is_over():
                raise AddressUnavailable(
                    f"the coordinator at {address} closes new connections; is it busy or over?"
                ) from None
            time.sleep(RETRY_PAUSE)
        except OSError as error:
            met.endpoint.close()
            raise _no_answer(address, timeout, error) from None
        except BaseException:
            met.endpoint.close()
            raise
        else:
            met.endpoint.setblocking(False)
            return met.endpoint, buffer, welcome


def _no_answer(address: Address, timeout: float, error: OSError) -> AddressUnavailable:
    if isinstance(error, TimeoutError):
        return AddressUnavailable(f"the coordinator at {address} did not answer within {timeout:g} s")
    return AddressUnavailable(f"the connection to the coordinator at {address} broke: {error.strerror or error}")


def _reach(address: Address, patience: _Patience) -> socket.socket:
    try:
        while True:
            try:
                connection = socket.create_connection((address.host, address.port), patience.slice(REACH_SECONDS))
                break
            except TimeoutError:
                if patience.is_out:
                    raise
    except OSError as error:
        raise AddressUnavailable(
            f"no coordinator can be reached at {address}: {error.strerror or error}; is the job still running?"
        ) from None
    silence.end_when_unacknowledged(connection)
    return connection


def _prove(met: Introduction, address: Address, patience: _Patience) -> None:
    while True:
        met.endpoint.settimeout(patience.slice(LOOK_SECONDS))
        try:
            if met.advance():
                return
        except TimeoutError:
            if patience.is_out:
                raise
        except ConnectionResetError:
            raise _TurnedOff from None
        except Untrusted as untrusted:
            raise _distrusted(untrusted, address) from None


def _distrusted(untrusted: Untrusted, address: Address) -> Refused:
    if untrusted.distrust is Distrust.REFUSED:
        return Refused(
            f"the coordinator at {address} refused this process: wrong token; use the token file of this job"
        )
    if untrusted.distrust is Distrust.UNPROVEN:
        return Refused(f"whoever listens at {address} does not hold this job's token; is the address right?")
    return Refused(f"the coordinator at {address}: {untrusted}")


def _await_welcome(
    connection: Endpoint, buffer: MessageBuffer[CoordinatorMessage], address: Address, patience: _Patience
) -> Welcome | None:
    """None: the coordinator is there, and holds its answer back until it can write its decisions down."""
    while (message := buffer.take()) is None:
        buffer.feed(_receive_some(connection, 65536, patience))
    if isinstance(message, Turned):
        raise Refused(f"the coordinator at {address} turned this process away: {message.reason}")
    if isinstance(message, Beat):
        return None
    if not isinstance(message, Welcome):
        raise WireError(f"the coordinator at {address} began with {type(message).__name__} instead of Welcome")
    return message


def _receive_some(connection: Endpoint, size: int, patience: _Patience) -> bytes:
    while True:
        connection.settimeout(patience.slice(LOOK_SECONDS))
        try:
            data = connection.recv(size)
        except TimeoutError:
            if patience.is_out:
                raise
            continue
        except ConnectionResetError:
            raise _TurnedOff from None
        if not data:
            raise _TurnedOff
        return data
