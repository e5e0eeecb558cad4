"""Tensors between any two ranks of a group, independent of its collectives and of each other.

    mailbox.send(tensor, target, tag)      -> Delivery
    mailbox.receive(tensor, source, tag)   -> Delivery   source None: from any rank; `.source` then tells from whom

Messages of one source and tag are received in the order in which they were sent, whatever else is under way. Both calls
return at once with a `Delivery`, a `Pending` that also knows its `source`; the tensor belongs to it until it is done. A
short send is done at once. A receive of another size or dtype than was sent fails with `WorkersDisagree` on the
receiver, and on a sender that is not done yet; the mailbox goes on. A peer that dies or gives up fails everything with
`PeerLost`; one that finished and left fails those who need it.

Whoever waits makes progress in the own thread; a background thread, started when the first operation cannot be done at
once, does so while nobody waits. Calls may come from any thread. Not here: what is done with letters (`mailbox_post`).
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
import weakref
from collections.abc import Collection, Mapping

import torch

from shoal.collectives.mailbox_delivery import Delivery
from shoal.collectives.mailbox_lane import Lane
from shoal.collectives.mailbox_letters import LARGEST_TAG, SMALLEST_TAG
from shoal.collectives.mailbox_post import Post, Pull
from shoal.errors import Aborted, ExchangeFailed, UsageError

SLICE = 0.05  # seconds that somebody sleeps at most while something is under way
IDLE_SLICE = 0.5  # the same for the background thread while nothing is
LOOK_SECONDS = 0.5  # between two looks for peers that are stopped or out of reach
# A waiting thread looks for itself so long before it sleeps, where there are cores for all: two short messages, there
# and back, take about 40 us. Waking up costs twice that.
SPIN_SECONDS = 50e-6
PIECE_BYTES = 1024 * 1024  # copied between two looks whether to go on
# A copy of this size is shared with the background thread, where there are cores for all: the sender's has nothing to do.
# 16 MB by one thread 3.0 ms, by two 1.4.
SHARED_BYTES = 2 * 1024 * 1024
HERE_BYTES = (
    4 * 1024 * 1024
)  # a longer message is not copied by the call that receives it, but while somebody waits for it


class Mailbox:
    def __init__(self, rank: int, size: int, lanes: Collection[Lane], names: Mapping[int, str] | None = None) -> None:
        """The lanes, one for every other rank, belong to the mailbox from now on. `names` by rank are for errors."""
        self.rank, self.size = rank, size
        self._lanes = tuple(lanes)
        by_rank = {peer: lane for lane in lanes for peer in lane.peers}
        assert by_rank.keys() == set(range(size)) - {rank}, f"rank {rank} of {size} has lanes to {sorted(by_rank)}"
        self._lane_of = by_rank
        self._guard = threading.Lock()  # of everything below and of the lanes; never held while sleeping or copying
        self._changed = threading.Condition(self._guard)  # for those who wait while another thread leads
        self._post = Post(rank, size, by_rank, names or {})
        self._leader: int | None = None  # the thread that waits for the lanes on behalf of all who wait
        self._followers = 0  # threads that wait for the leader
        self._copying = 0  # pulls under way
        self._looked = time.monotonic()
        local = 1 + sum(len(lane.peers) for lane in lanes if lane.is_local)
        self._rings = local > 1  # neighbours wake this rank if it says that it sleeps; the kernel needs no telling
        self._spins = local <= len(os.sched_getaffinity(0))
        self._epoll = select.epoll()  # what a leader sleeps on
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the leader
        self._epoll.register(self._nudge, select.EPOLLIN)
        for lane in self._lanes:
            self._epoll.register(lane.descriptor, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._background = select.epoll()  # what the background thread sleeps on: the above, while nobody leads
        self._is_attached = False  # whether it does
        self._call = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the background thread in any case
        self._background.register(self._call, select.EPOLLIN)
        self._is_closed = False
        _open.add(self)

    def send(self, tensor: torch.Tensor, target: int, tag: int = 0) -> Delivery:
        self._check(target, tag, "send to")
        delivery = Delivery(self, tensor, target, tag, is_send=True)
        with self._guard:
            self._post.send(delivery)
            if not delivery.is_done:
                self._collect(is_woken=False)  # perhaps what it waits for has come
                self._attach()
            finished = self._take_finished()
        self._settle(finished)
        return delivery

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int = 0) -> Delivery:
        self._check(source, tag, "receive from")
        delivery = Delivery(self, tensor, source, tag, is_send=False)
        with self._guard:
            self._post.receive(delivery)
            if not delivery.is_done:
                self._collect(is_woken=False)
                self._post.check(delivery)
                self._attach()
            finished = self._take_finished()
            if self._post.pulls and delivery.size > HERE_BYTES:
                os.eventfd_write(self._nudge, 1)
        self._settle(finished, copies=delivery.size <= HERE_BYTES)
        return delivery

    def abort(self, reason: str, blamed: int | None = None) -> None:
        """From any thread: what is under way and what comes later fails with `Aborted`; peers are told whom this rank
        blames."""
        with self._guard:
            self._post.fail(Aborted(reason), blamed=blamed)
            finished = self._take_finished()
        self._settle(finished)

    def close(self) -> None:
        """Release everything. What is under way fails; wait for it before. Safe to call twice."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._post.close(Aborted("the mailbox is closed"))
            finished = self._take_finished()
            os.eventfd_write(self._call, 1)
        self._settle(finished)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            while self._leader is not None or self._copying:
                self._changed.wait(SLICE)
        self._release()

    def close_in_child(self) -> None:
        """After a fork: memory and connections are the parent's. Nothing is said, and no descriptor stays open."""
        self._guard = threading.Lock()  # the parent's other threads may have held it
        self._changed = threading.Condition(self._guard)
        self._post.failure = Aborted("a forked child takes no part in its parent's exchanges")
        for delivery in self._post.open:
            delivery.finish(self._post.failure)
        if not self._is_closed:
            self._is_closed = True
            self._release()

    # For deliveries

    def wait_for(self, delivery: Delivery, seconds: float | None) -> bool:
        """Make progress until it is done. False: the time was over first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not delivery.is_done:
            left = SLICE if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            if self._take_lead(min(left, SLICE)):
                try:
                    self._lead(delivery, deadline)
                finally:
                    self._hand_over()
        return True

    # Waiting

    def _take_lead(self, seconds: float) -> bool:
        """False: another thread leads, and something happened or so many seconds went by."""
        with self._changed:
            if self._is_closed:
                return False  # and all is done
            if self._leader is not None:
                self._followers += 1
                self._changed.wait(seconds)
                self._followers -= 1
                return False
            self._leader = threading.get_ident()
            self._sleep(False)
            self._detach()
            return True

    def _hand_over(self) -> None:
        with self._changed:
            self._leader = None
            self._attach()
            self._changed.notify_all()
            finished = self._take_finished()
        self._settle(finished)

    def _lead(self, delivery: Delivery, deadline: float | None) -> None:
        """Wait for the lanes until it is done or the time is over."""
        is_woken = False
        while True:
            self._progress(is_woken=is_woken)
            if delivery.is_done or (deadline is not None and time.monotonic() >= deadline):
                return
            is_woken = not (self._spins and self._spin(delivery)) and self._doze(delivery, deadline)

    def _doze(self, delivery: Delivery, deadline: float | None) -> bool:
        """Sleep until something comes, but no longer than a slice. True when woken."""
        if self._rings:
            with self._guard:
                self._sleep(True)
            self._progress(is_woken=False)  # what came before peers could see that we sleep
        left = SLICE if deadline is None else min(SLICE, max(0.0, deadline - time.monotonic()))
        ready = [] if delivery.is_done else self._epoll.poll(left)
        with self._guard:
            self._sleep(False)
            if any(descriptor == self._nudge for descriptor, _ in ready):
                _clear(self._nudge)
        return bool(ready)

    def _spin(self, delivery: Delivery) -> bool:
        """True when there is something to collect."""
        if any(lane.is_streaming for lane in self._lanes):
            return False
        limit = time.perf_counter() + SPIN_SECONDS
        while not delivery.is_done and time.perf_counter() < limit:
            for lane in self._lanes:
                if lane.has_mail():
                    return True
        return False

    def _serve(self) -> None:
        """The background thread: progress while nobody leads."""
        while True:
            with self._guard:
                if self._is_closed:
                    return
                is_needed = self._leader is None and bool(self._post.open) and self._post.failure is None
                if is_needed:
                    self._sleep(True)
                elif self._leader is None:
                    self._sleep(False)
                    self._detach()
            if is_needed:
                self._progress(is_woken=False)
            self._background.poll(SLICE if is_needed else IDLE_SLICE)
            with self._guard:
                if self._is_closed:
                    return
                _clear(self._call)
                is_needed = self._leader is None
                if is_needed:
                    self._sleep(False)
                    _clear(self._nudge)
            if is_needed:
                self._progress(is_woken=True)
            else:
                self._settle([])  # the leader wants help

    # With the guard held

    def _sleep(self, is_asleep: bool) -> None:
        for lane in self._lanes:
            lane.sleep(is_asleep)

    def _attach(self) -> None:
        """Something is under way and nobody leads: the background thread sees to it, and peers are to ring."""
        if self._is_attached or self._leader is not None or not self._post.open or self._is_closed:
            return
        self._is_attached = True
        self._background.register(self._epoll.fileno(), select.EPOLLIN)
        self._sleep(True)
        if self._thread is None:
            name = f"shoal-mailbox-r{self.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
        self._collect(is_woken=False)  # what came before peers could see that we sleep

    def _detach(self) -> None:
        if self._is_attached:
            self._is_attached = False
            self._background.unregister(self._epoll.fileno())

    def _collect(self, *, is_woken: bool) -> None:
        if self._post.failure is not None:
            return
        try:
            for lane in self._lanes:
                lane.collect(self._post, is_woken=is_woken)
            now = time.monotonic()
            if self._post.open and now - self._looked >= LOOK_SECONDS:
                self._looked = now
                for lane in self._lanes:
                    lane.look(self._post, now)
        except Exception as error:  # whatever it is, nobody may wait for it forever
            self._post.fail(error)

    def _take_finished(self) -> list[Delivery]:
        finished, self._post.finished = self._post.finished, []
        return finished

    # Without the guard

    def _progress(self, *, is_woken: bool) -> None:
        with self._guard:
            self._collect(is_woken=is_woken)
            finished = self._take_finished()
        self._settle(finished)

    def _settle(self, finished: list[Delivery], *, copies: bool = True) -> None:
        """Make the copies that are due, and tell those who wait for what was finished."""
        while copies and self._post.pulls:
            finished += self._copy_next()
        if not finished:
            return
        for delivery in finished:
            delivery.tell()
        if self._followers or self._leader not in (None, threading.get_ident()):
            with self._changed:
                if not self._is_closed:
                    os.eventfd_write(self._nudge, 1)
                self._changed.notify_all()

    def _copy_next(self) -> list[Delivery]:
        """Take part in the next copy that is due; what was finished with it."""
        with self._guard:
            if not self._post.pulls:
                return []
            pull = self._post.pulls[0]
            pull.workers += 1
            self._copying += 1
            if pull.delivery.size >= SHARED_BYTES and self._leader == threading.get_ident() and self._spins:
                os.eventfd_write(self._call, 1)
        self._copy(pull)
        with self._changed:
            pull.workers -= 1
            self._copying -= 1
            if not pull.workers:
                self._end_copy(pull)
            return self._take_finished()

    def _copy(self, pull: Pull) -> None:
        lane = self._lane_of[pull.source]
        while (piece := self._next_piece(pull)) is not None:
            start, size = piece
            try:
                lane.pull(pull.source, pull.letter.address + start, pull.delivery.address + start, size)
            except ExchangeFailed as error:
                pull.error = error

    def _next_piece(self, pull: Pull) -> tuple[int, int] | None:
        with self._guard:
            piece = None if self._post.failure is not None else pull.next_piece(PIECE_BYTES)
            if piece is None and pull in self._post.pulls:
                self._post.pulls.remove(pull)  # nobody else need join
            return piece

    def _end_copy(self, pull: Pull) -> None:
        """With the guard held."""
        if pull.error is not None:
            pull.delivery.is_moving = False
            self._collect(is_woken=True)  # whoever is gone is better named by how it went
        self._post.pulled(pull)
        if self._is_closed:
            self._changed.notify_all()

    # Beginning and end

    def _check(self, peer: int | None, tag: int, what: str) -> None:
        if peer is not None and (peer == self.rank or not 0 <= peer < self.size):
            raise UsageError(f"rank {self.rank} of {self.size} cannot {what} rank {peer}")
        if not SMALLEST_TAG <= tag <= LARGEST_TAG:
            raise UsageError(f"{what} rank {peer}: the tag {tag} has more than 64 bits")

    def _release(self) -> None:
        _open.discard(self)
        self._epoll.close()
        self._background.close()
        os.close(self._nudge)
        os.close(self._call)
        for lane in self._lanes:
            lane.close()


def _clear(event: int) -> None:
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return  # it was not set


_open: weakref.WeakSet[Mailbox] = weakref.WeakSet()


def _close_in_child() -> None:
    for mailbox in tuple(_open):
        mailbox.close_in_child()


def _close_at_exit() -> None:
    """A thread inside torch while the interpreter goes away would end the process with an abort."""
    for mailbox in tuple(_open):
        mailbox.close()


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_close_at_exit)
