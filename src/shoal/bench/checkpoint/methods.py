"""The ways to save a state that `shoal bench checkpoint` compares: Shoal's, torch.save, distributed checkpoint (DCP).

Each method is told when a step has ended, and is asked before the next update of the state. Baselines save what a
script would: the `state_dict` of model and optimizer. DCP writes through its FileSystemWriter, which flushes to the
disk; torch.save does not flush, so it is measured twice, with an fsync and without.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse, async_save, save

import shoal

State = Callable[[], dict[str, Any]]


class Method(ABC):
    """One way to save. `ended` is a reading of `time.perf_counter`, None while a save is under way."""

    ended: float | None = None

    def announce(self) -> None:  # noqa: B027  most need no warning
        """Called right before `begin`: the present state is going to be saved."""

    @abstractmethod
    def begin(self) -> None:
        """Called between two steps. After the return training may go on, up to its next update."""

    def hold(self) -> None:  # noqa: B027  most have finished with the state by then
        """Called before the next update: return when the state may change."""

    @abstractmethod
    def clean(self) -> None:
        """The save has ended: remove its files, and leave nothing that would slow the next one down."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Nothing more will be saved."""


class Shoal(Method):
    """`run.save()`: the script's loop begins the checkpoint. It ends when the coordinator has published it."""

    def __init__(self, run: shoal.Run) -> None:
        self._run = run
        self._saver = run._session.saver
        self._has_begun = threading.Event()

    def announce(self) -> None:
        self._run.save()
        self._has_begun.clear()
        # Started here, since starting a thread takes milliseconds when all cores are busy.
        threading.Thread(target=self._await_end, name="bench-end", daemon=True).start()

    def begin(self) -> None:
        self.ended = None  # the loop begins the checkpoint in the next call of next()

    def hold(self) -> None:
        if not self._has_begun.is_set():
            assert self._saver.last_step == self._run.step, "the loop has not begun the checkpoint"
            self._has_begun.set()
        self._saver.fence()  # what `optimizer.step()` does first

    def _await_end(self) -> None:
        self._has_begun.wait()
        assert self._saver._last is not None
        self._saver._last.over.wait()
        self.ended = time.perf_counter()

    def clean(self) -> None:
        pass  # the coordinator removes the checkpoint before, as in every job


class TorchSave(Method):
    def __init__(self, state: State, path: Path, *, flushes: bool) -> None:
        self._state = state
        self._path = path
        self._flushes = flushes

    def begin(self) -> None:
        torch.save(self._state(), self._path)
        if self._flushes:
            _flush(self._path)
        self.ended = time.perf_counter()

    def clean(self) -> None:
        _flush(self._path)
        self._path.unlink()


class SynchronousDcp(Method):
    def __init__(self, state: State, path: Path) -> None:
        self._state = state
        self._path = path

    def begin(self) -> None:
        save(self._state(), checkpoint_id=self._path)
        self.ended = time.perf_counter()

    def clean(self) -> None:
        shutil.rmtree(self._path)


class AsyncDcp(Method):
    """DCP with its default settings: the state is copied to fresh memory before `async_save` returns."""

    def __init__(self, state: State, path: Path) -> None:
        self._state = state
        self._path = path

    def begin(self) -> None:
        self.ended = None
        answer = async_save(self._state(), checkpoint_id=self._path)
        assert isinstance(answer, Future)
        answer.add_done_callback(self._mark_end)

    def _mark_end(self, written: Future[Any]) -> None:
        written.result()
        self.ended = time.perf_counter()

    def clean(self) -> None:
        shutil.rmtree(self._path)


class CopiedDcp(AsyncDcp):
    """DCP at its fastest: a thread copies to memory that is kept, during the next forward and backward.

    The state is then written by a thread, or by a process that shares that memory.
    """

    def __init__(self, state: State, path: Path, kind: AsyncCheckpointerType) -> None:
        super().__init__(state, path)
        self._kind = kind
        is_shared = kind is AsyncCheckpointerType.PROCESS
        # Pinned memory and copies that do not block need a GPU.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=is_shared, use_async_staging=True, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)
        self._copied: Future[None] | None = None

    def begin(self) -> None:
        self.ended = None
        answer = async_save(
            self._state(),
            checkpoint_id=self._path,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        assert isinstance(answer, AsyncSaveResponse)
        self._copied = answer.staging_completion
        answer.upload_completion.add_done_callback(self._mark_end)

    def hold(self) -> None:
        if self._copied is not None:
            self._copied.result()
            self._copied = None

    def close(self) -> None:
        self._stager.close()


NAMES = ("shoal", "torch.save", "torch.save, fsync", "DCP", "async DCP", "async DCP, thread", "async DCP, process")


def make(name: str, run: shoal.Run, state: State, folder: Path) -> Method:
    """DCP's own collectives need a process group; here it has one member."""
    path = folder / name.replace(", ", "-").replace(" ", "-")
    if "DCP" in name and not dist.is_initialized():
        dist.init_process_group("gloo")
    match name:
        case "shoal":
            return Shoal(run)
        case "torch.save" | "torch.save, fsync":
            return TorchSave(state, path, flushes=name != "torch.save")
        case "DCP":
            return SynchronousDcp(state, path)
        case "async DCP":
            return AsyncDcp(state, path)
        case "async DCP, thread":
            return CopiedDcp(state, path, AsyncCheckpointerType.THREAD)
        case "async DCP, process":
            return CopiedDcp(state, path, AsyncCheckpointerType.PROCESS)
    raise ValueError(f"there is no method {name!r}")


def close_all(methods: list[Method]) -> None:
    for method in methods:
        method.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
