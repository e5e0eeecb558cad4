"""A coordinator and workers as real processes, for integration tests. Everything is gone when the `Job` is closed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from shoal.events import AnyEvent, Event, Record
from shoal.membership.coordinator import open_listener
from shoal.membership.watcher import WatcherClient
from shoal.values import Address
from shoal.wire.messages import Ended, Happened
from shoal.wire.token_file import new_token

PROGRAMS = Path(__file__).parent
Kind = TypeVar("Kind", bound=Event)
PATIENCE = 60.0  # seconds; only a hanging test ever waits so long


class WorkerProcess:
    """A worker that is told what to do: see `worker_process`."""

    def __init__(self, address: Address, token: str, number: int) -> None:
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, PROGRAMS / "worker_process.py", address.host, str(address.port), token, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Its next line; the test's own timeout bounds the wait."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal that ends the process, and return what the launcher would report."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # it died with a command unread
                pipe.close()


class Job:
    """A coordinator's process, and whoever joins it."""

    def __init__(self, run_dir: Path, *, publisher: Path | None = None, past: int = 0, **settings: object) -> None:
        """`publisher` is the folder of one, see `coordinator_process`; `past` the last generation of an earlier run."""
        self.token = new_token()
        self.run_dir = run_dir
        self.workers: list[WorkerProcess] = []
        self.watchers: list[WatcherClient] = []
        self._listener = open_listener(Address("127.0.0.1", 0), self.token)
        self.address = Address(*self._listener.getsockname())
        self._given = {"fd": self._listener.fileno(), "token": self.token, "settings": settings}
        self._given |= {"run_dir": str(run_dir), "publisher": str(publisher or ""), "past": past}
        self.coordinator = self._start_coordinator()

    def _start_coordinator(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, PROGRAMS / "coordinator_process.py", json.dumps(self._given)],
            pass_fds=[self._listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_coordinator(self) -> None:
        """SIGKILL. Its listening socket stays open here, as in the launcher."""
        self.coordinator.kill()
        self.coordinator.wait(PATIENCE)
        assert self.coordinator.stderr is not None
        self.coordinator.stderr.close()

    def restart_coordinator(self) -> None:
        self.kill_coordinator()
        self.coordinator = self._start_coordinator()

    def start(self, *numbers: int, token: str | None = None) -> list[WorkerProcess]:
        """Start workers at once; they answer "joined", or why not."""
        started = [WorkerProcess(self.address, token or self.token, number) for number in numbers]
        self.workers += started
        return started

    def join(self, *numbers: int) -> list[WorkerProcess]:
        started = self.start(*numbers)
        assert [worker.answer() for worker in started] == ["joined"] * len(started)
        return started

    def watch(self) -> WatcherClient:
        self.watchers.append(WatcherClient.connect(self.address, self.token, timeout=PATIENCE))
        return self.watchers[-1]

    def exit_code(self) -> int:
        """Wait for the coordinator to end. It must have nothing to complain of."""
        code = self.coordinator.wait(PATIENCE)
        assert self.coordinator.stderr is not None
        assert self.coordinator.stderr.read() == ""
        return code

    def events(self) -> list[AnyEvent]:
        lines = (self.run_dir / "events.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Record).event for line in lines]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for watcher in self.watchers:
            watcher.close()
        for worker in self.workers:
            worker.close()
        self.kill_coordinator()
        self._listener.close()


def ended(watcher: WatcherClient) -> Ended:
    """The job's end, after all events."""
    while True:
        message = watcher.receive(PATIENCE)
        assert message is not None, "the job does not end"
        if isinstance(message, Ended):
            return message


def seen(watcher: WatcherClient, kind: type[Kind]) -> Kind:
    """Wait until the next event of a kind is shown."""
    while True:
        message = watcher.receive(PATIENCE)
        assert message is not None, f"no {kind.__name__} came"
        assert not isinstance(message, Ended), message
        if isinstance(message, Happened) and isinstance(message.event, kind):
            return message.event


def kill_quietly(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
