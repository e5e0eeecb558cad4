"""One send or receive of a mailbox: the memory that it moves, and how it ends.

Also messages that wait for a receive, and copies to be made out of a neighbour's memory. A thread that waits for a
delivery makes progress itself (`mailbox_progress`). Not here: matching and moving.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from shoal.codecs.identity import memory_of
from shoal.collectives import flat_tensors
from shoal.collectives.dtypes import code_of
from shoal.collectives.group import Pending
from shoal.collectives.mailbox.letters import Letter
from shoal.errors import ExchangeFailed

if TYPE_CHECKING:
    from shoal.collectives.mailbox.mailbox_progress import MailboxProgress
    from shoal.collectives.mailbox.pieces import SharedSlots


class Delivery(Pending):
    """A send or a receive that was started. The tensor belongs to it until it is done."""

    def __init__(
        self, progress: MailboxProgress, tensor: torch.Tensor, peer: int | None, tag: int, *, is_send: bool
    ) -> None:
        # The base's __init__ is not called: its event costs as much as sending a few bytes.
        flat_tensors.check(tensor, label="send" if is_send else "receive")
        self.dtype = code_of(tensor.dtype)
        self.peer = peer  # rank that the message goes to or comes from; None: from any rank
        self.tag = tag
        self.is_send = is_send
        self.number = 0  # of a send in its direction of the pair, of a receive in its mailbox; from 0
        self.source: int | None = None  # of a receive: the sender of its message; known when it is done
        self.position = 0  # bytes moved so far, if they move in pieces
        self.is_moving = False  # a thread copies it without the guard and will finish it
        self._copy = None if flat_tensors.is_plain(tensor) else flat_tensors.HostFlat(tensor, is_read=is_send)
        self._tensor: torch.Tensor | None = tensor if self._copy is None else self._copy.flat
        self._memory: memoryview | None = None  # made when first needed
        self.address = self._tensor.data_ptr()
        self.size = self._tensor.nbytes
        self._progress = progress
        self._is_done = False
        self.error = None
        self._callbacks = []

    @property
    def label(self) -> str:  # type: ignore[override]  # made only when somebody reads it
        if self.is_send:
            return f"send {self.number} to rank {self.peer}, tag {self.tag}"
        whom = "any rank" if self.peer is None else f"rank {self.peer}"
        return f"receive {self.number} from {whom}, tag {self.tag}"

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def rest(self) -> memoryview:
        """The memory that has not moved yet. Call this only before the delivery is done."""
        if self._memory is None:
            assert self._tensor is not None
            self._memory = memory_of(self._tensor.data.view(-1))
        return self._memory[self.position :]

    def fill(self, data: int | bytes, length: int) -> None:
        """Take in the next bytes: `data` is the bytes themselves, or their address."""
        ctypes.memmove(self.address + self.position, data, length)
        self.position += length

    def wait(self, seconds: float | None = None) -> bool:
        if not self._is_done and not self._progress.wait_for(self, seconds):
            return False
        if self.error is not None:
            raise self.error
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if self._is_done:
            self._call_back()

    def finish(self, error: BaseException | None = None) -> None:
        """Called once, by the mailbox, which calls `tell` later: callbacks may call the mailbox."""
        if self._copy is not None and error is None and not self.is_send:
            try:
                # The tensor may be an inference tensor, made by another thread.
                with torch.inference_mode():
                    self._copy.write_back()
            except Exception as trouble:  # of the tensor's device; the user sees it, whichever thread this is
                error = trouble
        self.error = error
        self._copy = self._tensor = self._memory = None  # free the memory even if the user keeps this object
        self._is_done = True

    def tell(self) -> None:
        self._call_back()


class EarlyMessage:
    """A message that arrived, or began to arrive, before its receive was posted."""

    def __init__(self, letter: Letter, data: bytes | bytearray, *, is_whole: bool) -> None:
        self.letter = letter
        self.data = data  # the bytes that travel with the letter
        self.is_whole = is_whole  # all these bytes have arrived
        self.delivery: Delivery | None = None  # its receive, if posted before the message was whole


class OfferCopy:
    """A copy of an offer out of its sender's memory, made piece by piece, by one thread or several."""

    def __init__(self, delivery: Delivery, source: int, letter: Letter) -> None:
        self.delivery = delivery
        self.source = source
        self.letter = letter
        self.workers = 0  # threads that copy
        self.error: ExchangeFailed | None = None
        self.passage: SharedSlots | None = None  # where the sender may put part of the message
        self.front = 0  # bytes from the start that came over the passage
        self.end = delivery.size  # bytes from here on are copied, or a thread copies them

    def next_piece(self, most: int, last: int) -> tuple[int, int] | None:
        """Start and size of the next piece that no thread has taken. None: only the `last` bytes are left, or none."""
        if self.end - self.front <= last or self.error is not None:
            return None
        stop, self.end = self.end, max(self.front, (self.end - 1) // most * most)
        return self.end, stop - self.end
