"""A coordinator that says what a test tells it to, over real sockets: for tests of a worker's side alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from shoal.job_config import from_mapping
from shoal.membership.channel import PURPOSE
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.connection.handshake import ListenerHandshake
from shoal.transport.connection.introduction import Introduction
from shoal.values import Address, Generation, Member
from shoal.wire.message_frames import body_length
from shoal.wire.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    ClientMessage,
    Heartbeat,
    Join,
    Message,
    Report,
    Welcome,
    decode_client,
    encode,
)

TOKEN = "a token for tests"
PATIENCE = 30.0  # seconds; only a hanging test ever waits so long

Kind = TypeVar("Kind", bound=Message)


def join(worker: int = 0) -> Join:
    return Join(
        version=PROTOCOL_VERSION, worker=worker, host="here", process=1, address=Address("127.0.0.1", 7000 + worker)
    )


def generation(number: int, *workers: int, holders: tuple[int, ...] = (), reason: str = "a test") -> Generation:
    members = tuple(
        Member(rank=rank, worker=worker, host="here", process=1, address=Address("127.0.0.1", 7000 + worker))
        for rank, worker in enumerate(workers)
    )
    return Generation(number=number, members=members, schedule="auto", codec="identity", reason=reason, holders=holders)


class Conversation:
    """The coordinator's end of one client's connection."""

    def __init__(self, connection: Endpoint) -> None:
        self._socket = connection
        self.join: Join | None = None

    def send(self, *messages: Message) -> None:
        self._socket.sendall(b"".join(encode(message) for message in messages))

    def next(self) -> ClientMessage:
        """The next message."""
        return decode_client(self._exactly(body_length(self._exactly(4), MAX_MESSAGE_BYTES)))

    def expect(self, kind: type[Kind]) -> Kind:
        """The next message but for heartbeats and reports, which must be of this kind; or the next of those."""
        while True:
            message = self.next()
            if isinstance(message, kind):
                return message
            assert isinstance(message, Heartbeat | Report), message

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self._socket.recv(size - len(data))
            if not some:
                raise EOFError
            data += some
        return data


class FakeCoordinator:
    def __init__(self, **settings: object) -> None:
        self.config = from_mapping({"heartbeat_limit": 5.0, **settings}, origin="test")
        self.listener: socket.socket | None = None
        self._conversations: list[Conversation] = []
        self.address = Address("127.0.0.1", 0)
        self.listen()

    def listen(self) -> None:
        """Again at the same address, when it was away."""
        self.listener = socket.create_server((self.address.host, self.address.port))
        self.listener.settimeout(PATIENCE)
        self.address = Address(*self.listener.getsockname())

    def accept(
        self, *, current: Generation | None = None, is_member: bool = False, heartbeat: float = 60.0
    ) -> Conversation:
        """The next client's connection, welcomed."""
        assert self.listener is not None
        connection, _ = self.listener.accept()
        connection.settimeout(PATIENCE)
        met = Introduction(connection, ListenerHandshake({PURPOSE: TOKEN}.get))
        assert met.advance()
        conversation = Conversation(met.welcome())
        self._conversations.append(conversation)
        first = conversation.next()
        assert isinstance(first, Join)
        conversation.join = first
        conversation.send(
            Welcome(config=self.config.to_toml(), heartbeat=heartbeat, generation=current, is_member=is_member)
        )
        return conversation

    def go_away(self) -> None:
        """As if its process were killed."""
        assert self.listener is not None
        self.listener.close()
        for conversation in self._conversations:
            conversation.close()

    def close(self) -> None:
        self.go_away()


@contextmanager
def coordinator(**settings: object) -> Iterator[FakeCoordinator]:
    made = FakeCoordinator(**settings)
    try:
        yield made
    finally:
        made.close()


def meanwhile(call: object) -> threading.Thread:
    """Start a call that blocks in a thread of its own."""
    thread = threading.Thread(target=call)  # type: ignore[arg-type]  any callable
    thread.start()
    return thread
