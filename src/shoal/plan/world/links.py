"""Which links of a simulated network are cut, in which direction, and since when: between endpoints or between hosts.

Endpoints are names: worker numbers, the coordinator, the launcher. Endpoints of one host reach each other
whatever is cut between hosts. Not here: what a cut does to a stream (`network`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.plan.world.virtual_time import VirtualTime


@dataclass(frozen=True)
class Cut:
    """A cut of one direction of a link, for some time."""

    here: int  # endpoints, or hosts
    there: int
    is_of_hosts: bool
    since: float
    until: float
    is_masked: bool  # the sender does not notice: it takes the other side's own messages for answers


class LinkCuts:
    def __init__(self, time: VirtualTime, host_of: Callable[[int], int]) -> None:
        self.on_mended: Callable[[], None] = lambda: None  # called when a cut is over
        self._time = time
        self._host_of = host_of
        self._cuts: list[Cut] = []  # now
        self._over: list[Cut] = []
        self._gone: dict[int, float] = {}  # endpoints whose machines have vanished, and since when

    def cut(self, here: int, there: int, seconds: float, *, of_hosts: bool = False) -> None:
        """Cut one direction. A cut between hosts applies to endpoints that come later too."""
        now = self._time.now
        made = Cut(here, there, of_hosts, now, now + seconds, is_masked=self._time.chance(0.5))
        self._cuts.append(made)
        self._time.after(seconds, lambda: self._mend(made))

    def _mend(self, cut: Cut) -> None:
        self._cuts.remove(cut)
        self._over.append(cut)
        self.on_mended()

    def vanished(self, endpoint: int) -> None:
        self._gone.setdefault(endpoint, self._time.now)

    def is_cut(self, here: int, there: int) -> bool:
        return bool(self._cuts) and any(self._is_of(cut, here, there) for cut in self._cuts)

    def answers(self, here: int, there: int) -> bool:
        """Whether a machine answers packets; it does so whatever its processes do."""
        return there not in self._gone and not self.is_cut(here, there) and not self.is_cut(there, here)

    def silent_for(self, here: int, there: int) -> float:
        """For how many seconds an endpoint has had no answers from another, as far as it can tell."""
        now = self._time.now
        silent = [now - self._gone[there]] if there in self._gone else []
        back = [cut for cut in self._cuts if self._is_of(cut, there, here)]
        silent += [now - cut.since for cut in back]
        silent += [
            now - cut.since for cut in self._cuts if self._is_of(cut, here, there) and (back or not cut.is_masked)
        ]
        return max(silent, default=0.0)

    def were_cut(self, one: int, other: int, *, after: float) -> bool:
        """Whether, at any time from then on, packets did not pass in both directions."""
        known = (cut for cut in (*self._cuts, *self._over) if cut.until >= after)
        is_gone = one in self._gone or other in self._gone
        return is_gone or any(self._is_of(cut, one, other) or self._is_of(cut, other, one) for cut in known)

    def _is_of(self, cut: Cut, here: int, there: int) -> bool:
        if cut.is_of_hosts:
            here, there = self._host_of(here), self._host_of(there)
        return (cut.here, cut.there) == (here, there)
