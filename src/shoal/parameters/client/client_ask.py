"""Asking servers for blocks: which server is asked for what, in which order, and again if a request is lost.

`Asking` is an activity. Its subclasses handle the answers: values (`client_pull`), or values with their optimizers'
state (`client_state`). Runs in the client's thread, with its lock held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.errors import MeetingCalled, ShoalError, WireError
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_servers import ServerLine
from shoal.parameters.connections.connection import Connection
from shoal.wire.parameter_messages import AnyNote, Held, Part, Pull


@dataclass(frozen=True)
class PullTerms:
    """What a pull asks for."""

    at_least: int  # number of an entry that must be in the values
    order: tuple[str, ...]  # names of tensors, the first needed first
    is_bounded: bool = True
    with_state: bool = False
    meetings: int = 0  # how many this worker has attended


@dataclass(frozen=True)
class Asked:
    """What one message asks for."""

    server: int
    first: int  # place in the key list
    last: int
    pieces: tuple[int, ...]  # indexes into `ClientLayout.pieces[server]`


class Asking:
    def __init__(self, core: ClientCore, terms: PullTerms) -> None:
        self.failure: ShoalError | None = None
        self._core = core
        self._terms = terms
        self._epoch = core.epoch
        self._layout: ClientLayout | None = None  # the layout that all fields below belong to
        self._asked: dict[int, tuple[Asked, Connection | None]] = {}  # unanswered, by request number
        self._to_ask: list[Asked] = []
        self._by_value: set[tuple[int, int]] = set()  # (server, unit): its memory cannot be copied, ask for bytes

    def close(self) -> None:
        """Stop asking and ignore what is still unanswered. From any thread."""
        with self._core.thread.changed:
            self._core.end(self)
            self._asked.clear()
            self._to_ask.clear()

    # For subclasses

    def started_over(self, layout: ClientLayout) -> None:
        """Discard what came under an earlier map."""

    def taken(self, line: ServerLine, asked: Asked, note: Part, payload: memoryview | None) -> bool:
        """Take an answer. False: the answer is of no use, ask again."""
        raise NotImplementedError

    def room_for(self, asked: Asked, note: Part, size: int) -> memoryview | None:
        raise NotImplementedError

    # What an activity does

    def pump(self) -> None:
        layout = self._core.layout
        if layout is None:
            return
        if self._layout is not layout:
            self._start_over(layout)
        self._take_back_lost()
        waiting = []
        for asked in self._to_ask:
            line = self._core.lines.ready(asked.server)
            if line is None:
                waiting.append(asked)
            else:
                self._ask(line, asked)
        self._to_ask = waiting

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None:
        found = self._asked.get(note.request) if isinstance(note, Part) else None
        if found is None or not isinstance(note, Part):
            return None
        try:
            return self.room_for(found[0], note, size)
        except WireError as error:
            raise WireError(f"server {line.server.number}: {error}") from None

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        found = self._asked.pop(getattr(note, "request", 0), None)
        if found is None or self._layout is None:
            return
        asked = found[0]
        if isinstance(note, Held):
            self.failure = MeetingCalled(
                f"all workers are called to meet: {note.calling}", meetings=note.meetings, calling=note.calling
            )
        elif isinstance(note, Part):
            if (note.first, note.last) != (asked.first, asked.last):
                raise WireError(f"server {line.server.number} sends other blocks than were asked for")
            if not self.taken(line, asked, note, payload):
                self._to_ask.append(asked)
                self.pump()

    def forget(self, line: ServerLine, request: int) -> None:
        del line
        found = self._asked.pop(request, None)
        if found is not None:
            self._to_ask.append(found[0])

    def _start_over(self, layout: ClientLayout) -> None:
        self._layout = layout
        self._asked.clear()
        self._by_value.clear()
        self.started_over(layout)
        self._to_ask = list(self._questions(layout))

    def _questions(self, layout: ClientLayout) -> Iterator[Asked]:
        """In the order of need. Servers that share memory are asked for whole units, as no bytes are sent for them."""
        seen: set[tuple[int, int]] = set()
        for name in self._terms.order:
            for stretch in layout.reads[layout.names[name]]:
                if (stretch.server, stretch.piece) in seen:
                    continue
                asked = self._to_be_asked(layout, stretch.server, stretch.piece)
                seen.update((asked.server, member) for member in asked.pieces)
                yield asked

    def _to_be_asked(self, layout: ClientLayout, server: int, number: int) -> Asked:
        pieces = layout.pieces[server]
        piece = pieces[number]
        line = self._core.lines.lines.get(server)
        if line is None or not line.sees_arena or self._terms.with_state:
            return Asked(server, piece.first, piece.last, (number,))
        span = layout.parts[server].units[piece.unit]
        members = tuple(other for other, one in enumerate(pieces) if one.unit == piece.unit)
        return Asked(server, span.first, span.last, members)

    def _take_back_lost(self) -> None:
        """Ask again for what was asked on a connection that is gone."""
        for request, (asked, connection) in tuple(self._asked.items()):
            line = self._core.lines.lines.get(asked.server)
            if line is None or line.connection is not connection:
                del self._asked[request]
                self._to_ask.append(asked)

    @property
    def _codec_text(self) -> str:
        """The codec that may encode values for this worker: a lossless one, as pulled values must be bit-identical."""
        codec = self._core.codec
        return codec.text if codec is not None and codec.is_lossless and not self._terms.with_state else ""

    def _ask(self, line: ServerLine, asked: Asked) -> None:
        assert self._layout is not None
        request = self._core.number_for(self)
        self._asked[request] = (asked, line.connection)
        unit = self._layout.parts[asked.server].unit_of(asked.first)
        line.send(
            Pull(
                request=request,
                view=self._layout.version,
                keys=self._core.introduce(line, self._layout),
                first=asked.first,
                last=asked.last,
                at_least=self._terms.at_least,
                by_value=not line.sees_arena or (asked.server, unit) in self._by_value,
                is_bounded=self._terms.is_bounded,
                with_state=self._terms.with_state,
                meetings=self._terms.meetings,
                codec="" if line.sees_arena else self._codec_text,
            )
        )
