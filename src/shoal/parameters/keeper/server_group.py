"""The members of a server group and its valid map: the keeper's decisions. Pure: events in, events out.

Every change makes a new version of the map. `before` is the last complete placement; `after` is the placement on the
living servers that are to stay. When all of these have fetched their blocks, `after` becomes `before`, and the map is
settled. A server that is to leave stays until then. The caller gives the times, in seconds; only differences matter.
Not here: connections and silence (`keeper`), where blocks are (`placement`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shoal.errors import Refused, UsageError
from shoal.parameters import texts
from shoal.parameters.keeper.group_events import GroupEvent, GroupServerJoined, GroupServerLost, MapMade, ServerRemoved
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Departure, Server, ServerMap
from shoal.wire.keeper_messages import Lost, SpaceEnd

LONGEST_NAME = 200  # characters of a job's name
KEPT_DEPARTURES = 32  # how many a map lists; a reader that asks once a second is unlikely to miss any
TAKEN_OUT = "it was taken out, and what it held has moved"


@dataclass(frozen=True)
class GroupSettings:
    expected: int  # servers that the first map waits for
    replicas: int = 1  # servers that hold each block

    def __post_init__(self) -> None:
        if self.expected < 1:
            raise UsageError(texts.no_servers(self.expected))
        if not 1 <= self.replicas <= self.expected:
            raise UsageError(texts.bad_replicas(self.replicas, self.expected))


@dataclass
class _Move:
    """The transition from the last settled map to the next."""

    since: float  # when the transition became necessary
    filled: set[int]  # servers that hold all of their blocks under the present version
    lost: dict[tuple[int, str], Lost] = field(default_factory=dict)  # under the present version, by server and job
    size: int = 0  # bytes fetched during this transition, over all versions of the map

    @property
    def outcome(self) -> str:
        """The reason to give for the next map, once all servers are filled."""
        blocks = sum(note.blocks for note in self.lost.values())
        if not blocks:
            return "all blocks are in place"
        size, verb = sum(note.size for note in self.lost.values()), "has" if blocks == 1 else "have"
        some = f"{blocks} block{'s' * (blocks > 1)} ({size:,} bytes)"
        return f"{some} {verb} to be restored from a checkpoint; all others are in place"


class ServerGroup:
    """State of one group. Methods return events; all servers and workers are to know `map` and `spaces`."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.map: ServerMap | None = None
        self.spaces: dict[str, SpaceTerms] = {}  # by job
        self._living: dict[int, Server] = {}  # joined, not lost, not removed; in order of arrival, at first by number
        self._numbers: set[int] = set()  # of all servers that were ever in the group
        self._leaving: set[int] = set()
        self._is_gone = False  # there was a map, and then no server was left
        self._move: _Move | None = None
        self._departures: deque[Departure] = deque(maxlen=KEPT_DEPARTURES)

    # Servers

    def join(self, server: Server, now: float) -> list[GroupEvent]:
        if server.number < 0 or server.number in self._numbers:
            raise Refused(
                f"server number {server.number} was used before in this group; start a server with a new number"
            )
        self._numbers.add(server.number)
        self._living[server.number] = server
        return [GroupServerJoined(server), *self._change(f"server {server.number} joined", now)]

    def lose(self, number: int, reason: str, now: float, *, is_silent: bool = False) -> list[GroupEvent]:
        """No events if the server is not in the group, or not any more."""
        if self._living.pop(number, None) is None:
            return []
        self._leaving.discard(number)
        self._departures.append(Departure(number, reason))
        return [GroupServerLost(number, reason, is_silent), *self._change(f"server {number} was lost: {reason}", now)]

    def remove(self, numbers: Iterable[int], now: float) -> list[GroupEvent]:
        leaving = set(numbers)
        staying = self._staying - leaving
        if self.map is None:
            raise Refused("the group is not complete yet: no server can be taken out of it")
        if unknown := leaving - self._living.keys():
            raise Refused(f"no server {_listed(unknown)} in this group; there are {_listed(self._living)}")
        if len(staying) < self.settings.replicas:
            raise Refused(
                f"without server {_listed(leaving)} the group has {len(staying)}, and it keeps "
                f"{self.settings.replicas} replicas; add servers first, or stop the group"
            )
        if leaving <= self._leaving:
            return []  # they are leaving already; a new version would only delay that
        self._leaving |= leaving
        return self._change(f"server {_listed(leaving)} is taken out", now)

    def filled(self, number: int, view: int, size: int, now: float) -> list[GroupEvent]:
        """A server has fetched `size` bytes and holds all of its blocks under this version of the map."""
        if self.map is None or self._move is None or view != self.map.version or number not in self.map.after:
            return []
        if number not in self._move.filled:
            self._move.filled.add(number)
            self._move.size += size
        if self._move.filled < set(self.map.after):
            return []
        return self._publish(self.map.after, self.map.after, self._move.outcome, now)

    def lost(self, number: int, note: Lost) -> None:
        """A server should hold blocks that no living server has. It reports them before it is filled."""
        if self.map is not None and self._move is not None and note.view == self.map.version:
            self._move.lost[number, note.job] = note

    # Jobs

    def open(self, space: SpaceTerms) -> None:
        """Let a job use the group. Opening the same space twice changes nothing."""
        known = self.spaces.get(space.job)
        if known is not None and known.key != space.key:
            raise Refused(
                f"a job named {space.job} uses this group already; choose another name, or end that job first"
            )
        if not space.job.isprintable() or not 0 < len(space.job) <= LONGEST_NAME:
            raise Refused(f"a job's name has 1 to {LONGEST_NAME} printable characters; this one is {space.job[:80]!r}")
        if not space.key or space.quota < 0:
            raise Refused(f"job {space.job}: a key and a quota of at least 0 bytes are needed, not {space.quota}")
        self.spaces[space.job] = space

    def end(self, job: str, end: SpaceEnd) -> bool:
        """A server cannot go on with a job, so that no server does. Returns whether this was not known yet."""
        known = self.spaces.get(job)
        if known is None or known.end is not None:
            return False
        self.spaces[job] = replace(known, end=end)
        return True

    def close(self, job: str) -> None:
        self.spaces.pop(job, None)

    # Maps

    @property
    def _staying(self) -> set[int]:
        return set(self._living) - self._leaving

    def _change(self, reason: str, now: float) -> list[GroupEvent]:
        """The members have changed: publish the next map, if there is one."""
        if not self._living:
            self._is_gone = self.map is not None
            return []
        if not self._staying:
            self._leaving.clear()  # the staying servers died: the leaving ones are needed after all
        after = tuple(sorted(self._staying))
        if self.map is None:
            self._living = dict(sorted(self._living.items()))
            return self._publish(after, after, reason, now) if len(after) >= self.settings.expected else []
        if self._is_gone:
            self._is_gone = False
            return self._publish(after, after, f"{reason}; all others were lost, and what they held", now)
        return self._publish(self.map.before, after, reason, now)

    def _publish(self, before: tuple[int, ...], after: tuple[int, ...], reason: str, now: float) -> list[GroupEvent]:
        named = {*before, *after}
        removed = [number for number in sorted(self._leaving) if number not in named]
        for number in removed:
            self._leaving.discard(number)
            del self._living[number]
            self._departures.append(Departure(number, TAKEN_OUT, is_wanted=True))
        self.map = ServerMap(
            version=1 if self.map is None else self.map.version + 1,
            # In order of arrival, so that the first one, home, changes only when it leaves.
            servers=tuple(server for number, server in self._living.items() if number in named),
            before=before,
            after=after,
            replicas=self.settings.replicas,
            reason=reason,
            departures=tuple(self._departures),
        )
        move = self._move or _Move(since=now, filled=set())
        move.filled, move.lost = set(), {}
        self._move = None if self.map.is_settled else move
        made = MapMade(self.map, seconds=now - move.since, size=move.size)
        return [made, *(ServerRemoved(number) for number in removed)]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
