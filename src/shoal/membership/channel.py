"""A client's end of a connection to the coordinator: connecting and being welcomed.

All waits have deadlines. Not here: what is said (`client`), the coordinator's own end (`connections`), the handshake
(`transport.connection`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import AddressUnavailable, Refused, WireError
from shoal.membership import texts
from shoal.transport.connection import silence
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import ConnectorHandshake, Distrust, Key, Untrusted
from shoal.transport.connection.introduction import Introduction
from shoal.values import Address
from shoal.wire.message_frames import MessageBuffer
from shoal.wire.messages import (
    MAX_MESSAGE_BYTES,
    Beat,
    CoordinatorMessage,
    Message,
    Turned,
    Welcome,
    decode_coordinator,
    encode,
)

PURPOSE = b"control"
RETRY_PAUSE = 0.05  # seconds before another attempt when the coordinator had no room for one more stranger
REACH_SECONDS = 2.0  # limit of one attempt to reach the coordinator's machine; an attempt cannot be cancelled
LOOK_SECONDS = 0.2  # between two checks whether the connection is still wanted


class _TurnedOff(Exception):
    """The coordinator closed the connection before it answered; another attempt may succeed."""


@dataclass
class _Patience:
    deadline: float  # by time.monotonic
    is_over: Callable[[], bool]  # whether the connection is no longer wanted; called several times a second

    def slice(self, longest: float) -> float:
        """Seconds of the next wait; never 0, so that bytes which are there already can be read after the deadline."""
        return max(0.001, min(longest, self.deadline - time.monotonic()))

    @property
    def is_out(self) -> bool:
        return time.monotonic() >= self.deadline or self.is_over()


def connect(
    address: Address, token: str, first: Message, *, timeout: float, is_over: Callable[[], bool] = lambda: False
) -> tuple[Endpoint, MessageBuffer[CoordinatorMessage], Welcome]:
    """A welcomed connection that does not block, with a buffer of whatever else has arrived on it already."""
    patience = _Patience(time.monotonic() + timeout, is_over)
    while True:
        met = Introduction(_reach(address, patience), ConnectorHandshake(Key(PURPOSE, token)))
        try:
            _prove(met, address, patience)
            met.endpoint.sendall(encode(first))
            buffer = MessageBuffer(decode_coordinator, MAX_MESSAGE_BYTES)
            while (welcome := _await_welcome(met.endpoint, buffer, address, patience)) is None:
                patience.deadline = time.monotonic() + timeout
        except _TurnedOff:
            met.endpoint.close()
            if patience.slice(RETRY_PAUSE) < RETRY_PAUSE or is_over():
                raise AddressUnavailable(texts.closes_connections(address)) from None
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
        return AddressUnavailable(texts.no_answer(address, timeout))
    return AddressUnavailable(texts.connection_broke(address, error.strerror or error))


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
        raise AddressUnavailable(texts.no_coordinator(address, error.strerror or error)) from None
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
        return Refused(texts.wrong_token(address))
    if untrusted.distrust is Distrust.UNPROVEN:
        return Refused(texts.foreign_listener(address))
    return Refused(texts.untrusted(address, untrusted))


def _await_welcome(
    connection: Endpoint, buffer: MessageBuffer[CoordinatorMessage], address: Address, patience: _Patience
) -> Welcome | None:
    """None: the coordinator is there, but holds its answer back until it can write its decisions down."""
    while (message := buffer.take()) is None:
        buffer.feed(_receive_some(connection, 65536, patience))
    if isinstance(message, Turned):
        raise Refused(texts.turned_away(address, message.reason))
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
