"""A worker that says what it likes: a tenant with a valid key of its own, and no manners; and its victim."""

from __future__ import annotations

import contextlib
import socket
from typing import Self

import torch

from shoal.errors import Refused, WireError
from shoal.parameters.connections.purposes import job_purpose
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
from shoal.values import Address
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.note_frames import HEAD_BYTES, decode_body, decode_head, encode_note
from shoal.wire.parameter_messages import AnyNote, ServerHello
from shoal.wire.tables import TableSpec
from support.server_groups import LR, Group, begin, pulled, terms_of, values_of

PATIENCE = 60.0  # seconds


class HostileWorker:
    """One connection to one server; blocking."""

    def __init__(self, server: Address, job: str, key: str) -> None:
        self._job = job
        self._socket = connect(server, Key(job_purpose(job), key), PATIENCE).endpoint

    def hello(self, worker: int = 0, arena: bytes = b"") -> Self:
        self.say(ServerHello(version=PARAMETER_VERSION, job=self._job, worker=worker, arena=arena))
        return self

    def say(self, *notes: Note, payload: bytes = b"") -> None:
        """The payload is the last one's."""
        for note in notes[:-1]:
            self._socket.sendall(encode_note(note))
        self._socket.sendall(encode_note(notes[-1], len(payload)) + payload)

    def say_bytes(self, data: bytes) -> None:
        """A server that has had enough may have closed the connection."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def hear(self) -> AnyNote | None:
        """The next note; None: the server has closed the connection."""
        try:
            body, payload = decode_head(self._read(HEAD_BYTES))
            note = decode_body(self._read(body))
            self._read(payload)
        except (ConnectionError, WireError, Refused):
            return None
        return note

    def hear_all(self) -> list[AnyNote]:
        """Until the server closes the connection, which it does when this end has said all."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        found = []
        while (note := self.hear()) is not None:
            found.append(note)
        return found

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionResetError("it closed the connection")
            data += more
        return bytes(data)


class Victim:
    """A job that trains beside the hostile one; every update of it is checked."""

    def __init__(self, group: Group, table: TableSpec, *, near: float) -> None:
        """`near`: by how much values may differ, which rounding adds up to."""
        self.client = begin(group, table)
        self._table = table
        self._near = near
        self._values = values_of(table, 0)
        self._pushes = 0

    def train(self) -> None:
        self._pushes += 1
        push = self.client.begin_push()
        for name, gradient in values_of(self._table, self._pushes).items():
            push.put(name, gradient)
            self._values[name].add_(gradient, alpha=-LR)
        answer = self.client.commit(push, terms_of(self._table))
        assert answer.updates == self._pushes, "no update is lost, none counts twice"
        for name, value in pulled(self.client, self._table, answer.number).items():
            torch.testing.assert_close(value, self._values[name], rtol=0, atol=self._near)
