"""Files of the run directory that cannot be written for a while: what to announce, and when. Pure.

Not here: writing them (`decision_file`, `event_writer`), and asking the disk how much room it has (`coordinator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.events import StorageFailed, StorageRestored

REPEAT = 60.0  # seconds after which a lasting trouble is announced again

StorageEvent = StorageFailed | StorageRestored


@dataclass(frozen=True)
class Trouble:
    """A file that could not be written at the last try."""

    file: str  # path
    error: str  # the operating system's message
    holds_up: bool = False  # decisions wait for this file
    free: int | None = None  # bytes left on its disk; None: not known
    lost: int = 0  # lines that could wait no longer and will be missing from the file
    patience: float = 0.0  # seconds that the trouble may last before it is announced


@dataclass
class _Known:
    since: float
    last: Trouble
    said: float | None = None  # when the trouble was last announced; None: not yet


class StorageNews:
    """One per coordinator. Call `look` after every attempt to write; times are seconds of any origin."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # by file

    @property
    def is_quiet(self) -> bool:
        return not self._known

    def look(self, troubles: Sequence[Trouble], now: float) -> list[StorageEvent]:
        """What to announce, given all files that cannot be written now."""
        out: list[StorageEvent] = []
        for trouble in troubles:
            known = self._known.setdefault(trouble.file, _Known(since=now, last=trouble))
            if _is_due(known, trouble, now):
                known.said = now
                out.append(_failed(trouble))
            known.last = trouble
        failing = {trouble.file for trouble in troubles}
        for file in [file for file in self._known if file not in failing]:
            known = self._known.pop(file)
            if known.said is not None:
                out.append(_restored(known.last, now - known.since))
        return out


def _is_due(known: _Known, trouble: Trouble, now: float) -> bool:
    if known.said is None:
        return now - known.since >= trouble.patience
    is_worse = trouble.holds_up > known.last.holds_up or bool(trouble.lost) > bool(known.last.lost)
    return is_worse or now - known.said >= REPEAT


def _failed(trouble: Trouble) -> StorageFailed:
    room = "" if trouble.free is None else f" ({trouble.free:,} bytes are free on its disk)"
    if trouble.holds_up:
        then = (
            "the coordinator can decide nothing until then: nobody is let in, replaced or put out; "
            "make room on that disk, or make it writable, and the job goes on by itself; Ctrl-C ends the job"
        )
    elif trouble.lost:
        then = f"the job goes on, but {_lost(trouble.lost)}: too many wait to be written"
    else:
        then = "the job goes on, and what is to be written waits until it can be"
    reason = f"{trouble.file} cannot be written: {trouble.error}{room}; {then}"
    return StorageFailed(file=trouble.file, free=trouble.free, holds_up=trouble.holds_up, reason=reason)


def _restored(last: Trouble, seconds: float) -> StorageRestored:
    lost = f"; {_lost(last.lost)}" if last.lost else ""
    then = "; decisions that waited are carried out now" if last.holds_up else ""
    reason = f"{last.file} can be written again after {seconds:.1f} s{lost}{then}"
    return StorageRestored(file=last.file, seconds=seconds, holds_up=last.holds_up, reason=reason)


def _lost(lines: int) -> str:
    return "1 line of it is lost" if lines == 1 else f"{lines:,} lines of it are lost"
