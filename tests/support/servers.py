"""A stand-in for a parameter server's process, as far as the keeper of its group is concerned."""

from __future__ import annotations

from typing import Self

from shoal.parameters.connections.purposes import KEEPER_PURPOSE
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
from shoal.values import Address
from shoal.wire.keeper_messages import GroupNews, ServerJoin
from shoal.wire.note import PARAMETER_VERSION, Note
from shoal.wire.note_frames import HEAD_BYTES, decode_body, decode_head, encode_note
from shoal.wire.parameter_messages import AnyNote


class StandInServer:
    """Joins when it is made; says and hears what a test wants, and blocks for ten seconds at most."""

    def __init__(self, keeper: Address, token: str, number: int) -> None:
        self._socket = connect(keeper, Key(KEEPER_PURPOSE, token), 10).endpoint
        self.send(
            ServerJoin(
                version=PARAMETER_VERSION, number=number, address=Address("127.0.0.1", 9), host="here", process=1
            )
        )

    def send(self, note: Note) -> None:
        self._socket.sendall(encode_note(note))

    def receive(self) -> AnyNote:
        body, _ = decode_head(self._read(HEAD_BYTES))
        return decode_body(self._read(body))

    def await_map(self, version: int) -> GroupNews:
        while True:
            news = self.receive()
            if isinstance(news, GroupNews) and news.map is not None and news.map.version >= version:
                return news

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the keeper closed the connection"
            data += more
        return data
