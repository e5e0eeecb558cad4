"""Runs in threads of one process: live training code over in-process meshes, exchanges that fail on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.checkpoint.store import Store
from shoal.codecs.identity import Identity
from shoal.collectives.group import Pending
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import Aborted, ShoalError
from shoal.events import AnyEvent
from shoal.job_config import JobConfig
from shoal.membership.publisher import Publisher, PublishRequest
from shoal.strategies.peers import Breakage, JobOver, Peers, Traffic
from shoal.training.restart import train_through
from shoal.training.resume import resume
from shoal.training.run import Run
from shoal.training.session import Session
from shoal.training.start import start_session
from shoal.transport.in_process import InProcessMesh, in_process_meshes
from shoal.values import Address, Generation, Member
from shoal.wire.messages import PartFailed, PartWritten


@dataclass
class Hub:
    """Stands in for the coordinator: the next generation forms when every member has asked for it."""

    size: int
    fault: Callable[[int, str], bool] | None = None  # (rank, label): break the group before this all-reduce?
    late: Callable[[int, str], bool] | None = (
        None  # the same, after it was whole everywhere: only this rank sees it fail
    )
    events: list[AnyEvent] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)  # by rank: labels of all-reduces, in order
    stop_reason: str | None = None
    failed: str | None = None
    publisher: Publisher | None = None  # None: no checkpoint is ever published
    store: Store | None = None  # where checkpoints go to and come from
    is_resumed: bool = False

    def __post_init__(self) -> None:
        self.parts: dict[str, dict[int, PartWritten | PartFailed]] = {}  # by checkpoint and rank
        self.settled: dict[str, bool] = {}
        self.labels = [[] for _ in range(self.size)]
        self._condition = threading.Condition()
        self._asking: set[int] = set()
        self.number = 1
        self.meshes: list[InProcessMesh] = in_process_meshes(self.size)

    def generation(self) -> Generation:
        members = tuple(
            Member(rank=rank, worker=rank, host="here", process=rank, address=Address("127.0.0.1", 1))
            for rank in range(self.size)
        )
        return Generation(number=self.number, members=members, schedule="auto", codec="identity", reason="test")

    def next_generation(self, rank: int) -> None:
        with self._condition:
            asked_for = self.number + 1
            self._asking.add(rank)
            if len(self._asking) == self.size:
                self._asking.clear()
                self.number = asked_for
                self.meshes = in_process_meshes(self.size)
                self._condition.notify_all()
            reached = self._condition.wait_for(lambda: self.number >= asked_for or self.failed is not None, timeout=60)
            if not reached or self.failed is not None:
                raise JobOver(ShoalError(self.failed or "not all members asked for the next generation"))

    def part_done(self, rank: int, message: PartWritten | PartFailed) -> None:
        with self._condition:
            parts = self.parts.setdefault(message.checkpoint, {})
            parts[rank] = message
            if len(parts) == self.size and self.publisher is not None:
                self.settled[message.checkpoint] = self._publish(self.publisher, [parts[r] for r in range(self.size)])
                self._condition.notify_all()

    def _publish(self, publisher: Publisher, parts: list[PartWritten | PartFailed]) -> bool:
        name = parts[0].checkpoint
        written = [part for part in parts if isinstance(part, PartWritten)]
        if len(written) < self.size:
            publisher.discard(name)
            return False
        publisher.publish(PublishRequest(name, tuple(part.file for part in written), written[0].mark))
        return True

    def settlement(self, name: str, timeout: float) -> bool | None:
        if self.publisher is None:
            return False
        with self._condition:
            self._condition.wait_for(lambda: name in self.settled or self.failed is not None, timeout)
            return self.settled.get(name, False if self.failed is not None else None)

    def fail(self, reason: str) -> None:
        with self._condition:
            self.failed = self.failed or reason
            self._condition.notify_all()


class WatchedGroup(ThreadedGroup):
    """Notes labels, and fails where the hub says so."""

    hub: Hub

    def all_reduce(self, tensor: Any, *, label: str, **options: Any) -> Pending:
        self.hub.labels[self.rank].append(label)
        if self.hub.fault is not None and self.hub.fault(self.rank, label):
            self.abort("broken on purpose")
        pending = super().all_reduce(tensor, label=label, **options)
        if self.hub.late is None or not self.hub.late(self.rank, label):
            return pending
        pending.wait()
        self.abort("broken after the last byte")
        failed = Pending(label)
        failed.finish(Aborted("broken after the last byte"))
        return failed


class ThreadPeers(Peers):
    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self.worker = rank
        self._enter()

    def _enter(self) -> None:
        self.generation = self._hub.generation()
        group = WatchedGroup(
            self._hub.meshes[self.worker], generation=self.generation.number, schedule="auto", codec=Identity()
        )
        group.hub = self._hub
        self.group = self._group = group

    def regroup(self, breakage: Breakage) -> None:
        self._group.abort(breakage.reason)
        self._group.close()
        self._hub.next_generation(self.worker)
        self._enter()

    def report(self, *events: AnyEvent) -> None:
        self._hub.events.extend(events)

    def stop_wish(self) -> str | None:
        return self._hub.stop_reason

    def set_position(self, step: int, operation: str) -> None:
        pass

    def part_done(self, message: PartWritten | PartFailed) -> None:
        self._hub.part_done(self.worker, message)

    def settlement(self, checkpoint: str, timeout: float) -> bool | None:
        return self._hub.settlement(checkpoint, timeout)

    def traffic(self) -> Traffic:
        return Traffic(self._group.bytes_sent, self._group.idle_seconds)

    def close(self) -> None:
        self._group.close()


def train_in_threads(size: int, train: Callable[[Run], Any], *, hub: Hub | None = None, **options: Any) -> list[Any]:
    """What `train` returns on each of `size` workers. The first exception of any of them is raised."""
    hub = hub or Hub(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        peers = ThreadPeers(hub, rank)
        session: Session | None = None
        try:
            session = start_session(peers, JobConfig(**options), hub.store)
            if hub.store is not None and hub.is_resumed:
                resume(session, hub.store)
            fresh = partial(start_session, peers, JobConfig(**options))
            results[rank], last = train_through(train, session, fresh)
            last.close()
        except BaseException as error:
            errors.append(error)
            peers.group.abort("this worker failed")
            hub.fail(str(error))
        finally:
            if session is not None:
                session.close()
            peers.close()

    threads = [threading.Thread(target=work, args=(rank,), name=f"worker-{rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
        assert not thread.is_alive(), "a worker hangs"
    if errors:
        raise errors[0]
    return results
