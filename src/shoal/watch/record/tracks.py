"""How far a job was at each of its steps by another measure: samples that it had used, epochs that it had done. Pure.

A track is a broken line through a bounded number of anchors: where every step has as many samples as the one before,
two anchors are enough for the whole job. Steps that are done again replace the first try, as in `series`.
"""

from __future__ import annotations

import bisect
import math

MOST_ANCHORS = 1000
Anchor = tuple[int, float]  # a step, and the measure after it


class Track:
    """`add` anchors in the order of steps; an anchor for an earlier step drops all from that step on."""

    def __init__(self, most: int = MOST_ANCHORS) -> None:
        self._most = most
        self._gap = 1  # least number of steps between two anchors, but for the last one
        self._anchors: list[Anchor] = [(0, 0.0)]

    @property
    def is_known(self) -> bool:
        return len(self._anchors) > 1

    @property
    def last(self) -> float:
        return self._anchors[-1][1]

    def add(self, step: int, value: float) -> None:
        if step <= self._anchors[-1][0]:
            self.rewind(step)
        if step <= 0:
            return
        if len(self._anchors) > 1:
            before, last = self._anchors[-2:]
            if last[0] - before[0] < self._gap or _is_straight(before, last, (step, value)):
                self._anchors.pop()
        self._anchors.append((step, value))
        if len(self._anchors) > self._most:
            self._widen(2 * step // self._most)

    def _widen(self, gap: int) -> None:
        self._gap = max(gap, 2 * self._gap)
        first, *between, last = self._anchors
        self._anchors = [first]
        for anchor in between:
            if anchor[0] - self._anchors[-1][0] >= self._gap:
                self._anchors.append(anchor)
        self._anchors.append(last)

    def rewind(self, step: int) -> None:
        """Forget everything from this step on."""
        before = max(0, step - 1)
        if self._anchors[-1][0] <= before:
            return
        value = self.at(before)
        while len(self._anchors) > 1 and self._anchors[-1][0] >= before:
            self._anchors.pop()
        if before > self._anchors[-1][0]:
            self._anchors.append((before, value))

    def at(self, step: int) -> float:
        """The measure after this step. Beyond the last anchor the line goes on as it was."""
        if not self.is_known:
            return self.last
        place = min(len(self._anchors) - 1, max(1, bisect.bisect_left(self._anchors, (step, -math.inf))))
        (first, low), (second, high) = self._anchors[place - 1 : place + 1]
        return low + (high - low) * (step - first) / (second - first)

    def anchors(self) -> list[Anchor]:
        return list(self._anchors)


class EpochTrack:
    """Epochs done after each step. Epochs of all loops count, one after the other."""

    def __init__(self) -> None:
        self._track = Track()
        self._pace: float | None = None  # epochs per step in the present loop; None: not known

    def begin_loop(self, steps_per_epoch: int | None) -> None:
        self._pace = 1 / steps_per_epoch if steps_per_epoch else None

    def end_epoch(self, step: int) -> None:
        self._track.rewind(step)  # told twice, it counts once
        self._track.add(step, math.floor(self._track.last + 1e-6) + 1.0)

    def rewind(self, step: int) -> None:
        self._track.rewind(step)

    def until(self, step: int) -> Track | None:
        """The track up to this step, which may be within an epoch. None: it is not known how long an epoch is."""
        made = Track()
        for anchor in self._track.anchors():
            made.add(*anchor)
        reached = made.anchors()[-1][0]
        if step <= reached:
            return made if made.is_known else None
        if self._pace is None and not made.is_known:
            return None
        ahead = made.at(step) - made.last if self._pace is None else (step - reached) * self._pace
        # Workers that run free tell of no epoch's end; where ends are told, the epoch that goes on is one at most.
        made.add(step, made.last + (min(1.0, ahead) if made.is_known else ahead))
        return made


def _is_straight(first: Anchor, second: Anchor, third: Anchor) -> bool:
    return (second[1] - first[1]) * (third[0] - second[0]) == (third[1] - second[1]) * (second[0] - first[0])
