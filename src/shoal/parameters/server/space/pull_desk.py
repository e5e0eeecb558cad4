"""Workers' requests for values: which can be answered now, which wait, and the answers.

A pull waits until its entry is in the unit that it asks about, and while its worker is too far ahead of the slowest.
Values are sent straight from the server's part; a worker on this machine is told their place and seal instead. Not
here: other requests of workers (`worker_desk`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from shoal.codecs.codec import Leg
from shoal.errors import ServerRefused
from shoal.parameters import texts
from shoal.parameters.blocks.block_codec import EncodedBlocks
from shoal.parameters.ledger.effects import MayRead
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.worker_line import WorkerLine, refuse, send_elsewhere
from shoal.parameters.server.updates.holding import Holding
from shoal.wire.parameter_messages import Held, Part, Pull


@dataclass
class _Waiting:
    line: WorkerLine
    note: Pull
    unit: int
    at_least: int  # entry that must be in the unit
    is_due: bool = False  # its worker is not too far ahead


OUTPUT_BYTES = 128 * 1024 * 1024  # unsent on one connection; further answers wait until the worker has read some
JOB_OUTPUT_BYTES = 1024 * 1024 * 1024  # the same for all connections of a job together
WAITING_PER_BLOCK, FEWEST_WAITING = 4, 1024  # pulls of one connection that may wait


class PullDesk:
    def __init__(self, state: JobState) -> None:
        self._state = state
        self._waiting: dict[int, list[_Waiting]] = {}  # by unit
        self._counts: Counter[WorkerLine] = Counter()  # waiting pulls
        self._full: dict[WorkerLine, list[_Waiting]] = {}  # wait only because their connection has too much unsent

    def ask(self, line: WorkerLine, note: Pull) -> None:
        """`ServerRefused`: the request is invalid."""
        holding = self._state.holding
        if holding is None or not self._state.is_current(note.view):
            send_elsewhere(line, note.request, self._state)
            return
        line.knows(note.keys)
        if note.keys != holding.keys:
            send_elsewhere(line, note.request, self._state)
            return
        if not 0 <= note.first < note.last <= len(holding.layout.blocks):
            raise ServerRefused(
                f"blocks {note.first} to {note.last} of a list of {len(holding.layout.blocks)}", kind="bad-request"
            )
        if note.codec:
            self._state.codecs.find(note.codec, holding.table)  # refuses an unknown codec now
        unit = holding.layout.unit_of(note.first)
        if note.last > holding.layout.units[unit].last:
            raise ServerRefused(f"blocks {note.first} to {note.last} are in several units", kind="bad-request")
        if self._counts[line] > FEWEST_WAITING + WAITING_PER_BLOCK * len(holding.layout.blocks):
            raise ServerRefused(f"{self._counts[line]} pulls of worker {line.worker} wait already", kind="bad-request")
        waiting = _Waiting(line, note, unit, note.at_least)
        if not self._try(holding, waiting):
            self._waiting.setdefault(unit, []).append(waiting)
            self._counts[line] += 1

    def forget(self, line: WorkerLine) -> None:
        for unit, several in tuple(self._waiting.items()):
            self._waiting[unit] = [waiting for waiting in several if waiting.line is not line]
        self._full.pop(line, None)
        del self._counts[line]

    def relieve(self) -> None:
        """Answer pulls whose connections have room again."""
        holding = self._state.holding
        for line in [line for line in self._full if line.connection.unsent < OUTPUT_BYTES // 2]:
            for waiting in self._full.pop(line) if holding is not None else ():
                self._look_again(waiting)

    def look(self) -> None:
        """Entries or blocks have arrived: try all waiting pulls."""
        for unit in tuple(self._waiting):
            self.look_at(unit)

    def look_at(self, unit: int) -> None:
        """Something was applied to this unit: try the pulls that wait for it."""
        for waiting in self._waiting.pop(unit, ()) if self._state.holding is not None else ():
            self._look_again(waiting)

    def _look_again(self, waiting: _Waiting) -> None:
        assert self._state.holding is not None, "it is looked at where there is one"
        self._counts[waiting.line] -= 1
        if not self._try(self._state.holding, waiting):
            self._waiting.setdefault(waiting.unit, []).append(waiting)
            self._counts[waiting.line] += 1

    def _try(self, holding: Holding, waiting: _Waiting) -> bool:
        """False: the pull has to wait for entries or clocks."""
        note, line, state = waiting.note, waiting.line, self._state
        if note.view != holding.view:
            send_elsewhere(line, note.request, state)
            return True
        if not waiting.is_due and self._look_at_clocks(waiting) is MayRead.MEET:
            assert state.sequencer.ledger is not None, "it has clocks"
            meetings, calling = state.sequencer.ledger.meetings, state.sequencer.ledger.calling
            line.connection.send(Held(request=note.request, meetings=meetings, calling=calling))
            return True
        if not waiting.is_due or state.queue.unit_applied(waiting.unit, state.newest) < waiting.at_least:
            return False
        if holding.lacks_for_reader(note.first, note.last):
            reason = texts.values_missing(state.server, state.job)
            refuse(line, ServerRefused(reason, kind="lost"), note.request)
        elif self._is_full(waiting):
            self._full.setdefault(line, []).append(waiting)
            self._counts[line] += 1
        else:
            self._answer(holding, waiting)
        return True

    def _is_full(self, waiting: _Waiting) -> bool:
        """Too much is unsent on its connection, or on its job's. Answers without bytes never wait for that."""
        note, line = waiting.note, waiting.line
        if line.arena is not None and not (note.by_value or note.with_state):
            return False
        unsent = line.connection.unsent
        if unsent > OUTPUT_BYTES:
            return True
        return unsent > 0 and sum(other.connection.unsent for other in self._counts) > JOB_OUTPUT_BYTES

    def _look_at_clocks(self, waiting: _Waiting) -> MayRead:
        ledger, note = self._state.sequencer.ledger, waiting.note
        if not note.is_bounded or ledger is None or ledger.staleness is None:
            waiting.is_due = True
            return MayRead.NOW
        if ledger.number < note.at_least:
            return MayRead.WAIT  # the worker's own clock is not up to date here
        reading = ledger.may_read(waiting.line.worker, note.meetings)
        if reading is MayRead.NOW:
            # The clocks count every entry of the ledger, so all of its entries must be in the values.
            waiting.is_due, waiting.at_least = True, max(waiting.at_least, ledger.number)
        return reading

    def _answer(self, holding: Holding, waiting: _Waiting) -> None:
        note, line, queue = waiting.note, waiting.line, self._state.queue
        part = Part(
            request=note.request,
            first=note.first,
            last=note.last,
            applied=queue.unit_applied(waiting.unit, self._state.newest),
            updates=queue.unit_updates(waiting.unit),
        )
        if note.with_state:
            blocks = holding.layout.blocks[note.first : note.last]
            state, payload = holding.shard.extract(blocks)
            line.connection.send(msgspec.structs.replace(part, state=state), payload)
        elif note.by_value or line.arena is None:
            encoded = self._encoded(holding, note)
            if encoded is None:
                line.connection.send(part, holding.shard.read(note.first, note.last), key=waiting.unit)
            else:
                part = msgspec.structs.replace(part, codec=note.codec, lengths=encoded.lengths)
                line.connection.send(part, encoded.data)
        else:
            memory = holding.shard.memory
            line.connection.send(
                msgspec.structs.replace(
                    part,
                    place=memory.place(holding.layout.offset(note.first)),
                    seal=memory.seal_place(waiting.unit),
                    arena=holding.offer,
                )
            )

    def _encoded(self, holding: Holding, note: Pull) -> EncodedBlocks | None:
        """None: values are sent as they are. Only a lossless codec is used: pulled values must be bit-identical."""
        if not note.codec:
            return None
        codec = self._state.codecs.find(note.codec, holding.table)
        if not codec.is_lossless:
            return None
        blocks, layout = holding.layout.blocks[note.first : note.last], holding.layout
        memory = holding.shard.memory.tensor[layout.offset(note.first) : layout.offset(note.last)]
        return codec.encode_all(blocks, Leg.VALUES, memory)
