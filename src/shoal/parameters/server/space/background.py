"""A server's second thread, for what takes long and touches nothing that the first one uses meanwhile.

Working out where the blocks of a large table go takes seconds, and so does giving gigabytes back to the system: done in
the server's own thread, either would silence it for every job. Results are looked at there again, after `wake`. Not
here: anything that changes what a job's blocks are.
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
        """Have memory given back by a call that raises nothing."""
        self._pool.submit(call)

    def close(self) -> None:
        """Returns when all is done; whoever computes something that is not needed any more cancels it before."""
        self._pool.shutdown(wait=True)
