"""The thread in which a publisher works, one request after the other, while the coordinator goes on.

Keeps requests in order, answers each, and ends within a limited time. Stores may be slow or dead: the thread is a
daemon, so that a coordinator that has given up on a store can still end. Not here: when to publish (`publishing`).
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from shoal.membership import texts
from shoal.membership.core.protocol import DiscardCheckpoint, Publish, Published, PublishFailed
from shoal.membership.publisher import Publisher

Answer = Callable[[Published | PublishFailed], None]


class PublisherThread:
    """Takes the core's instructions. `answer` is called from the thread, once for each `Publish`."""

    def __init__(self, publisher: Publisher | None, answer: Answer) -> None:
        self._publisher = publisher
        self._answer = answer
        self._asked: queue.SimpleQueue[Publish | DiscardCheckpoint | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, instruction: Publish | DiscardCheckpoint) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shoal-publisher", daemon=True)
            self._thread.start()
        self._asked.put(instruction)

    def join(self, timeout: float) -> None:
        """No more requests will come: let the thread finish, within `timeout` seconds."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while (instruction := self._asked.get()) is not None:
            if isinstance(instruction, Publish):
                self._answer(publish(self._publisher, instruction))
            else:
                discard(self._publisher, instruction)


def publish(publisher: Publisher | None, instruction: Publish) -> Published | PublishFailed:
    """Blocks until the store has answered."""
    name = instruction.request.checkpoint
    if publisher is None:
        return PublishFailed(name, texts.NO_CHECKPOINTS)
    try:
        return Published(name, publisher.publish(instruction.request))
    except Exception as error:  # an unexpected error of a store costs a checkpoint, not the job
        return PublishFailed(name, str(error) or repr(error))


def discard(publisher: Publisher | None, instruction: DiscardCheckpoint) -> None:
    """Blocks until the store has answered."""
    if publisher is None:
        return
    try:
        publisher.discard(instruction.checkpoint)
    except Exception as error:  # as above; the next run of the job tries again
        sys.stderr.write(f"shoal: {texts.not_removed(instruction.checkpoint, str(error) or repr(error))}\n")
