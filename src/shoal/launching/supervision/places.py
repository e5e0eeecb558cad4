"""The places of a job's workers on this machine: which worker has which place, and when to fill a place again. Pure.

There are as many places as `--workers` says. A process that ends before its script is done leaves its place vacant; the
launcher asks for a number, and a new process gets the place under that number. The caller passes the time. Not here:
whether the job goes on at all (`supervisor`), and giving out numbers, which the coordinator does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shoal.launching import texts

PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0)  # seconds before the next start, by how many rounds in a row were fruitless


class _State(enum.Enum):
    RUNS = enum.auto()
    ENDED = enum.auto()  # the process ended with 0; only the coordinator knows whether its script was done
    DONE = enum.auto()  # its script was done
    VACANT = enum.auto()
    ASKED = enum.auto()  # a number for the next process has been asked for
    GIVEN_UP = enum.auto()  # the job turned away several processes in a row that were started for this place


@dataclass
class _Place:
    worker: int  # the worker that has the place, or had it last
    state: _State = _State.RUNS
    due: float = 0.0  # while vacant: when to fill the place
    since: float = 0.0  # while asked: when the number was asked for
    why: str = ""  # while vacant: how the last process ended
    refusals: int = 0  # processes in a row that the job turned away


@dataclass(frozen=True)
class FilledPlace:
    """A new process is to be started."""

    worker: int
    place: int  # 0..workers-1
    reason: str


class WorkerPlaces:
    def __init__(self, workers: int, most_refusals: int = 3) -> None:
        """A place is given up after `most_refusals` processes in a row were turned away: the next would be too."""
        self._most_refusals = most_refusals
        self._first = workers
        self._places = [_Place(worker) for worker in range(workers)]
        self._left: set[int] = set()  # workers whose scripts were done
        self._handed_over: set[int] = set()
        self._useful: set[int] = set()  # workers that have applied a step
        # Rounds in a row of replacements that ended without an applied step. A process that already ran when the last
        # round was counted belongs to that round: one cause may hit all of them.
        self._fruitless = 0
        self._newest = workers - 1  # number of the newest process
        self._counted = workers - 1  # number of the newest process when a round was last counted

    @property
    def running(self) -> set[int]:
        """Numbers of workers whose processes run."""
        return {place.worker for place in self._places if place.state is _State.RUNS}

    @property
    def is_filling(self) -> bool:
        """Whether a process is going to be started."""
        return any(place.state in (_State.VACANT, _State.ASKED) for place in self._places)

    @property
    def next_due(self) -> float | None:
        """When the next place is due."""
        return min((place.due for place in self._places if place.state is _State.VACANT), default=None)

    @property
    def asked_since(self) -> float | None:
        """Since when the coordinator has owed an answer."""
        return min((place.since for place in self._places if place.state is _State.ASKED), default=None)

    @property
    def left(self) -> set[int]:
        """Workers whose scripts were done."""
        return self._left

    def exited(self, worker: int, code: int, how: str, now: float) -> None:
        place = self._of(worker)
        if place is None or place.state is not _State.RUNS:
            return
        place.why = f"worker {worker} {how}"
        if worker in self._left:
            place.state = _State.DONE
        elif code == 0 and worker not in self._handed_over:
            place.state = _State.ENDED
        else:
            self._vacate(place, now)

    def has_left(self, worker: int, *, is_handover: bool, now: float) -> None:
        """The coordinator says that a worker left, before or after its process was seen to end."""
        (self._handed_over if is_handover else self._left).add(worker)
        place = self._of(worker)
        if place is None or place.state is _State.RUNS:
            return
        if not is_handover:
            place.state = _State.DONE
        elif place.state is _State.ENDED:
            place.why = f"worker {worker} handed over"
            self._vacate(place, now)

    def has_died(self, worker: int, now: float) -> None:
        """The coordinator says that a worker died. A process that still runs keeps its place."""
        place = self._of(worker)
        if place is not None and place.state is _State.ENDED:
            self._vacate(place, now)

    def was_turned_away(self, worker: int) -> str:
        """The coordinator turned a worker away, before or after its process was seen to end.

        Returns what to tell the user if the place is given up.
        """
        place = self._of(worker)
        if place is None:
            return ""
        place.refusals += 1
        if place.refusals < self._most_refusals:
            return ""
        if place.state is _State.VACANT:
            place.state = _State.GIVEN_UP
        return texts.place_given_up(place.refusals)

    def has_stepped(self, worker: int) -> None:
        self._useful.add(worker)
        if (place := self._of(worker)) is not None:
            place.refusals = 0
        if worker >= self._first:
            self._fruitless = 0

    def take_due(self, now: float) -> int:
        """How many numbers to ask for."""
        due = [place for place in self._places if place.state is _State.VACANT and place.due <= now]
        for place in due:
            place.state, place.since = _State.ASKED, now
        return len(due)

    def ask_again(self, now: float) -> None:
        """The coordinator is gone and may not have answered: ask the next one."""
        for place in self._places:
            if place.state is _State.ASKED:
                place.state, place.due = _State.VACANT, now

    def wait_anew(self, now: float) -> None:
        """The coordinator could not answer until now, or cannot from now on: its time starts again."""
        for place in self._places:
            if place.state is _State.ASKED:
                place.since = now

    def give(self, worker: int) -> FilledPlace | None:
        """The coordinator gave a number. None if no place needs it any more."""
        for index, place in enumerate(self._places):
            if place.state is _State.ASKED:
                reason = place.why
                self._places[index] = _Place(worker, refusals=place.refusals)
                self._newest = max(self._newest, worker)
                return FilledPlace(worker, index, reason)
        return None

    def _of(self, worker: int) -> _Place | None:
        return next((place for place in self._places if place.worker == worker), None)

    def _vacate(self, place: _Place, now: float) -> None:
        if place.worker > self._counted and place.worker not in self._useful:
            self._fruitless += 1
            self._counted = self._newest
        place.state = _State.VACANT if place.refusals < self._most_refusals else _State.GIVEN_UP
        place.due = now + PAUSES[min(self._fruitless, len(PAUSES) - 1)]
