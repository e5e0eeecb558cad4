"""The parameter servers of a job as people see them, reduced from its events. Pure, and bounded in memory.

Not here: how it reads (`server_words`) and the report's section (`report.server_section`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shoal import events
from shoal.values import ServerLoad

Kept = TypeVar("Kept")
MOST_SERVERS = 500  # the newest ones, whose figures are kept
MOST_LOSSES = 200  # the newest ones, which are told one by one


@dataclass(frozen=True)
class Loss:
    server: int
    time: float  # seconds since 1970
    reason: str
    served_again: float | None = None  # seconds from the loss until others served its parameters; None: not yet
    blocks: int = 0  # parameter blocks that no other server had
    size: int = 0  # bytes of those
    version: int = 0  # of the map that reported this last; every later map reports it again


@dataclass(frozen=True)
class ServerPace:
    """What a server does at present, per second and in parts of the time."""

    requests: float
    bytes_in: float
    bytes_out: float
    wait: float  # mean seconds that a request waited
    busy: float  # 0 to 1


@dataclass(frozen=True)
class Servers:
    """`apply` returns the next one."""

    version: int = 0  # of the map; 0: there are no servers
    present: tuple[int, ...] = ()
    is_settled: bool = True
    moved: int = 0  # bytes, over all changes
    hosts: Mapping[int, str] = field(default_factory=dict)
    loads: Mapping[int, ServerLoad] = field(default_factory=dict)  # the last report of each server
    before: Mapping[int, ServerLoad] = field(default_factory=dict)  # the report before that, of present servers
    staleness: tuple[int, ...] = ()  # number of updates by staleness, over the whole job
    counted: tuple[
        int, ...
    ] = ()  # those counted by the present ledger; after the loss of all servers a new ledger begins
    clocks: tuple[tuple[int, int], ...] = ()  # (worker, its updates)
    losses: tuple[Loss, ...] = ()
    lost: int = 0  # number of all losses, including those that are no longer told

    @property
    def is_known(self) -> bool:
        return self.version > 0

    def pace(self, server: int) -> ServerPace | None:
        """A server's pace between its last two reports; None before there are two."""
        now, then = self.loads.get(server), self.before.get(server)
        if now is None or then is None or now.seconds <= then.seconds:
            return None
        seconds, requests = now.seconds - then.seconds, now.requests - then.requests
        return ServerPace(
            requests=requests / seconds,
            bytes_in=(now.bytes_in - then.bytes_in) / seconds,
            bytes_out=(now.bytes_out - then.bytes_out) / seconds,
            wait=(now.queue_seconds - then.queue_seconds) / requests if requests else 0.0,
            busy=min(1.0, max(0.0, (now.busy_seconds - then.busy_seconds) / seconds)),
        )

    def apply(self, event: events.Event, time: float) -> Servers:
        match event:
            case events.ServerJoined():
                return replace(self, hosts=_newest({**self.hosts, event.server: event.host}))
            case events.ServerLost() if event.server not in {loss.server for loss in self.losses}:
                loss = Loss(event.server, time, event.reason)
                return replace(self, losses=(*self.losses, loss)[-MOST_LOSSES:], lost=self.lost + 1)
            case events.ServersChanged():
                return replace(
                    self,
                    version=event.version,
                    present=event.servers,
                    is_settled=event.is_settled,
                    moved=self.moved + (event.size if event.is_settled else 0),  # otherwise another event follows
                    losses=tuple(loss if loss.blocks else _served(loss, time) for loss in self.losses),
                )
            case events.ParametersGone() if self.losses:
                return replace(self, losses=(*self.losses[:-1], _gone(self.losses[-1], event)))
            case events.ProgressResumed():
                return replace(self, losses=tuple(_served(loss, event.time) for loss in self.losses))
            case events.ServersMeasured():
                return self._measured(event)
            case _:
                return self

    def _measured(self, event: events.ServersMeasured) -> Servers:
        new = {load.server: load for load in event.loads}
        return replace(
            self,
            version=max(self.version, event.version),
            loads=_newest({**self.loads, **new}),
            before={server: self.loads[server] for server in new if server in self.loads},
            clocks=event.clocks or self.clocks,
        )._with_staleness(event.staleness)

    def _with_staleness(self, counts: tuple[int, ...]) -> Servers:
        """Add the updates since the last report; reports count from the start of the present ledger."""
        if not counts:
            return self
        is_same = sum(counts) >= sum(self.counted)
        less = tuple(-count for count in self.counted) if is_same else ()
        return replace(self, staleness=_added(_added(self.staleness, less), counts), counted=counts)


def _gone(loss: Loss, event: events.ParametersGone) -> Loss:
    """Note blocks that nobody serves until training restarts from a checkpoint. A later map repeats the report."""
    before = loss if event.version == loss.version else replace(loss, blocks=0, size=0)
    return replace(
        before,
        blocks=before.blocks + event.blocks,
        size=before.size + event.size,
        version=event.version,
        served_again=None,
    )


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in itertools.zip_longest(one, other, fillvalue=0))


def _served(loss: Loss, time: float) -> Loss:
    return loss if loss.served_again is not None else replace(loss, served_again=max(0.0, time - loss.time))


def _newest(by_server: dict[int, Kept]) -> dict[int, Kept]:
    """Keep the newest entries: server numbers only grow."""
    return {server: by_server[server] for server in sorted(by_server)[-MOST_SERVERS:]}
