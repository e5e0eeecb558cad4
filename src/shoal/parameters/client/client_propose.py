"""A worker's requests to the home server: ledger entries and the table. A new home server is sent them again."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shoal.errors import ExchangeFailed, ShoalError
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.client_servers import ServerLine
from shoal.parameters.connections.connection import Connection
from shoal.wire.ledger_entries import Answer, Proposal, Void
from shoal.wire.note import Note
from shoal.wire.parameter_messages import Answered, AnyNote, Define, Defined, Propose
from shoal.wire.tables import TableSpec

Wanted = TypeVar("Wanted", bound=Answer)


class _Request:
    """An activity: one request to home, repeated under the same number."""

    def __init__(self, core: ClientCore) -> None:
        self.failure: ShoalError | None = None
        self._core = core
        self._sent: tuple[Connection | None, int] | None = None  # the connection and the map version it was sent with
        with core.thread.changed:
            self.number = core.number_for(self)

    def note(self, version: int) -> Note:
        raise NotImplementedError

    def pump(self) -> None:
        servers = self._core.lines.map
        line = None if servers is None else self._core.lines.ready(servers.home.number)
        if servers is not None and line is not None and self._sent != (line.connection, servers.version):
            self._sent = (line.connection, servers.version)
            line.send(self.note(servers.version))

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None:
        del line, note, size
        return None  # no answer has a payload

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        raise NotImplementedError

    def forget(self, line: ServerLine, request: int) -> None:
        del line, request
        self._sent = None


class Proposing(_Request):
    """An entry for the job's ledger; `result` is the answer."""

    def __init__(self, core: ClientCore, entry: Proposal) -> None:
        super().__init__(core)
        self.result: Answer | None = None
        self._entry = msgspec.structs.replace(entry, request=self.number)

    def note(self, version: int) -> Note:
        return Propose(view=version, entry=self._entry)  # type: ignore[arg-type]  # every proposal is an entry

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        del line, payload
        if isinstance(note, Answered):
            self.result = note.answer


class Defining(_Request):
    """The table, told to home; `result` is whether the table has values."""

    def __init__(self, core: ClientCore, table: TableSpec) -> None:
        super().__init__(core)
        self.result: bool | None = None
        self._table = table

    def note(self, version: int) -> Note:
        del version
        return Define(request=self.number, table=self._table)

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        del line, payload
        if isinstance(note, Defined):
            self.result = note.has_values


def wanted(kind: type[Wanted], entry: Proposal, answer: Answer) -> Wanted:
    """The answer, if it is of that kind; otherwise the servers refused the entry, and this raises."""
    if isinstance(answer, kind):
        return answer
    reason = answer.reason if isinstance(answer, Void) else f"the answer was {answer}"
    raise ExchangeFailed(f"the servers did not take {type(entry).__name__} of worker {entry.worker}: {reason}")
