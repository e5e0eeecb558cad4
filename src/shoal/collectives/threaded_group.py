"""The group that strategies use: operations queue up and one communication thread runs them in order on an exchanger.

Calls return at once, so gradients travel while `backward` goes on. `here` is the same group for callers that would wait
at once anyway: operations run in their thread. A group of one needs no exchanger and no thread. The first failure is
final: that operation and every later one raise it, and peers notice at once.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from shoal.codecs.codec import Codec
from shoal.collectives.exchanger import Exchanger, Operation, PointToPoint
from shoal.collectives.gpu.gpu_way import GpuTerms, GpuWay
from shoal.collectives.group import Group, Pending
from shoal.collectives.operations import Alone, Make, Operations, Work
from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.scheduled_exchanger import ScheduledExchanger
from shoal.errors import Aborted, PeerLost
from shoal.links.plan import LinkPlan
from shoal.transport.mesh.mesh import Mesh

_FINISHED = Pending("an operation that was done here")
_FINISHED.finish()


@dataclass(frozen=True)
class _Job:
    operation: Operation
    pending: Pending
    work: Work


class ThreadedGroup(Operations):
    def __init__(
        self,
        exchanger: Exchanger | None,
        generation: int,
        *,
        post: PointToPoint | None = None,
        names: Mapping[int, str] | None = None,
        gpu: GpuTerms | None = None,
    ) -> None:
        """The group owns `exchanger` and `post`. No exchanger: a group of one. `names`: by rank, for errors.

        `gpu`: on what terms GPU tensors may go by NCCL; None: they go through host memory.
        """
        super().__init__(exchanger, post, generation, gpu)
        self.current: Operation | None = None  # the running operation; None between operations
        self.current_label = ""  # of the running operation; empty between operations
        self._began: float | None = None  # when the running operation began, by time.monotonic
        self.brake: Callable[[Operation], None] | None = None  # called before each operation, to slow it down
        self._names = dict(names or {})
        self._process = os.getpid()  # a forked child has neither the thread nor the streams
        self._failure: BaseException | None = None
        self._guard = threading.Lock()  # guards _failure, _unfinished and the numbers of operations
        self._unfinished = 0  # operations that were started and are not done
        self._awaited = False  # the last argument of `Exchanger.is_awaited`
        self._running = threading.Lock()  # held by the thread that runs an operation
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._here = _Here(self)
        if exchanger is not None and self.size > 1:
            name = f"shoal-exchange-g{generation}-r{self.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
            # A thread that is inside torch while the interpreter shuts down would abort the process.
            atexit.register(self._leave)

    @classmethod
    def over(
        cls, mesh: Mesh | None, generation: int, schedule: str, codec: Codec, plan: LinkPlan | None = None
    ) -> Self:
        """A group that runs schedules over a mesh, which it owns from now on; without a mesh, a group of one."""
        if mesh is None:
            return cls(None, generation)
        exchanger = ScheduledExchanger(mesh, Chooser(schedule, mesh.size, mesh.rank, plan), codec, generation)
        return cls(exchanger, generation, post=exchanger)

    @property
    def here(self) -> Group:
        return self._here

    @property
    def needs_a_core(self) -> bool:
        return self._exchanger is not None and self._exchanger.needs_a_core

    @property
    def least_bytes(self) -> int:
        return 0 if self._exchanger is None else self._exchanger.least_bytes

    @property
    def why(self) -> str:
        """Why bytes take the way they take, for people."""
        return "" if self._exchanger is None else self._exchanger.why

    @property
    def bytes_sent(self) -> int:
        return 0 if self._exchanger is None or self._gpu is None else self._exchanger.bytes_sent + self._gpu.bytes_sent

    @property
    def idle_seconds(self) -> float:
        """Time that operations spent waiting for a peer to get here."""
        return 0.0 if self._exchanger is None else self._exchanger.idle_seconds

    @property
    def stalled(self) -> float:
        """Seconds since the running operation began; 0 between operations. From any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def missing(self) -> list[int]:
        """From any thread: the ranks that the running operation waits for, as far as this rank can tell."""
        return [] if self._exchanger is None else self._exchanger.missing()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """`blamed`: the rank that made this one give up; the others name it too."""
        if os.getpid() == self._process:
            self._fail(Aborted(reason), blamed=blamed)

    def lose(self, peer: int | None, reason: str) -> None:
        """From any thread: fail as if that peer, or with None all peers, were gone."""
        self._fail(PeerLost(reason, peer=peer), blamed=peer)

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    def leave(self, reason: str) -> None:
        """Release everything at once. Peers that still need this rank fail; others are not disturbed."""
        with self._guard:
            is_idle = self._unfinished == 0
        if not is_idle:
            self.abort(reason)
        self.close()

    def close(self) -> None:
        """Let started operations finish, then release thread and transport. Safe to call twice."""
        if os.getpid() != self._process:
            return  # a forked child: thread and transport belong to the parent
        if self._thread is not None:
            atexit.unregister(self._leave)
            self._jobs.put(None)
            if self._is_own_thread:  # a callback closes the group: finish earlier operations here
                self._serve()
            else:
                self._thread.join()
        with self._running:
            self._fail(Aborted("the group is closed"), tell=False)
            for means in self._means():
                means.close()
        while not self._jobs.empty():  # started by another thread while this one closed
            job = self._jobs.get()
            if job is not None:
                job.pending.finish(self._failure)
        if self._is_own_thread:
            self._jobs.put(None)  # the thread ends when it comes back from the callback

    def _leave(self) -> None:
        """Called when the interpreter ends while the group is still open."""
        self.leave("the process ends")

    def _start(self, sequence: str, make: Make, work: Work, alone: Alone) -> Pending:
        with self._guard:
            pending = self._queue(self._numbered(sequence, make), work, alone)
        if self._is_own_thread:
            self._catch_up(pending)
        return pending

    def _queue(self, operation: Operation, work: Work, alone: Alone) -> Pending:
        """Call with the guard held: operations run in the order of their numbers."""
        pending = Pending(operation.label)
        if self._failure is not None:
            pending.finish(self._failure)
        elif self._thread is not None:
            self._unfinished += 1
            self._jobs.put(_Job(operation, pending, work))
        else:
            alone()
            pending.finish()
        return pending

    @property
    def _is_own_thread(self) -> bool:
        """Whether this is the communication thread, in a callback of an operation that it has finished."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def _catch_up(self, pending: Pending) -> None:
        """A callback started another operation and may wait for it: run it here, in the thread that would run it."""
        while not pending.is_done:
            job = self._jobs.get()
            if job is not None:
                self._do(job)
                continue
            self._fail(Aborted("the group is closed"), tell=False)
            self._jobs.put(None)  # for `_serve`

    def start_here(self, sequence: str, make: Make, work: Work, alone: Alone) -> Pending:
        """Run the operation in this thread if none is queued before it. Returns when it is done."""
        pending = None
        with self._guard:
            operation = self._numbered(sequence, make)
            is_idle = self._thread is not None and self._failure is None and not self._unfinished
            if is_idle and self._running.acquire(blocking=False):  # operations queued from now on wait for the lock
                self._unfinished = 1
            else:
                pending = self._queue(operation, work, alone)
        if pending is not None:
            if self._is_own_thread:
                self._catch_up(pending)
            pending.wait()
            return pending
        try:
            if operation.is_flat:  # the shortest way: for small tensors every microsecond matters
                error = self._run(operation, work, awaited=True)
            else:
                with torch.inference_mode():
                    error = self._run(operation, work, awaited=True)
        except BaseException:  # Ctrl-C in the middle: how much the others received is not known
            self._fail(Aborted("an operation was interrupted"))
            raise
        finally:
            self._running.release()
            with self._guard:
                self._unfinished -= 1
        if error is not None:
            raise error
        return _FINISHED

    def _serve(self) -> None:
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                self._do(job)
                del job  # do not keep its tensors alive while waiting for the next one

    def _do(self, job: _Job) -> None:
        with self._running:
            error = self._run(job.operation, job.work)
        with self._guard:
            self._unfinished -= 1
        job.pending.finish(error)

    def _run(self, operation: Operation, work: Work, *, awaited: bool = False) -> BaseException | None:
        """The error that made the operation fail, or None. The caller holds `_running`."""
        if self._failure is not None:
            return self._failure
        assert self._exchanger is not None
        if awaited is not self._awaited:
            self._exchanger.is_awaited(awaited)
            self._awaited = awaited
        self.current, self.current_label, self._began = operation, operation.label, time.monotonic()
        try:
            if self.brake is not None:
                self.brake(operation)
            work(operation, self._exchanger)
            return None
        except PeerLost as lost:
            self._fail(self._named(lost, operation), blamed=lost.peer)
        except Exception as error:
            self._fail(error)
        finally:
            self.current, self.current_label, self._began = None, "", None
        return self._failure

    def _named(self, lost: PeerLost, operation: Operation) -> PeerLost:
        """The same loss, with the peer's name and the operation."""
        who = f"rank {lost.peer} is {self._names[lost.peer]}; " if lost.peer in self._names else ""
        text = f"{lost}; {who}noticed in {operation.words}"
        return PeerLost(text, peer=lost.peer)

    def _fail(self, error: BaseException, *, tell: bool = True, blamed: int | None = None) -> None:
        """The first failure stays. Peers notice through the exchanger."""
        with self._guard:
            if self._failure is not None:
                return
            self._failure = error
        for means in self._means() if tell else ():
            means.abort(str(error), blamed=blamed)

    def _means(self) -> list[Exchanger | PointToPoint | GpuWay]:
        all_of_them = (self._gpu, self._exchanger, self._post)
        return list({id(means): means for means in all_of_them if means is not None}.values())


class _Here(Operations):
    """The calls of a threaded group, done in the caller's thread if nothing is queued before them."""

    def __init__(self, group: ThreadedGroup) -> None:
        super().__init__(group._exchanger, group._post, group.generation)
        self._group = group
        self._sequences = group._sequences  # both number operations in one order
        self._gpu = group._gpu

    def _start(self, sequence: str, make: Make, work: Work, alone: Alone) -> Pending:
        return self._group.start_here(sequence, make, work, alone)

    def abort(self, reason: str) -> None:
        self._group.abort(reason)

    def close(self) -> None:
        self._group.close()
