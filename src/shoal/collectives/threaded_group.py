"""The group that strategies use: operations queue up and one communication thread runs them in order over a mesh.

Calls return at once, so gradients travel while `backward` goes on. A group of one needs no transport and no thread.
The first failure is final: it is raised by that operation and by every later one, and peers notice at once.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from shoal.codecs.codec import Codec
from shoal.collectives import staging
from shoal.collectives.choice import Chooser
from shoal.collectives.dtypes import code_of, combine
from shoal.collectives.executor import Executor, Operation, Segment, segments_of
from shoal.collectives.group import Group, Pending, Reduction
from shoal.collectives.schedule import boundaries
from shoal.collectives.staging import Staged
from shoal.errors import Aborted, UsageError
from shoal.transport.mesh import Mesh
from shoal.wire.frames import Kind, cut_label


@dataclass(frozen=True)
class _Job:
    pending: Pending
    work: Callable[[], None]


class ThreadedGroup(Group):
    def __init__(self, mesh: Mesh | None, generation: int, schedule: str, codec: Codec) -> None:
        """`mesh` belongs to the group from now on; None makes a group of one."""
        if not codec.lossless:
            raise UsageError(f"the codec {codec.name!r} loses precision, which this group cannot make up for")
        self.rank = 0 if mesh is None else mesh.rank
        self.size = 1 if mesh is None else mesh.size
        self.generation = generation
        self.current_label = ""  # of the operation that is being run; empty between operations
        self._began: float | None = None  # by time.monotonic, that operation; None between operations
        self._chooser = Chooser(schedule, self.size, self.rank)
        self._mesh = mesh
        self._process = os.getpid()  # a forked child has neither the thread nor the streams
        self._sequences: Counter[str] = Counter()  # of collectives, and of each direction of each pair
        self._failure: BaseException | None = None
        self._guard = threading.Lock()  # of _failure and _unfinished
        self._unfinished = 0  # operations that were queued and are not done
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if mesh is not None and self.size > 1:
            self._executor = Executor(mesh, codec, generation)
            name = f"shoal-exchange-g{generation}-r{self.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
            # A thread inside torch while the interpreter goes away would end the process with an abort.
            atexit.register(self._leave)

    @property
    def bytes_sent(self) -> int:
        return 0 if self._mesh is None else self._mesh.bytes_sent

    @property
    def idle_seconds(self) -> float:
        """Time that operations spent waiting for a peer to get here."""
        return 0.0 if self._mesh is None else self._mesh.idle_seconds

    @property
    def stalled(self) -> float:
        """Seconds since the operation that is being run began; 0 between operations. From any thread."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def all_reduce(self, tensor: torch.Tensor, *, label: str, reduction: Reduction = Reduction.SUM) -> Pending:
        staging.check(tensor, label=label)
        operation = self._operation(Kind.ALL_REDUCE, label, tensor.dtype, tensor.numel(), reduction)

        def work() -> None:
            program = self._chooser.all_reduce(operation.elements * tensor.dtype.itemsize)
            staged = Staged(tensor)
            bounds = boundaries(operation.elements, program.segments)
            self._executor.run(operation, program, segments_of(staged.flat, bounds))
            staged.write_back()

        return self._start(label, work, alone=lambda: None)

    def reduce_scatter(
        self, output: torch.Tensor, tensors: list[torch.Tensor], *, label: str, reduction: Reduction = Reduction.SUM
    ) -> Pending:
        self._check_list(tensors, output, "reduce_scatter", label)
        elements = sum(tensor.numel() for tensor in tensors)
        operation = self._operation(Kind.REDUCE_SCATTER, label, output.dtype, elements, reduction)

        def work() -> None:
            # Partial sums pass through every rank's memory: copies keep the inputs as they are.
            flats = [staging.copy_of(tensor) for tensor in tensors]
            self._executor.run(operation, self._chooser.reduce_scatter(), [_whole(flat) for flat in flats])
            _fill(output, flats[self.rank])

        return self._start(label, work, alone=lambda: _fill(output, tensors[0]))

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, *, label: str) -> Pending:
        self._check_list(outputs, tensor, "all_gather", label)
        elements = sum(output.numel() for output in outputs)
        operation = self._operation(Kind.ALL_GATHER, label, tensor.dtype, elements)

        def work() -> None:
            _fill(outputs[self.rank], tensor)
            staged = [Staged(output) for output in outputs]
            self._executor.run(operation, self._chooser.all_gather(), [_whole(each.flat) for each in staged])
            for each in staged:
                each.write_back()

        return self._start(label, work, alone=lambda: _fill(outputs[0], tensor))

    def broadcast(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        staging.check(tensor, label=label)
        self._check_rank(source, label)
        operation = self._operation(Kind.BROADCAST, label, tensor.dtype, tensor.numel())

        def work() -> None:
            program = self._chooser.broadcast(operation.elements * tensor.dtype.itemsize, source)
            staged = Staged(tensor)
            bounds = boundaries(operation.elements, program.segments)
            self._executor.run(operation, program, segments_of(staged.flat, bounds))
            if self.rank != source:
                staged.write_back()

        return self._start(label, work, alone=lambda: None)

    def send(self, tensor: torch.Tensor, target: int, *, label: str) -> Pending:
        operation = self._point_to_point(tensor, target, label, sequence=f"to {target}")

        def work() -> None:
            self._executor.run(operation, self._chooser.send(target), [_whole(Staged(tensor).flat)])

        return self._start(label, work, alone=lambda: None)

    def receive(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        operation = self._point_to_point(tensor, source, label, sequence=f"from {source}")

        def work() -> None:
            staged = Staged(tensor)
            self._executor.run(operation, self._chooser.receive(source), [_whole(staged.flat)])
            staged.write_back()

        return self._start(label, work, alone=lambda: None)

    def abort(self, reason: str) -> None:
        if os.getpid() == self._process:
            self._fail(Aborted(reason))

    def leave(self, reason: str) -> None:
        """Release everything at once. Peers that still need this rank fail; those that do not are left alone."""
        with self._guard:
            is_idle = self._unfinished == 0
        if not is_idle:
            self.abort(reason)
        self.close()

    def close(self) -> None:
        """Let what was started finish, then release thread and transport. Safe to call twice."""
        if os.getpid() != self._process:
            return  # a forked child: thread and transport are the parent's
        if self._thread is not None:
            atexit.unregister(self._leave)
            self._jobs.put(None)
            self._thread.join()
        if self._mesh is not None:
            self._mesh.close()
        self._fail(Aborted("the group is closed"))
        while not self._jobs.empty():  # started by another thread while this one closed
            job = self._jobs.get()
            if job is not None:
                job.pending.finish(self._failure)

    def _leave(self) -> None:
        """The interpreter ends with the group still open."""
        self.abort("the process ends")
        self.close()

    def _operation(
        self, kind: Kind, label: str, dtype: torch.dtype, elements: int, reduction: Reduction | None = None
    ) -> Operation:
        code_of(dtype)
        function = None if reduction is None else combine(dtype, reduction)
        return Operation(kind, self._number("collective"), cut_label(label), dtype, elements, reduction, function)

    def _point_to_point(self, tensor: torch.Tensor, peer: int, label: str, *, sequence: str) -> Operation:
        staging.check(tensor, label=label)
        self._check_rank(peer, label)
        if peer == self.rank:
            raise UsageError(f"{label!r}: rank {self.rank} cannot exchange a tensor with itself")
        code_of(tensor.dtype)
        number = self._number(sequence)
        return Operation(Kind.POINT_TO_POINT, number, cut_label(label), tensor.dtype, tensor.numel())

    def _number(self, sequence: str) -> int:
        number = self._sequences[sequence]
        self._sequences[sequence] += 1
        return number

    def _check_rank(self, rank: int, label: str) -> None:
        if not 0 <= rank < self.size:
            raise UsageError(f"{label!r}: there is no rank {rank} in a group of {self.size}")

    def _check_list(self, tensors: list[torch.Tensor], own: torch.Tensor, what: str, label: str) -> None:
        for tensor in (own, *tensors):
            staging.check(tensor, label=label)
        if len(tensors) != self.size:
            raise UsageError(f"{label!r}: {what} needs one tensor per rank, {self.size}, not {len(tensors)}")
        if any(tensor.dtype != own.dtype for tensor in tensors):
            raise UsageError(f"{label!r}: {what} needs one dtype, not {own.dtype} and others")
        if tensors[self.rank].shape != own.shape:
            shapes = f"{tuple(tensors[self.rank].shape)} and {tuple(own.shape)}"
            raise UsageError(f"{label!r}: {what} needs equal shapes for rank {self.rank}, not {shapes}")

    def _start(self, label: str, work: Callable[[], None], *, alone: Callable[[], None]) -> Pending:
        """Queue the work; a group of one does `alone` at once instead."""
        pending = Pending(label)
        with self._guard:
            if self._failure is not None:
                pending.finish(self._failure)
            elif self._thread is not None:
                self._unfinished += 1
                self._jobs.put(_Job(pending, work))
            else:
                alone()
                pending.finish()
        return pending

    def _serve(self) -> None:
        # Reducing infinities is the user's business, not a warning in the middle of an exchange.
        with torch.inference_mode(), np.errstate(all="ignore"):
            while (job := self._jobs.get()) is not None:
                error = self._run(job)
                with self._guard:
                    self._unfinished -= 1
                job.pending.finish(error)
                del job  # tensors are not kept alive while waiting for the next

    def _run(self, job: _Job) -> BaseException | None:
        """What made it fail, or None."""
        if self._failure is None:
            self.current_label, self._began = job.pending.label, time.monotonic()
            try:
                job.work()
                return None
            except Exception as error:
                self._fail(error)
            finally:
                self.current_label, self._began = "", None
        return self._failure

    def _fail(self, error: BaseException) -> None:
        """The first failure stays. Peers notice through the mesh."""
        with self._guard:
            if self._failure is not None:
                return
            self._failure = error
        if self._mesh is not None:
            self._mesh.abort(str(error))


def _whole(flat: torch.Tensor) -> Segment:
    return segments_of(flat, [(0, len(flat))])[0]


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values; shapes may differ as long as the elements do not."""
    staged = Staged(target)
    staged.flat.copy_(source.data.reshape(-1))
    staged.write_back()
