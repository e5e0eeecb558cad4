"""Tensors between any two ranks of a group, independent of its collectives and of each other.

    mailbox.send(tensor, target, tag)      -> Delivery
    mailbox.receive(tensor, source, tag)   -> Delivery   source None: from any rank; `.source` then tells from whom

Messages of one source and tag are received in the order in which they were sent, whatever else is under way. Both calls
return at once with a `Delivery`, a `Pending` that also knows its `source`; the tensor belongs to it until it is done. A
short send is done at once. If size or dtype of a send and its receive differ, the receive fails with `WorkersDisagree`,
and so does the send if it is not done yet; the mailbox goes on. A peer that dies or gives up fails all operations with
`PeerLost`; a peer that finished and left fails only the operations that need it.

Calls may come from any thread. Not here: what is done with letters (`post`), which thread waits (`mailbox_progress`).
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Collection, Mapping

import torch

from shoal.collectives import texts
from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.lane import Lane
from shoal.collectives.mailbox.letters import LARGEST_TAG, SMALLEST_TAG
from shoal.collectives.mailbox.mailbox_progress import SHARED_BYTES, MailboxProgress
from shoal.collectives.mailbox.post import Post
from shoal.errors import Aborted, UsageError


class Mailbox:
    def __init__(self, rank: int, size: int, lanes: Collection[Lane], names: Mapping[int, str] | None = None) -> None:
        """The lanes, which lead to all other ranks, belong to the mailbox from now on. `names`: by rank, for errors."""
        self.rank, self.size = rank, size
        by_rank = {peer: lane for lane in lanes for peer in lane.peers}
        assert by_rank.keys() == set(range(size)) - {rank}, f"rank {rank} of {size} has lanes to {sorted(by_rank)}"
        self._post = Post(rank, size, by_rank, names or {})
        self._progress = MailboxProgress(self._post, tuple(lanes))
        _open.add(self)

    def send(self, tensor: torch.Tensor, target: int, tag: int = 0) -> Delivery:
        self._check(target, tag, "send to")
        delivery, progress = Delivery(self._progress, tensor, target, tag, is_send=True), self._progress
        with progress.guard:
            self._post.send(delivery)
            if not delivery.is_done:
                progress.collect(is_woken=False)  # perhaps its receiver's answer has come
                progress.attach()
            finished = progress.take_finished()
        progress.settle(finished)
        return delivery

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int = 0) -> Delivery:
        self._check(source, tag, "receive from")
        delivery, progress = Delivery(self._progress, tensor, source, tag, is_send=False), self._progress
        is_short = delivery.size < SHARED_BYTES
        with progress.guard:
            self._post.receive(delivery)
            if not delivery.is_done:
                progress.collect(is_woken=False)
                self._post.check(delivery)
                progress.attach()
            finished = progress.take_finished()
            if self._post.pulls and not is_short:
                progress.nudge()  # another thread copies, since the caller may have other things to do
        progress.settle(finished, copies=is_short)
        return delivery

    def abort(self, reason: str, blamed: int | None = None) -> None:
        """From any thread: fail all operations, now and later, with `Aborted`. Tell peers which rank is blamed."""
        with self._progress.guard:
            self._post.fail(Aborted(reason), blamed=blamed)
            finished = self._progress.take_finished()
        self._progress.settle(finished)

    def close(self) -> None:
        """Release everything. Operations under way fail, so wait for them first. Safe to call twice."""
        self._progress.close(Aborted("the mailbox is closed"))
        _open.discard(self)

    def close_in_child(self) -> None:
        """After a fork: close all descriptors without telling the peers; memory and connections are the parent's."""
        self._progress.close_in_child(Aborted("a forked child takes no part in its parent's exchanges"))

    def _check(self, peer: int | None, tag: int, what: str) -> None:
        if peer is not None and (peer == self.rank or not 0 <= peer < self.size):
            raise UsageError(texts.no_such_peer(what, peer, rank=self.rank, size=self.size))
        if not SMALLEST_TAG <= tag <= LARGEST_TAG:
            raise UsageError(texts.tag_too_large(what, peer, tag))


_open: weakref.WeakSet[Mailbox] = weakref.WeakSet()


def _close_in_child() -> None:
    for mailbox in tuple(_open):
        mailbox.close_in_child()


def _close_at_exit() -> None:
    """A thread that is inside torch while the interpreter shuts down would end the process with an abort."""
    for mailbox in tuple(_open):
        mailbox.close()


os.register_at_fork(after_in_child=_close_in_child)
atexit.register(_close_at_exit)
