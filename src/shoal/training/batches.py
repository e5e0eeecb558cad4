"""What a script iterates over: the batches of a loop, and the epochs of a nested one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from shoal.errors import UsageError
from shoal.training.loop.loop import Loop
from shoal.training.session import Session


class Batches(Iterator[Any]):
    """What `run.batches` returns. It runs once; whoever iterates over it again is told so.

    A `for` gets the generator itself, which nobody else holds: leaving the `for` closes it, which counts as leaving.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_started = False
        self._own: Generator[Any, None, None] | None = None  # where `next` is called on this object itself

    def __iter__(self) -> Iterator[Any]:
        if self._is_started:
            raise UsageError("this loop over batches has run; call run.batches again, or ask it for several epochs")
        self._is_started = True
        return self._loop.run()

    def __next__(self) -> Any:
        if self._own is None:
            self._own = self._loop.run()
            self._is_started = True
        return next(self._own)

    def __len__(self) -> int:
        """How many batches this worker will get: for schedules that must know. TypeError where the data do not say."""
        return self._loop.length()


def epoch_numbers(session: Session, epochs: int) -> Iterator[int]:
    """Epochs of a nested loop: 0, 1, ... until the last or an agreed stop."""
    for epoch in range(epochs):
        if session.stopped is not None:
            return
        yield epoch
