"""One worker's parts of checkpoints, from the copy to the coordinator's answer, one after the other in one thread.

The thread stays, because starting one costs milliseconds on a busy machine. It reports to the coordinator through the
functions that it is given. A failure costs the checkpoint and nothing else: no error is raised.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.checkpoint.parts.capture import Capture
from shoal.checkpoint.parts.part_writer import write_part
from shoal.checkpoint.published.manifest import About
from shoal.checkpoint.stores.store import Store
from shoal.wire.messages import PartFailed, PartWritten

LOOK_SECONDS = 0.5  # between two checks whether anybody still waits for this checkpoint


@dataclass(frozen=True)
class PartToWrite:
    """A part to write."""

    checkpoint: str
    file: str
    generation: int
    step: int
    reason: str
    mark: str
    capture: Capture
    about: About | None  # rank 0 has one


@dataclass(frozen=True)
class CoordinatorAnswers:
    """The way to the coordinator and back."""

    tell: Callable[[PartWritten | PartFailed], None]
    settlement: Callable[[str, float], bool | None]  # published, lost, or nothing known within these seconds


class Writing:
    """One part on its way."""

    def __init__(self, part: PartToWrite) -> None:
        self.part = part
        self.started = time.perf_counter()
        self.blocked = 0.0  # seconds that the script was held up; the held-up thread adds them
        self.over = threading.Event()  # published, lost or given up
        self.is_published = False  # once it is over


class PartThread:
    def __init__(self, store: Store, answers: CoordinatorAnswers) -> None:
        self._store = store
        self._answers = answers
        self._waiting: queue.SimpleQueue[Writing | None] = queue.SimpleQueue()  # one at most
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-checkpoint", daemon=True)
        self._thread.start()

    def begin(self, part: PartToWrite) -> Writing:
        writing = Writing(part)
        self._waiting.put(writing)
        return writing

    def close(self) -> None:
        """Stop waiting for the coordinator's answer. A thread in a store that hangs ends with the process."""
        self._given_up.set()
        self._waiting.put(None)

    def _run(self) -> None:
        while (writing := self._waiting.get()) is not None:
            try:
                self._answers.tell(self._made(writing))
                writing.is_published = self._await_settlement(writing.part.checkpoint)
            finally:
                writing.over.set()
                del writing  # free the captured copy now, not when the next part comes

    def _made(self, writing: Writing) -> PartWritten | PartFailed:
        part = writing.part
        try:
            part.capture.wait()
            if part.capture.failure is not None:
                raise part.capture.failure
            written = self._written(writing)
            part.capture.is_settled.wait()
            if part.capture.torn is not None:
                return _failed(
                    part,
                    f"{part.capture.torn} was changed in place, outside optimizer.step(), while it was being copied; "
                    "from now on the state is copied at once",
                )
            return written
        except OSError as error:
            return _failed(part, f"{self._store.place} cannot be written: {error.strerror or error}")
        except Exception as error:  # a bug of ours costs this checkpoint, not the job
            return _failed(part, f"{type(error).__name__}: {error}")

    def _await_settlement(self, checkpoint: str) -> bool:
        """Wait until the checkpoint is settled; True if it was published."""
        while not self._given_up.is_set():
            if (is_published := self._answers.settlement(checkpoint, LOOK_SECONDS)) is not None:
                return is_published
        return False

    def _written(self, writing: Writing) -> PartWritten:
        part = writing.part
        size = write_part(self._store, f"{part.checkpoint}/{part.file}", part.capture, part.about)
        return PartWritten(
            checkpoint=part.checkpoint,
            generation=part.generation,
            step=part.step,
            file=part.file,
            size=size,
            seconds=time.perf_counter() - writing.started,
            blocked=writing.blocked,
            reason=part.reason,
            mark=part.mark,
        )


def _failed(part: PartToWrite, reason: str) -> PartFailed:
    return PartFailed(checkpoint=part.checkpoint, generation=part.generation, step=part.step, reason=reason)
