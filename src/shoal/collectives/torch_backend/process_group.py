"""The process group that torch gets for the backend `shoal`: how it is made, what torch asks of it, and its end.

One object per group and process. It owns a Shoal group with its thread and memory, a mailbox, and a deadline. Not here:
the collectives (`collectives`).
"""

from __future__ import annotations

import atexit
import os
import weakref
from datetime import timedelta
from typing import NoReturn, cast

import torch
from torch._C._distributed_c10d import ProcessGroup, Store

from shoal.collectives import texts
from shoal.collectives.group import Group
from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.torch_backend import monitored_barrier
from shoal.collectives.torch_backend.calls import in_torch_errors
from shoal.collectives.torch_backend.collectives import Collectives
from shoal.collectives.torch_backend.deadlines import Deadline, deadlines
from shoal.collectives.torch_backend.group_making import form, host_towards
from shoal.collectives.torch_backend.layout import nothing_much
from shoal.collectives.torch_backend.monitored_barrier import MonitoredBarrier
from shoal.collectives.torch_backend.rendezvous import Meeting, prefixed
from shoal.collectives.torch_backend.vigil import LIMIT
from shoal.collectives.torch_backend.work import DeliveryWork, JoinedWork, ShoalWork, TimeLimit
from shoal.errors import Aborted, UsageError

NAME = "shoal"
DEVICES = ("cpu", "cuda")


class TorchPointToPoint:
    """Sends and receives on a Shoal mailbox: matched by source and tag, in order, independent of collectives."""

    _mailbox: Mailbox | None  # None in a group of one
    _clock: TimeLimit
    _coalesced: list[ShoalWork] | None = None  # what was started since `_start_coalescing`

    @in_torch_errors
    def send(self, tensors: list[torch.Tensor], target: int, tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().send(tensor, target, tag), tensors)

    @in_torch_errors
    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().receive(tensor, source, tag), tensors)

    @in_torch_errors
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().receive(tensor, None, tag), tensors)

    def _posted(self, delivery: Delivery, tensors: list[torch.Tensor]) -> DeliveryWork:
        work = DeliveryWork(delivery, tensors, self._clock)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _post(self) -> Mailbox:
        if self._mailbox is None:
            raise UsageError(texts.ONE_RANK)
        return self._mailbox


class ShoalProcessGroup(Collectives, TorchPointToPoint, ProcessGroup):  # type: ignore[misc]  # ours take every form of a call
    # torch asks a backend for these capabilities.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    @in_torch_errors
    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]  # the stub lacks the form for subclasses
        for device in DEVICES:
            self._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, None)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self._name = self._description = ""
        self._place, self._count = rank, size
        self._store = prefixed(store)
        self._monitored = MonitoredBarrier(self._store, rank, size)
        self._is_open = False
        limit = timeout.total_seconds()
        meeting = Meeting(self._store, rank, size, limit)
        formed = form(meeting, host_towards(store), limit)
        self._threaded, self._mailbox, self._vigil = formed.group, formed.mailbox, formed.vigil
        self._group: Group = self._threaded
        self._here = self._threaded.here
        self._deadline = self._clock = Deadline(self._threaded, limit, self._run_out, self._lose, self._vigil)
        self._names = [attendant.words for attendant in meeting.attendants]
        self._open(meeting)

    def _open(self, meeting: Meeting) -> None:
        self._is_open = True
        _open_groups.add(self)
        deadlines.add(self._deadline)
        try:
            self._here.all_reduce(nothing_much(), label="torch group forms")
        except BaseException:
            self._release()
            raise
        meeting.close()
        monitored_barrier.offer(ShoalProcessGroup)

    # What torch asks.

    def get_group_store(self) -> Store:
        return self._store

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return NAME

    # torch keeps name and description in its own backends, which this group does not have.

    def getGroupName(self) -> str:  # noqa: N802  torch's name
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802  torch's name
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802  torch's name
        return self._description

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802  torch's name
        self._description = desc

    def _get_backend(self, _device: torch.device) -> ShoalProcessGroup:  # type: ignore[override]  # it has no other
        return self

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: our operations are numbered from the start, alike on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return self._threaded.collectives_started

    # Time.

    def set_timeout(self, timeout: timedelta) -> None:
        self._deadline.limit = timeout.total_seconds()
        deadlines.look()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    @in_torch_errors
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        limit = self._deadline.limit if timeout is None else timeout.total_seconds()
        self._monitored.wait(limit, for_all=wait_all_ranks)

    def _run_out(self, what: str, limit: float) -> None:
        missing = self._threaded.missing()
        whom = "".join(f" for rank {rank} ({self._names[rank]})" for rank in missing[:1])
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        self._end(
            texts.timed_out(self._place, self._count, f"{whom}{more}", what or self._doing, limit),
            missing[0] if missing else None,
        )

    def _lose(self, rank: int, seconds: float) -> None:
        self._end(texts.stopped_answering(rank, self._names[rank], LIMIT, seconds, self._doing), rank)

    @property
    def _doing(self) -> str:
        operation = self._threaded.current
        return "a send or receive" if operation is None else operation.words

    def _end(self, reason: str, blamed: int | None) -> None:
        self._threaded.lose(blamed, reason)
        if self._mailbox is not None:
            self._mailbox.abort(reason, blamed)

    # Several calls as one.

    def _start_coalescing(self, _device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device) -> ShoalWork:
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(works)

    # The end.

    def shutdown(self) -> None:
        """Let started operations finish, then release everything."""
        if self._is_open:
            self._is_open = False
            self._threaded.close()
            self._release()

    def abort(self) -> None:
        """Everything fails now, here and on the other ranks."""
        if self._is_open:
            reason = "the program aborted the process group"
            self._threaded.abort(reason)
            if self._mailbox is not None:
                self._mailbox.abort(reason)
            self.shutdown()

    def leave(self) -> None:
        """The interpreter ends: wait for nothing, and do not disturb ranks that do not need this one."""
        if self._is_open:
            self._is_open = False
            self._threaded.leave("the process ends")
            self._release()

    def _release(self) -> None:
        deadlines.remove(self._deadline)
        self._threaded.close()
        if self._mailbox is not None:
            self._mailbox.close()
        if self._vigil is not None:
            self._vigil.close()
        _open_groups.discard(self)


_open_groups: weakref.WeakSet[ShoalProcessGroup] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    for group in tuple(_open_groups):
        group.leave()


class _Absent:
    """Stands for a group in a forked child, and refuses every call."""

    def __getattr__(self, name: str) -> NoReturn:
        raise Aborted(f"{name}: a forked child takes no part in its parent's exchanges; let it make a group of its own")


def _forget_all() -> None:
    """In a forked child: threads, memory and connections belong to the parent."""
    deadlines.forget()
    for group in tuple(_open_groups):
        group._is_open = False
        group._group = group._here = cast(Group, _Absent())


os.register_at_fork(after_in_child=_forget_all)
