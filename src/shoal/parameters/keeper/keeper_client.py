"""A blocking client of a server group's keeper, for launchers and administrators: one request, one answer.

Not here: servers' and workers' connections to the keeper, which hear of every new map (`keeper_line`,
`client_servers`). No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from shoal.errors import AddressUnavailable, Refused, WireError
from shoal.parameters import texts
from shoal.parameters.connections.purposes import KEEPER_PURPOSE
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.introduction import connect
from shoal.values import Address
from shoal.wire.keeper_messages import Agreed, ChangeServers, CloseSpace, GroupStatus, OpenSpace, StopGroup
from shoal.wire.note import Note
from shoal.wire.note_frames import HEAD_BYTES, decode_body, decode_head, encode_note
from shoal.wire.parameter_messages import AnyNote, Refusal

Answer = TypeVar("Answer", Agreed, GroupStatus)
Value = TypeVar("Value")


class KeeperClient:
    """Connected from its construction to `close`. If nobody answers in time, methods raise `AddressUnavailable`.

    If the keeper refuses the token or a request, they raise `Refused` with the keeper's reason.
    """

    def __init__(self, address: Address, token: str, timeout: float = 10.0) -> None:
        self._address = address
        self._requests = 0
        try:
            met = self._reach(lambda: connect(address, Key(KEEPER_PURPOSE, token), timeout))
        except Refused as error:
            raise Refused(f"the keeper of the servers at {address} refused this client: {error}") from None
        self._endpoint = met.endpoint
        self._session = met.handshake.session

    def __enter__(self) -> KeeperClient:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._endpoint.close()

    def open_space(self, terms: SpaceTerms) -> None:
        """Let a job use the group, with a key of its own."""
        self._ask(OpenSpace(request=self._next(), space=terms.sealed(self._session)), Agreed)

    def close_space(self, job: str) -> None:
        """Tell the group that the job is over. Does nothing if the group does not know the job."""
        self._ask(CloseSpace(request=self._next(), job=job), Agreed)

    def change_servers(self, *, remove: tuple[int, ...] = (), more: int = 0) -> None:
        """Take servers out, which end once their blocks have moved, or ask for more servers."""
        self._ask(ChangeServers(request=self._next(), remove=remove, more=more), Agreed)

    def stop_group(self) -> None:
        """Ask the process that started the group to end it."""
        self._ask(StopGroup(request=self._next()), Agreed)

    def status(self) -> GroupStatus:
        return self._ask(GroupStatus(request=self._next()), GroupStatus)

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _ask(self, note: Note, kind: type[Answer]) -> Answer:
        def talk() -> AnyNote:
            self._endpoint.sendall(encode_note(note))
            body, _ = decode_head(self._read(HEAD_BYTES))
            return decode_body(self._read(body))

        answer = self._reach(talk)
        if isinstance(answer, Refusal):
            raise Refused(f"the keeper of the servers at {self._address}: {answer.reason}")
        if not isinstance(answer, kind) or answer.request != self._requests:
            raise WireError(f"the keeper at {self._address} answered {type(answer).__name__} to {type(note).__name__}")
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self._endpoint.recv(size - len(data))
            if not more:
                raise ConnectionResetError("it closed the connection")
            data += more
        return bytes(data)

    def _reach(self, action: Callable[[], Value]) -> Value:
        try:
            return action()
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise AddressUnavailable(texts.keeper_unreached(self._address, reason)) from None
