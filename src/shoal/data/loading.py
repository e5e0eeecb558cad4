"""Running the work of loading: in the calling thread, or in background processes, always in the order of the works.

A work is a small value that says what to load; an `Assembler` turns it into a batch. torch's
DataLoader, which gets works in place of indices, does processes, prefetching and pinning. Not here: which works there
are (`map_feed`, `stream_feed`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from shoal.data import texts
from shoal.errors import DataError, ShoalError

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


@dataclass(frozen=True)
class LoadSettings:
    """How batches are loaded. Names and meanings are those of torch's DataLoader, except `processes`."""

    processes: int = 0  # 0: the calling thread loads
    collate: Callable[[list[Any]], Any] = default_collate
    drop_last: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    pin_memory: bool = False
    timeout: float = 0  # seconds to wait for a batch; 0: no limit
    prefetch_factor: int | None = None  # batches per process that are loaded ahead
    multiprocessing_context: Any = None  # None: torch's default start method
    persistent_workers: bool = False

    @property
    def collate_may_be_random(self) -> bool:
        return self.collate is not default_collate


class Assembler(ABC):
    """Turns works into batches. Is copied into every loader process, so it holds no thread, lock or connection."""

    source: Any  # the user's data set, as its own code in a loader process expects to find it
    reads_in_sequence: bool  # every process has to see the whole source, so user code must not split it

    @abstractmethod
    def load(self, work: Any) -> Any:
        """Load a batch: a tree of tensors and plain values. If user code fails, raise `DataError` with the cause."""


def collated(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    try:
        return collate(samples)
    except Exception as error:
        name = getattr(collate, "__name__", type(collate).__name__)
        raise DataError(texts.not_collated(name, len(samples), described(error))) from error


def described(error: BaseException) -> str:
    """An error's type and first line, since errors for users are one line."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


@dataclass(frozen=True)
class NoMore:
    """What an assembler returns when its source ended before all works were done."""


@dataclass(frozen=True)
class LoadFailure:
    """An error in a loader process, as text: not every exception can be sent to another process."""

    text: str
    traceback: str


class InLoaderProcess(Exception):
    """The cause of a `DataError` from a loader process: the traceback there, as text."""


def guarded_load(assembler: Assembler, work: Any) -> Any:
    """Load a work. In a loader process, return a `LoadFailure` instead of raising."""
    try:
        return assembler.load(work)
    except DataError as error:
        if get_worker_info() is None:
            raise
        return LoadFailure(text=str(error), traceback=traceback.format_exc())


def unwrapped(batch: Any) -> Any:
    """Return a batch from a loader process, or raise the error that came in its place."""
    if isinstance(batch, LoadFailure):
        raise DataError(batch.text) from InLoaderProcess(f"\n{batch.traceback}")
    return batch


class _Works:
    """Stands in for torch's sampler. Persistent processes get new works each epoch."""

    current: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.current)


class _Guarded(Dataset[Any]):
    """Stands in for torch's data set."""

    def __init__(self, assembler: Assembler) -> None:
        self._assembler = assembler

    def __getitem__(self, work: Any) -> Any:
        return guarded_load(self._assembler, work)


@dataclass(frozen=True)
class _ProcessStart:
    """What a loader process does first."""

    assembler: Assembler
    worker_init_fn: Callable[[int], None] | None

    def __call__(self, _number: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
        die_with_parent()
        torch_worker._worker_info = info = self._info_for_user()
        if self.worker_init_fn is not None:
            self.worker_init_fn(info.id)

    def _info_for_user(self) -> torch_worker.WorkerInfo:
        """What user code gets when it asks torch for its process and data set: the user's own, not our stand-in.

        A stream is told that it is alone: the usual code that splits it over processes then reads all of it.
        """
        info = get_worker_info()
        assert info is not None
        alone = self.assembler.reads_in_sequence
        return torch_worker.WorkerInfo(
            id=0 if alone else info.id,
            num_workers=1 if alone else info.num_workers,
            seed=info.seed,
            dataset=self.assembler.source,
        )


def die_with_parent() -> None:
    """Die with the parent: as long as copies of its sockets are open here, its peers cannot see that it died."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl took effect
            os._exit(1)


@dataclass
class _Course:
    """A DataLoader with the sampler it was made with, and its latest iterator."""

    loader: DataLoader[Any]
    sampler: _Works
    iterator: Any = None

    def end_processes(self) -> None:
        """End the processes now. torch ends them when the iterator is collected, which a traceback may delay."""
        shut_down = getattr(self.iterator, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()


class Loader:
    """Runs works through an assembler. One per feed."""

    def __init__(self, assembler: Assembler, settings: LoadSettings) -> None:
        self._assembler = assembler
        self._settings = settings
        self._idle: _Course | None = None  # holds the persistent processes between two epochs

    def run(self, works: Iterable[Any]) -> Generator[Any, None, None]:
        """Yield each work's batch, in order. Processes end with the generator; persistent ones if it is closed."""
        course = self._idle or self._new_course()
        self._idle = None
        course.sampler.current = works
        try:
            course.iterator = self._guarded(lambda: iter(course.loader))
            while (batch := self._guarded(lambda: next(course.iterator, _END))) is not _END:
                if isinstance(batch, NoMore):
                    break
                yield unwrapped(batch)
            if self._settings.persistent_workers:
                self.close()  # another run may have finished meanwhile
                self._idle = course
        finally:
            if self._idle is not course:
                course.end_processes()

    def close(self) -> None:
        if self._idle is not None:
            self._idle.end_processes()
            self._idle = None

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Turn torch's errors about the loader processes (killed, out of memory, too slow) into a `DataError`."""
        try:
            return call()
        except ShoalError:
            raise
        except Exception as error:
            if self._settings.processes == 0:
                raise
            raise DataError(texts.loading_failed(self._settings.processes, described(error))) from error

    def _new_course(self) -> _Course:
        settings, sampler = self._settings, _Works()
        for_processes: dict[str, Any] = {}
        if settings.processes > 0:
            for_processes = {
                "worker_init_fn": _ProcessStart(self._assembler, settings.worker_init_fn),
                "timeout": settings.timeout,
                "prefetch_factor": settings.prefetch_factor,
                "multiprocessing_context": settings.multiprocessing_context,
                "persistent_workers": settings.persistent_workers,
            }
        loader: DataLoader[Any] = DataLoader(
            _Guarded(self._assembler),
            batch_size=None,  # an item is a whole batch already
            sampler=sampler,
            num_workers=settings.processes,
            collate_fn=_as_it_is,
            pin_memory=settings.pin_memory,
            generator=torch.Generator(),  # torch draws a number per epoch; the training loop's generator must not move
            **for_processes,
        )
        return _Course(loader=loader, sampler=sampler)


_END = object()


def first_of(assembler: Assembler, work: Any, settings: LoadSettings) -> Any:
    """What an assembler makes of one work, in a loader process that ends with it. None where no process can do it.

    None also where processes are not forked: starting one would take seconds.
    """
    context = settings.multiprocessing_context
    method = context if isinstance(context, str | None) else context.get_start_method()
    if (method or multiprocessing.get_start_method()) != "fork":
        return None
    loaded = Loader(assembler, replace(settings, processes=1, pin_memory=False, persistent_workers=False)).run([work])
    try:
        return next(loaded, None)
    except DataError:
        return None  # the loop meets the same trouble, and says so
    finally:
        loaded.close()


def _as_it_is(batch: Any) -> Any:
    return batch
