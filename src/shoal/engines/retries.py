"""When to try again what failed: after a pause that doubles with every failure, for each of many things by its name.

Pure: the caller passes times, in seconds of a clock that never goes back.
"""

from __future__ import annotations


class Retries:
    def __init__(self, first: float, longest: float) -> None:
        """The first pause and the longest, in seconds. Whoever held out for longer begins with the first again."""
        self._first = first
        self._longest = longest
        self._pauses: dict[str, float] = {}  # the last pause of each
        self._due: dict[str, float] = {}  # when to try again, of those that wait

    def failed(self, name: str, now: float, *, lasted: float = 0.0) -> float:
        """It has failed, after so many seconds in which it seemed well. Returns the pause, in seconds."""
        last = 0.0 if lasted > self._longest else self._pauses.get(name, 0.0)
        pause = self._pauses[name] = min(self._longest, max(self._first, 2 * last))
        self._due[name] = now + pause
        return pause

    def take_due(self, now: float) -> list[str]:
        """Those to be tried now, in the order of their times. Each is handed out once."""
        due = sorted((name for name, at in self._due.items() if at <= now), key=self._due.__getitem__)
        for name in due:
            del self._due[name]
        return due

    @property
    def next_due(self) -> float | None:
        """None: nothing waits."""
        return min(self._due.values(), default=None)
