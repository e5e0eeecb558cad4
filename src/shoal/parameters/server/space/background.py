"""A server's second thread, for work that takes long and touches nothing that the first thread uses meanwhile.

Placing the blocks of a large table takes seconds, and so does giving gigabytes back to the system: done in the server's
own thread, either would stop it for every job. After `wake`, the server's own thread picks up the results. Not here:
anything that changes a job's blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Background:
    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called, in the second thread, when something is done."""
        self._wake = wake
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shoal-background")

    def compute(self, call: Callable[[], Result]) -> Future[Result]:
        future = self._pool.submit(call)
        future.add_done_callback(lambda _: self._wake())
        return future

    def dispose(self, call: Callable[[], None]) -> None:
        """Have `call` give memory back. It must not raise."""
        self._pool.submit(call)

    def close(self) -> None:
        """Returns when all work is done; callers cancel results that they no longer need first."""
        self._pool.shutdown(wait=True)
