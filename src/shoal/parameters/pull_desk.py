"""Workers' requests for values: which of them can be answered now, which wait, and the answers.

A pull waits until its entry is in the unit that it asks about, and while its worker is too far ahead of the slowest.
Values are sent from where they lie, or left in shared memory with their seal. Not here: what else workers want
(`worker_desk`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shoal.errors import ServerRefused
from shoal.parameters.effects import Reading
from shoal.parameters.holding import Holding
from shoal.parameters.job_state import JobState
from shoal.parameters.worker_link import WorkerLink, refuse, send_elsewhere
from shoal.wire.parameter_messages import Held, Part, Pull


@dataclass
class _Waiting:
    link: WorkerLink
    note: Pull
    unit: int
    at_least: int  # entry that must be in the unit
    is_due: bool = False  # its worker is not too far ahead


class PullDesk:
    def __init__(self, state: JobState) -> None:
        self._state = state
        self._waiting: dict[int, list[_Waiting]] = {}  # by unit

    def ask(self, link: WorkerLink, note: Pull) -> None:
        """`ServerRefused`: it makes no sense."""
        holding = self._state.holding
        if holding is None or not self._state.is_current(note.view):
            send_elsewhere(link, note.request, self._state)
            return
        link.knows(note.keys)
        if note.keys != holding.keys:
            send_elsewhere(link, note.request, self._state)
            return
        if not 0 <= note.first < note.last <= len(holding.layout.blocks):
            raise ServerRefused(
                f"blocks {note.first} to {note.last} of a list of {len(holding.layout.blocks)}", kind="bad-request"
            )
        unit = holding.layout.unit_of(note.first)
        if note.last > holding.layout.units[unit].last:
            raise ServerRefused(f"blocks {note.first} to {note.last} are in several units", kind="bad-request")
        waiting = _Waiting(link, note, unit, note.at_least)
        if not self._try(holding, waiting):
            self._waiting.setdefault(unit, []).append(waiting)

    def forget(self, link: WorkerLink) -> None:
        for unit, several in tuple(self._waiting.items()):
            self._waiting[unit] = [waiting for waiting in several if waiting.link is not link]

    def look(self) -> None:
        """Entries or blocks have come."""
        for unit in tuple(self._waiting):
            self.look_at(unit)

    def look_at(self, unit: int) -> None:
        """Something was applied to this unit."""
        several = self._waiting.pop(unit, None)
        holding = self._state.holding
        if not several or holding is None:
            return
        left = [waiting for waiting in several if not self._try(holding, waiting)]
        if left:
            self._waiting[unit] = left

    def _try(self, holding: Holding, waiting: _Waiting) -> bool:
        """Whether it is answered."""
        note, link, state = waiting.note, waiting.link, self._state
        if note.view != holding.view:
            send_elsewhere(link, note.request, state)
            return True
        if not waiting.is_due and self._look_at_clocks(waiting) is Reading.MEET:
            assert state.sequencer.ledger is not None, "it has clocks"
            meetings, calling = state.sequencer.ledger.meetings, state.sequencer.ledger.calling
            link.connection.send(Held(request=note.request, meetings=meetings, calling=calling))
            return True
        if not waiting.is_due or state.queue.unit_applied(waiting.unit, state.newest) < waiting.at_least:
            return False
        if holding.lacks_for_reader(note.first, note.last):
            reason = (
                f"server {state.server} has no values of some blocks of job {state.job}: nobody has assigned them, or "
                "they were lost with other servers; assign them, from a checkpoint where there is one"
            )
            refuse(link, ServerRefused(reason, kind="lost"), note.request)
        else:
            self._answer(holding, waiting)
        return True

    def _look_at_clocks(self, waiting: _Waiting) -> Reading:
        ledger, note = self._state.sequencer.ledger, waiting.note
        if not note.is_bounded or ledger is None or ledger.staleness is None:
            waiting.is_due = True
            return Reading.NOW
        if ledger.number < note.at_least:
            return Reading.WAIT  # the worker's own clock is not up to date here
        reading = ledger.may_read(waiting.link.worker, note.meetings)
        if reading is Reading.NOW:
            # The clocks are those of the ledger, so all that it has must be in the values.
            waiting.is_due, waiting.at_least = True, max(waiting.at_least, ledger.number)
        return reading

    def _answer(self, holding: Holding, waiting: _Waiting) -> None:
        note, link, queue = waiting.note, waiting.link, self._state.queue
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
            link.connection.send(msgspec.structs.replace(part, state=state), payload)
        elif note.by_value or link.arena is None:
            link.connection.send(part, holding.shard.read(note.first, note.last), key=waiting.unit)
        else:
            memory = holding.shard.memory
            link.connection.send(
                msgspec.structs.replace(
                    part,
                    place=memory.place(holding.layout.offset(note.first)),
                    seal=memory.seal_place(waiting.unit),
                    arena=holding.offer,
                )
            )
