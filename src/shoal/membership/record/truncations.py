"""Which files several workers of one machine empty and write anew, so that only what the last one writes stays. Pure.

Only workers of the same generation count: a file that one worker writes as the first of its generation, and another as
the first of the next, is written as it should be.
"""

from __future__ import annotations

from shoal.errors import printable
from shoal.events import FileTruncated, ScriptDoubtful
from shoal.membership import texts

MOST = 10_000  # files that are remembered; beyond, the longest known one is forgotten


class Truncations:
    """For one run of a job. Memory is bounded."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], FileTruncated] = {}  # by machine and path, the longest known first
        self._told: dict[tuple[str, str], None] = {}

    def observe(self, event: FileTruncated) -> ScriptDoubtful | None:
        """A warning, once per file, where another worker has emptied the file in the same generation."""
        key = event.host, event.path
        before = self._newest.pop(key, None)
        self._newest[key] = event
        _forget_oldest(self._newest)
        if before is None or before.worker == event.worker or before.generation != event.generation:
            return None
        if key in self._told:
            return None
        self._told[key] = None
        _forget_oldest(self._told)
        return ScriptDoubtful(worker=event.worker, text=_warning(before, event))


def _warning(one: FileTruncated, other: FileTruncated) -> str:
    first, second = sorted((one.worker, other.worker))
    return texts.both_write(first, second, printable(other.name), printable(other.place))


def _forget_oldest(known: dict[tuple[str, str], FileTruncated] | dict[tuple[str, str], None]) -> None:
    if len(known) > MOST:
        del known[next(iter(known))]
