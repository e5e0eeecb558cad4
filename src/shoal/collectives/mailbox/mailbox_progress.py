"""The threads that move a mailbox's messages: a waiting thread, or the background thread while none waits.

One of the waiting threads leads: it sleeps on the lanes and does all work that is due; the others follow. The
background thread starts with the first operation that cannot be done at once. It sleeps on the lanes only while nobody
leads, so that a message does not wake two threads that then compete for Python's lock; a leader calls it to share a
long copy. Callbacks run in whichever thread finishes an operation, and may wait and close, so the last thread that may
use descriptors and lanes releases them. Not here: what is due (`post`), what lanes do.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence

from shoal.collectives.mailbox.delivery import Delivery, OfferCopy
from shoal.collectives.mailbox.lane import Lane
from shoal.collectives.mailbox.pieces import SHORTEST as PASSED_FROM
from shoal.collectives.mailbox.pieces import SharedSlots
from shoal.collectives.mailbox.post import Post
from shoal.errors import Aborted, ExchangeFailed

SLICE = 0.05  # seconds; longest sleep while an operation is under way
IDLE_SLICE = 0.5  # seconds; longest sleep of the background thread otherwise
LOOK_SECONDS = 0.05  # between two checks for peers that have died, are stopped or are out of reach
# How long a waiting thread polls before it sleeps, if every rank has a core. Two short messages, there and back, take
# about 40 us; waking up costs twice that.
SPIN_SECONDS = 50e-6
# A message is copied in about eight pieces of these sizes; between two pieces an abort is noticed.
SHORTEST_PIECE, LONGEST_PIECE = 256 * 1024, 1024 * 1024
# A copy of this size or more is shared with the background thread, if every rank has a core (the sender only waits).
# 16 MB take one thread 3.0 ms and two threads 1.4 ms.
SHARED_BYTES = 1024 * 1024


class MailboxProgress:
    def __init__(self, post: Post, lanes: Sequence[Lane]) -> None:
        self.guard = threading.Lock()  # guards post, lanes and this object; never held while sleeping or copying
        self._changed = threading.Condition(self.guard)  # for threads that wait while another one leads
        self._post = post
        self._lanes = lanes
        self._leader: int | None = None  # the thread that waits for the lanes on behalf of all waiting threads
        self._giving: SharedSlots | None = None  # the passage of a send that the leader waits for
        self._followers = 0  # threads that wait for the leader
        self._copying = 0  # threads that copy
        self._is_serving = False  # whether the background thread runs
        self._looked = time.monotonic()
        local = 1 + sum(len(lane.peers) for lane in lanes if lane.is_local)
        self._is_polled = any(not lane.is_local for lane in lanes)  # only the epoll shows what has arrived
        self._rings = local > 1  # neighbours wake this rank only if it says that it sleeps; the kernel always does
        self._has_cores = local <= len(os.sched_getaffinity(0))  # for every rank of this machine
        self._epoll = select.epoll()  # what a leader sleeps on
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the leader
        self._epoll.register(self._nudge, select.EPOLLIN)
        for lane in lanes:
            lane.watch(self._epoll)
        self._thread: threading.Thread | None = None
        self._background = select.epoll()  # what the background thread sleeps on; includes `_epoll` while nobody leads
        self._is_attached = False  # whether it includes `_epoll`
        self._call = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # wakes the background thread in any case
        self._background.register(self._call, select.EPOLLIN)
        self._is_closed = False
        self._is_released = False

    def wait_for(self, delivery: Delivery, seconds: float | None) -> bool:
        """Make progress until the delivery is done. False: the time ran out first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if self._leader == threading.get_ident():  # in a callback
            self._lead(delivery, deadline)
            return delivery.is_done
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

    def close(self, reason: Exception) -> None:
        """Fail all operations with this error, and return once no other thread works on them. Safe to call twice."""
        with self.guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._post.close(reason)
            finished = self.take_finished()
            for event in (self._nudge, self._call):
                os.eventfd_write(event, 1)
        self.settle(finished)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            while self._leader not in (None, threading.get_ident()) or self._copying:
                self._changed.wait(SLICE)
            self._release()  # if a callback called this, its thread releases everything later, when it leaves

    def close_in_child(self, reason: Exception) -> None:
        """After a fork."""
        self.guard = threading.Lock()  # the parent's other threads may have held it
        self._changed = threading.Condition(self.guard)
        self._post.failure = reason
        self._giving = None
        for delivery in self._post.open:
            delivery.finish(reason)
        self._leader, self._copying, self._is_serving, self._is_closed = None, 0, False, True
        self._release()

    # With the guard held

    def collect(self, *, is_woken: bool) -> None:
        """Do what can be done now. `is_woken`: the epoll woke a sleeping thread."""
        if self._post.failure is not None:
            return
        ready = self._epoll.poll(0) if is_woken or self._is_polled else ()
        if any(descriptor == self._nudge for descriptor, _ in ready):
            _clear(self._nudge)
        try:
            now = time.monotonic()
            if self._post.open and now - self._looked >= LOOK_SECONDS:
                self._looked = now
                for lane in self._lanes:
                    lane.look(self._post, now)
            for lane in self._lanes:
                lane.collect(self._post, ready)
        except Exception as error:  # any error fails all operations, so that nobody waits for ever
            self._post.fail(error)

    def attach(self) -> None:
        """If work is under way and nobody leads, leave it to the background thread, and let peers wake this rank."""
        if self._is_attached or self._leader is not None or not self._post.open or self._is_closed:
            return
        self._is_attached = True
        self._background.register(self._epoll.fileno(), select.EPOLLIN)
        self._sleep(True)
        if self._thread is None:
            name = f"shoal-mailbox-r{self._post.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._is_serving = True
            self._thread.start()
        self.collect(is_woken=False)  # letters that came before peers could see that this rank sleeps

    def nudge(self) -> None:
        """Wake the thread that sleeps on the lanes."""
        if not self._is_closed:
            os.eventfd_write(self._nudge, 1)

    def take_finished(self) -> list[Delivery]:
        """For `settle`, once the guard is released."""
        finished, self._post.finished = self._post.finished, []
        return finished

    def _detach(self) -> None:
        if self._is_attached:
            self._is_attached = False
            self._background.unregister(self._epoll.fileno())

    def _sleep(self, is_asleep: bool) -> None:
        for lane in self._lanes:
            lane.sleep(is_asleep)

    def _release(self) -> None:
        """Free the memory once no thread is inside. Called by each thread that leaves, and by `close`."""
        if not self._is_closed or self._is_released or self._leader is not None or self._copying or self._is_serving:
            return
        self._is_released = True
        self._epoll.close()
        self._background.close()
        os.close(self._nudge)
        os.close(self._call)
        for lane in self._lanes:
            lane.close()

    # Without the guard

    def settle(self, finished: list[Delivery], *, copies: bool = True) -> None:
        """Make the copies that are due, and run the callbacks of finished operations."""
        while copies and self._post.pulls:
            finished += self._copy_next()
        if not finished:
            return
        for delivery in finished:
            delivery.tell()
        if self._followers or self._leader not in (None, threading.get_ident()):
            with self._changed:
                self.nudge()
                self._changed.notify_all()

    def _progress(self, *, is_woken: bool) -> None:
        with self.guard:
            self.collect(is_woken=is_woken)
            finished = self.take_finished()
        self.settle(finished)

    def _take_lead(self, seconds: float) -> bool:
        """False: another thread leads, and something happened or `seconds` went by."""
        with self._changed:
            if self._is_closed:
                return False  # every delivery is done
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
            if self._giving is not None:
                self._giving.attend(False)
                self._giving = None
            self.attach()
            self._changed.notify_all()
            finished = self.take_finished()
            self._release()
        self.settle(finished)

    def _lead(self, delivery: Delivery, deadline: float | None) -> None:
        """Wait for the lanes until the delivery is done or the time is over."""
        is_woken = False
        while True:
            self._progress(is_woken=is_woken)
            if delivery.is_done or (deadline is not None and time.monotonic() >= deadline):
                return
            is_woken = False
            if not self._give(delivery) and not (self._has_cores and self._spin(delivery)):
                is_woken = self._doze(delivery, deadline)

    def _spin(self, delivery: Delivery) -> bool:
        """True when there is something to collect."""
        if delivery.is_moving or any(lane.is_streaming for lane in self._lanes):
            return False  # long messages take longer than spinning, and a copying thread needs Python's lock
        limit = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < limit:
            if self._is_polled and self._epoll.poll(0, 1):
                return True
            for lane in self._lanes:
                if lane.has_mail():
                    return True
        return False

    def _doze(self, delivery: Delivery, deadline: float | None) -> bool:
        """Sleep until something comes, but at most `SLICE` seconds. True when woken."""
        if self._rings:
            with self.guard:
                self._sleep(True)
            self._progress(is_woken=False)  # letters that came before peers could see that this rank sleeps
        left = SLICE if deadline is None else min(SLICE, max(0.0, deadline - time.monotonic()))
        is_woken = not delivery.is_done and not self._give(delivery) and bool(self._epoll.poll(left, 1))
        with self.guard:
            self._sleep(False)
        return is_woken

    def _serve(self) -> None:
        """The background thread."""
        try:
            self._see_to_it()
        finally:
            with self.guard:
                self._is_serving = False
                self._release()

    def _see_to_it(self) -> None:
        while True:
            with self.guard:
                is_needed = self._leader is None and bool(self._post.open) and self._post.failure is None
                if self._is_closed:
                    return
                if is_needed:
                    self._sleep(True)
                elif self._leader is None:
                    self._sleep(False)
                    self._detach()
            if is_needed:
                self._progress(is_woken=False)
            self._background.poll(SLICE if is_needed else IDLE_SLICE)
            with self.guard:
                if self._is_closed:
                    return
                _clear(self._call)
                is_needed = self._leader is None
                if is_needed:
                    self._sleep(False)
            if is_needed:
                self._progress(is_woken=True)
            else:
                self.settle(self._copy_next(), copies=False)  # the leader wants help with a copy

    # Copies between neighbours

    def _give(self, delivery: Delivery) -> bool:
        """Copy part of a long send to the passage from which its receiver takes it. False: there was nothing to do."""
        if not delivery.is_send or delivery.size < PASSED_FROM or delivery.peer is None:
            return False
        passage = self._post.lane_of(delivery.peer).passage_of(delivery.peer)
        if passage is None:
            return False
        with self.guard:
            if delivery.is_done or not passage.offers(delivery):
                return False
            delivery.is_moving = True
            self._giving = passage
        try:
            return passage.give(delivery)
        finally:
            with self.guard:
                self._post.given(delivery)

    def _copy_next(self) -> list[Delivery]:
        """Take part in the next copy that is due. Returns the operations that it finished."""
        with self.guard:
            if not self._post.pulls:
                return []
            pull = self._post.pulls[0]
            pull.workers += 1
            self._copying += 1
            passage = self._post.lane_of(pull.source).passage_of(pull.source)
            is_taker = passage is not None and passage.accepts(pull)
            if is_taker:
                pull.passage = passage
                self._post.pulls.popleft()  # no other thread need join
            is_leader = self._leader == threading.get_ident()
            if is_leader and self._giving is not None:
                self._giving.attend(False)
            if is_leader and not is_taker and self._has_cores and pull.delivery.size >= SHARED_BYTES:
                os.eventfd_write(self._call, 1)
        most = max(SHORTEST_PIECE, min(LONGEST_PIECE, pull.delivery.size // 8))
        # A leader with a helper copies the last piece itself, which is faster than being woken.
        last = most if pull.workers > 1 and not is_leader else 0
        try:
            while True:
                if is_taker:
                    self._take(pull)
                piece = self._next_piece(pull, most, last)
                if piece is None:
                    break
                self._copy(pull, *piece)
        except BaseException:  # Ctrl-C: it is unknown how far the copy got
            pull.error = Aborted("the copy of a message was interrupted")
            raise
        finally:
            self._leave_copy(pull)
        with self.guard:
            return self.take_finished()

    def _next_piece(self, pull: OfferCopy, most: int, last: int) -> tuple[int, int] | None:
        with self.guard:
            piece = None if self._post.failure is not None else pull.next_piece(most, last)
            if pull.passage is not None:
                pull.passage.claim(pull)
            if piece is None and not last and pull in self._post.pulls:
                self._post.pulls.remove(pull)  # no other thread need join
            return piece

    def _take(self, pull: OfferCopy) -> None:
        assert pull.passage is not None
        try:
            pull.front = pull.passage.take(pull)
        except ExchangeFailed as error:
            pull.error = error

    def _copy(self, pull: OfferCopy, start: int, size: int) -> None:
        lane = self._post.lane_of(pull.source)
        try:
            lane.pull(pull.source, pull.letter.address + start, pull.delivery.address + start, size)
        except ExchangeFailed as error:
            pull.error = error

    def _leave_copy(self, pull: OfferCopy) -> None:
        with self._changed:
            pull.workers -= 1
            self._copying -= 1
            if pull.workers:
                return
            if pull.passage is not None:
                pull.passage.release(pull)
            if pull.error is not None:
                pull.delivery.is_moving = False
                self.collect(is_woken=True)  # finds out how the lost peer has left
            self._post.pulled(pull)
            self._changed.notify_all()


def _clear(event: int) -> None:
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return  # it was not set
