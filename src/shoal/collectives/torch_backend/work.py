"""What torch gets back from a call: a `Work` around one of our pending operations, with a future on demand.

torch runs the callbacks of a future in the thread that completes it, here the communication thread. An error must reach
C++ as a failed future, which only an exception raised inside `Future.then` makes: C++ takes a future whose result is an
exception for a successful one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import Work
from torch.futures import Future

from shoal.collectives.group import Pending
from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.torch_backend.calls import in_torch_terms
from shoal.errors import ShoalError


class TimeLimit(Protocol):
    """How long a group's operations may take."""

    limit: float  # seconds
    receiving: dict[int, float]  # by thread, since when it waits for a send or receive

    @property
    def run_out(self) -> Callable[[str, float], None]:
        """Called with the name of what took too long, and the limit in seconds: everything in the group fails."""


class ShoalWork(Work):
    """An operation that was started, or is done. `result` is the future's value: the tensors that were filled."""

    def __init__(self, pending: Pending | None, result: Any) -> None:
        """`pending` is None if the operation is done."""
        super().__init__()
        self._pending = pending
        self._result = result
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._pending is not None:
            # torch passes zero for "no time given".
            self._wait(timeout.total_seconds() if timeout else None)
        return True

    def _wait(self, seconds: float | None) -> None:
        assert self._pending is not None
        try:
            is_done = self._pending.wait(seconds)
        except Exception as error:
            raise in_torch_terms(error) from error
        if not is_done:
            raise torch.distributed.DistBackendError(f"{self._pending.label!r} is not done after {seconds:g} s")

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._pending is None or self._pending.is_done

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        error = None if self._pending is None else self._pending.error
        return None if error is None else in_torch_terms(error)

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> Future[Any]:
        if self._future is None:
            start: Future[None] = Future(devices=_gpus(self._result))
            self._future = start.then(self._outcome)
            if self._pending is None:
                start.set_result(None)
            else:
                self._pending.when_done(lambda *_error: _complete(start))
        return self._future

    def _outcome(self, _start: Future[Any]) -> Any:
        error = self.exception()
        if error is not None:
            raise error
        return self._result


class JoinedWork(ShoalWork):
    """Several operations as one."""

    def __init__(self, works: list[ShoalWork]) -> None:
        super().__init__(None, [work._result for work in works])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Future[Any]:
        if self._future is None:
            together = torch.futures.collect_all([work.get_future() for work in self._works])
            self._future = together.then(self._outcome)
        return self._future


class DeliveryWork(ShoalWork):
    """A send or a receive. It watches its own time limit, since no deadline does."""

    def __init__(self, delivery: Delivery, result: Any, clock: TimeLimit) -> None:
        super().__init__(delivery, result)
        self._delivery = delivery
        self._clock = clock

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout or self._delivery.is_done:
            self._wait(timeout.total_seconds() if timeout else None)
            return True
        limit, thread = self._clock.limit, threading.get_ident()
        self._clock.receiving[thread] = time.monotonic()
        try:
            if not self._delivery.wait(limit):
                self._clock.run_out(self._delivery.label, limit)
                self._delivery.wait()
        except ShoalError as error:
            raise in_torch_terms(error) from error
        finally:
            self._clock.receiving.pop(thread, None)
        return True

    def source_rank(self) -> int:
        self.wait()
        assert self._delivery.source is not None
        return self._delivery.source

    def _source_rank(self) -> int:
        return self.source_rank()


def _gpus(result: Any) -> list[int | str | torch.device]:
    """The GPUs of the result's tensors: torch's futures must be told beforehand."""
    if isinstance(result, torch.Tensor):
        return [result.device] if result.is_cuda else []
    return list({device: None for one in result for device in _gpus(one)}) if isinstance(result, list | tuple) else []


def _complete(start: Future[None]) -> None:
    # Tensors that a user's callback makes may take part in autograd, unlike those of the communication thread.
    with torch.inference_mode(False):
        start.set_result(None)
