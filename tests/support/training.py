"""Runs in threads of one process: live training code over in-process meshes, exchanges that fail on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.checkpoint.stores.store import Store
from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.collectives.group import Group, Pending
from shoal.collectives.operations import Operations
from shoal.collectives.threaded_group import ThreadedGroup, _Here
from shoal.entry.shoal_main import MakeStrategy, first_lasting, start_session
from shoal.errors import Aborted, ShoalError, TermsDiffer
from shoal.events import AnyEvent
from shoal.job_config import from_mapping
from shoal.membership.publisher import Publisher, PublishRequest
from shoal.strategies.choosing import make_strategy
from shoal.strategies.peers.groups import StandInGroup
from shoal.strategies.peers.peers import Briefed, JobOver, Peers, Traffic
from shoal.terms import Made
from shoal.training.recovery.recovery import join_first
from shoal.training.recovery.restart import begin_anew, train_through
from shoal.training.run import Run
from shoal.training.session import HandedOver, Session
from shoal.transport.mesh.in_process import InProcessMesh, in_process_meshes
from shoal.values import THROUGH, Address, Generation, LostMember, Member
from shoal.wire.messages import Done, ExchangeBroken, PartFailed, PartWritten, Ready


class Killed(BaseException):
    """Ends a worker's thread as SIGKILL ends a process: nothing of it is heard any more."""


class Finished(BaseException):
    """The job was over before this worker got in."""


@dataclass
class Hub:
    """Stands in for the coordinator: the next generation forms when every living member has asked for it."""

    size: int
    fault: Callable[[int, str], bool] | None = None  # (worker, label): break the group before this all-reduce?
    late: Callable[[int, str], bool] | None = (
        None  # the same, after it was whole everywhere: only this worker sees it fail
    )
    kill: Callable[[int, str], bool] | None = None  # the same: does this worker die here?
    events: list[AnyEvent] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)  # by worker: labels of all-reduces, in order
    stop_reason: str | None = None
    failed: str | None = None
    publisher: Publisher | None = None  # None: no checkpoint is ever published
    store: Store | None = None  # where checkpoints go to and come from
    is_resumed: bool = False
    codec: Callable[[], Codec] = Identity  # each worker has its own
    codec_text: str = "identity"  # that others make such a codec from

    def __post_init__(self) -> None:
        self.parts: dict[str, dict[int, PartWritten | PartFailed]] = {}  # by checkpoint and rank
        self.settled: dict[str, bool] = {}
        self.labels = [[] for _ in range(64)]
        self.condition = threading.Condition(threading.RLock())
        self.number = 0
        self.members: list[int] = []  # workers of the current generation, by rank
        self.holders: tuple[int, ...] = ()
        self.waiting: dict[int, Ready | ExchangeBroken | Done] = {}  # workers that wait for the next generation
        self.points: dict[int, int] = {}  # how far scripts are known to have got outside loops, by worker
        self.lost: list[LostMember] = []  # members that died
        self.awaited = self.size  # workers that the first generation waits for
        self.dead: set[int] = set()
        self.left: set[int] = set()  # they handed over
        self.done: set[int] = set()  # their scripts are done
        self.expelled: set[int] = set()  # out of the current generation, and may come back
        self.leaving: dict[int, str] = {}  # workers that are told to hand over, and why
        self.meshes: list[InProcessMesh] = []
        self.calls: dict[int, list[Made]] = {}  # by worker: of its script
        self.interrupts: dict[int, Callable[[str], None]] = {}  # by member: ends what it waits for besides its group
        self.broken = 0  # newest generation that is known to be over
        self.briefed: dict[int, Briefed] = {}  # newcomers that are to compare more calls with their own

    def generation(self) -> Generation:
        members = tuple(
            Member(rank=rank, worker=worker, host="here", process=worker, address=Address("127.0.0.1", 1))
            for rank, worker in enumerate(self.members)
        )
        return Generation(
            number=self.number,
            members=members,
            schedule="auto",
            codec=self.codec_text,
            reason="test",
            holders=self.holders,
            lost=tuple(self.lost),
        )

    def tell(self, worker: int, notice: Ready | ExchangeBroken | Done) -> None:
        with self.condition:
            told = self._calls_for(worker, notice)
            if told is not None:
                self.briefed[worker] = told
                return
            self.waiting[worker] = notice
            if isinstance(notice, ExchangeBroken):
                self._interrupt()
            self._form_if_due()
            self.condition.notify_all()

    def _calls_for(self, worker: int, notice: Ready | ExchangeBroken) -> Briefed | None:
        """What a newcomer has not seen of the members' calls."""
        if not isinstance(notice, Ready) or notice.seen is None or not self.members or worker in self.members:
            return None
        calls = self.calls.get(min(self.holders or self.members), [])
        first = max(0, notice.seen - 1)
        return Briefed(first, tuple(calls[first:])) if notice.seen < len(calls) else None

    def call_made(self, worker: int, index: int, made: Made) -> None:
        with self.condition:
            calls = self.calls.setdefault(worker, [])
            if index <= len(calls):  # else of a run of its script that was given up
                calls[index:] = [made]

    def await_generation(self, worker: int, after: int) -> Generation:
        with self.condition:
            if worker in self.briefed:
                raise self.briefed.pop(worker)
            reached = self.condition.wait_for(
                lambda: (self.number > after and worker in self.members) or self.failed is not None or self.is_finished,
                timeout=60,
            )
            if self.is_finished:
                raise Finished
            if not reached or self.failed is not None:
                raise JobOver(ShoalError(self.failed or "not all members asked for the next generation"))
            return self.generation()

    def finish(self, worker: int, notice: Done) -> Generation | None:
        with self.condition:
            self.tell(worker, notice)
            reached = self.condition.wait_for(
                lambda: self.number > notice.generation or worker in self.done or self.failed is not None, timeout=60
            )
            if not reached or self.failed is not None:
                raise JobOver(ShoalError(self.failed or "the others did not come to their end"))
            return None if worker in self.done else self.generation()

    def gone(self, worker: int, among: set[int]) -> None:
        with self.condition:
            point = self.points.get(worker, 0)
            if among is self.dead and worker in self.members and point < THROUGH:
                self.lost.append(LostMember(worker, self.number, point))
            among.add(worker)
            self.waiting.pop(worker, None)
            if among is not self.done and worker in self.members:
                self._interrupt()
            self._form_if_due()
            self.condition.notify_all()

    def _interrupt(self) -> None:
        """The present generation is over: nobody needs to wait for its members any more."""
        self.broken = self.number
        for interrupt in self.interrupts.values():
            interrupt("the generation is over")
        self.interrupts.clear()

    @property
    def is_finished(self) -> bool:
        """Nobody of the last generation is left, and somebody came to the end: newcomers have nothing to do."""
        return bool(self.done & set(self.members)) and set(self.members) <= self.done | self.dead | self.left

    def expel(self, worker: int) -> None:
        with self.condition:
            self.expelled.add(worker)
            self.meshes[self.members.index(worker)].abort("expelled")
            self._form_if_due()

    @property
    def is_wished(self) -> bool:
        """Somebody waits to be let in."""
        with self.condition:
            return any(worker not in self.members or worker in self.expelled for worker in self.waiting)

    def _form_if_due(self) -> None:
        if self.is_finished:
            return
        out = self.dead | self.left | self.done | self.expelled
        alive = [worker for worker in self.members if worker not in out]
        is_due = all(worker in self.waiting for worker in alive) and self.waiting
        if not self.members:
            is_due = len(self.waiting) >= self.awaited
        if not is_due:
            return
        is_whole = alive and not set(self.members) & (self.dead | self.expelled)
        if is_whole and all(isinstance(self.waiting[worker], Done) for worker in alive):
            self.done.update(alive)
            self.condition.notify_all()
            return
        asked = dict(self.waiting)
        restore = any(isinstance(notice, ExchangeBroken) and notice.must_restore for notice in asked.values())
        holding = (
            worker
            for worker in alive
            if (isinstance(notice := asked[worker], Done) or getattr(notice, "holds", 0)) and not restore
        )
        self.holders = tuple(holding)
        if not self.holders:
            self.calls.clear()
        self.members = sorted(asked)
        self.waiting.clear()
        self.expelled.clear()
        self.number += 1
        self.meshes = in_process_meshes(len(self.members))
        self.condition.notify_all()

    def part_done(self, rank: int, message: PartWritten | PartFailed) -> None:
        with self.condition:
            if message.generation != self.number:
                self.settled[message.checkpoint] = False
                self.condition.notify_all()
                return
            parts = self.parts.setdefault(message.checkpoint, {})
            parts[rank] = message
            if len(parts) == len(self.members) and self.publisher is not None:
                ranked = [parts[r] for r in range(len(self.members))]
                self.settled[message.checkpoint] = self._publish(self.publisher, ranked)
                self.condition.notify_all()

    def _publish(self, publisher: Publisher, parts: list[PartWritten | PartFailed]) -> bool:
        name = parts[0].checkpoint
        written = [part for part in parts if isinstance(part, PartWritten)]
        if len(written) < len(parts):
            publisher.discard(name)
            return False
        publisher.publish(PublishRequest(name, tuple(part.file for part in written), written[0].mark))
        return True

    def settlement(self, name: str, timeout: float) -> bool | None:
        if self.publisher is None:
            return False
        with self.condition:
            generation = int(name.rpartition("-g")[2])

            def is_known() -> bool:
                return name in self.settled or self.failed is not None or generation < self.number

            self.condition.wait_for(is_known, timeout)
            is_over = self.failed is not None or generation < self.number
            return self.settled.get(name, False if is_over else None)

    def fail(self, reason: str) -> None:
        with self.condition:
            self.failed = self.failed or reason
            self.condition.notify_all()


class Watched(Operations):
    """Notes labels, and fails where the hub says so."""

    hub: Hub
    worker: int

    def all_reduce(self, tensors: Any, *, label: str, **options: Any) -> Pending:
        hub, worker = self.hub, self.worker
        hub.labels[worker].append(label)
        if hub.kill is not None and hub.kill(worker, label):
            raise Killed
        if hub.fault is not None and hub.fault(worker, label):
            self.abort("broken on purpose")
        pending = super().all_reduce(tensors, label=label, **options)
        if hub.late is None or not hub.late(worker, label):
            return pending
        pending.wait()
        self.abort("broken after the last byte")
        failed = Pending(label)
        failed.finish(Aborted("broken after the last byte"))
        return failed


class WatchedGroup(Watched, ThreadedGroup):
    def watch(self, hub: Hub, worker: int) -> None:
        here = self._here = WatchedHere(self)
        for part in (self, here):
            part.hub, part.worker = hub, worker


class WatchedHere(Watched, _Here):
    pass


class ThreadPeers(Peers):
    def __init__(self, hub: Hub, worker: int) -> None:
        self._hub = hub
        self.worker = worker
        self.is_new = bool(hub.members)
        size = len(hub.members)
        self.codec = hub.codec()
        self._group: WatchedGroup | None = None
        self.group: Group = StandInGroup(size if self.is_new else worker)
        self.generation = Generation(number=0, members=(), schedule="auto", codec="identity", reason="none yet")

    def leave_group(self, reason: str) -> None:
        if self._group is not None:
            self._group.leave(reason)
            self._group = None

    def break_off(self, reason: str) -> None:
        """Leave as a dead process does: whatever the others are doing fails."""
        if self._group is not None:
            self._group.abort(reason)
        self.leave_group(reason)

    def tell(self, notice: Ready | ExchangeBroken) -> None:
        self._hub.tell(self.worker, notice)

    def await_generation(self, after: int) -> Generation:
        return self._hub.await_generation(self.worker, after)

    def call_made(self, index: int, made: Made) -> None:
        self._hub.call_made(self.worker, index, made)

    def finish(self, notice: Done) -> Generation | None:
        self.leave_group("it is done")
        return self._hub.finish(self.worker, notice)

    def reach(self, point: int) -> None:
        self._hub.points[self.worker] = point

    def connect(self, generation: Generation) -> None:
        rank = generation.rank_of(self.worker)
        assert rank is not None
        if generation.number != self._hub.number:
            raise Aborted("there is a newer generation")
        self.generation = generation
        group = WatchedGroup.over(
            self._hub.meshes[rank], generation=generation.number, schedule="auto", codec=self.codec
        )
        group.watch(self._hub, self.worker)
        self.group = self._group = group

    def report(self, *events: AnyEvent) -> None:
        if self.worker not in self._hub.left:  # whoever has taken leave is not heard any more
            self._hub.events.extend(events)

    def stop_wish(self) -> str | None:
        return self._hub.stop_reason

    def regroup_wish(self) -> str | None:
        return "somebody waits to be let in" if self._hub.is_wished else None

    def leave_wish(self) -> str | None:
        return self._hub.leaving.get(self.worker)

    def hold(self, *, at_end: bool = False) -> None:
        pass

    def interruption(self) -> str | None:
        return "the generation is over" if self._hub.broken >= self.generation.number else None

    @contextmanager
    def interrupting(self, interrupt: Callable[[str], None]) -> Iterator[None]:
        with self._hub.condition:
            if (news := self.interruption()) is not None:
                raise Aborted(news)
            self._hub.interrupts[self.worker] = interrupt
        try:
            yield
        finally:
            with self._hub.condition:
                was_interrupted = self._hub.interrupts.pop(self.worker, None) is None
        if was_interrupted:
            raise Aborted("the generation is over")

    def set_position(self, step: int, operation: str) -> None:
        pass

    def part_done(self, message: PartWritten | PartFailed) -> None:
        self._hub.part_done(self.group.rank, message)

    def settlement(self, checkpoint: str, timeout: float) -> bool | None:
        return self._hub.settlement(checkpoint, timeout)

    def traffic(self) -> Traffic:
        if self._group is None:
            return Traffic(0, 0.0)
        return Traffic(self._group.bytes_sent, self._group.idle_seconds)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


class Crew:
    """Workers as threads, of which some may die and others come later."""

    def __init__(
        self, hub: Hub, train: Callable[[Run], Any], make: MakeStrategy = make_strategy, **options: Any
    ) -> None:
        self.hub = hub
        self.results: dict[int, Any] = {}
        self.errors: list[BaseException] = []
        self.turned_away: dict[int, TermsDiffer] = {}  # by worker
        self.is_last_line = True  # nothing of the script comes after `train`
        self._train = train
        self._make = make
        self._config = from_mapping({"workers": hub.size, **options}, origin="the test")
        self._threads: list[threading.Thread] = []

    def start(self, worker: int) -> None:
        thread = threading.Thread(target=self._work, args=(worker,), name=f"worker-{worker}")
        self._threads.append(thread)
        thread.start()

    def wait(self) -> dict[int, Any]:
        """What `train` returned on each worker that came to its end. The first exception of any of them is raised."""
        for thread in self._threads:  # may grow
            thread.join(timeout=100)
            assert not thread.is_alive(), "a worker hangs"
        if self.errors:
            raise self.errors[0]
        return self.results

    def _work(self, worker: int) -> None:
        hub = self.hub
        peers = ThreadPeers(hub, worker)
        session: Session | None = None
        try:
            past = None if peers.is_new else join_first(peers)
            lasting = first_lasting(peers, self._config, hub.store)
            session = start_session(peers, self._config, self._make, lasting=lasting)
            if past is not None:
                session.go_through(past)
            elif not peers.is_new:
                begin_anew(session, hub.store if hub.is_resumed or hub.number > 1 else None)
            fresh = partial(start_session, peers, self._config, make=self._make)
            self.results[worker], last = train_through(
                self._train, session, fresh, hub.store, is_last_line=self.is_last_line
            )
            hub.gone(worker, hub.done)
            last.close()
        except Finished:
            pass
        except HandedOver:
            hub.gone(worker, hub.left)
        except TermsDiffer as error:
            self.turned_away[worker] = error
            hub.gone(worker, hub.dead)
            peers.break_off("this worker is turned away")
        except Killed:
            hub.gone(worker, hub.dead)
            peers.break_off("this worker is dead")
        except BaseException as error:
            self.errors.append(error)
            hub.fail(str(error))
            peers.break_off("this worker failed")
        finally:
            if session is not None:
                session.close()
            peers.close()


def train_in_threads(size: int, train: Callable[[Run], Any], *, hub: Hub | None = None, **options: Any) -> list[Any]:
    """What `train` returns on each of `size` workers. The first exception of any of them is raised."""
    hub = hub or Hub(size)
    crew = Crew(hub, train, **({"resume": "an earlier run"} if hub.is_resumed else {}), **options)
    for worker in range(size):
        crew.start(worker)
    results = crew.wait()
    return [results[worker] for worker in range(size)]
