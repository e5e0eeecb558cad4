"""One job on this machine from start to end: makes what it needs, starts the processes, sees to them.

One thread waits for everything at once: output and exits of processes, the coordinator's messages, signals. What to do
about them is decided in `supervision`.
"""

from __future__ import annotations

import contextlib
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.cli import checkpoint_place, run_directory, supervision
from shoal.cli.aftermath import EVENTS, put_in_order, record_size
from shoal.cli.last_report import leave_report
from shoal.cli.plan import COORDINATOR, Job, check_script, coordinator_process, worker_name, worker_processes
from shoal.cli.screen import Screen
from shoal.cli.signals import Signals, caught_signals
from shoal.cli.supervision import Finish, Supervisor
from shoal.cli.token_file import token_file
from shoal.engines.engine import Engine, Exited, Happening, Printed, Working, describe_exit
from shoal.engines.local import LocalEngine
from shoal.environment import parse_address, worker_environment
from shoal.errors import ShoalError, all_errors
from shoal.events import JobEnded, Record
from shoal.job_config import JobConfig
from shoal.membership.coordinator import open_listener
from shoal.membership.watcher import WatcherClient
from shoal.values import Address
from shoal.watch import open_display
from shoal.wire.handshake import new_token
from shoal.wire.messages import Ended

CONNECT_TIMEOUT = 300.0  # seconds for the coordinator's process to come up; it may have a slow store to look at first
CONNECT_LOOK = 0.05  # seconds between two looks at signals while it does
LOOK_SECONDS = 1.0  # between two looks at the processes, when nothing happens
EXIT_WAIT = 1.0  # seconds between a broken connection to the coordinator and its process being seen to end


def run_job(config: JobConfig, script: str, arguments: tuple[str, ...]) -> int:
    """Run the job and return its exit code. Mistakes that can be seen before anything starts raise `ShoalError`."""
    check_script(script)
    worker_environment()  # a misspelt variable is said once here rather than by every worker
    with contextlib.ExitStack() as stack:
        held = _earlier_run(config, stack)
        token = new_token()
        listener = stack.enter_context(open_listener(parse_address(config.address, named="--address"), token))
        private = stack.enter_context(token_file(token))
        if held is None:
            directory = run_directory.create(config, script)
            stack.enter_context(directory.lock)
        else:
            directory = run_directory.reopen(config, held)
        job = Job(
            config=directory.config,
            script=script,
            arguments=arguments,
            run_dir=directory.path,
            token_file=private,
            coordinator=_reachable(listener),
            record_start=record_size(directory.path),
        )
        finish = _start_and_see_to(job, listener, directory.lock, stack, token)
        put_in_order(job, finish, directory.settings_before)
    # The lock is free by now: a job that left no end in its record counts as crashed, not as running.
    leave_report(job.run_dir, open_it=job.config.open)
    return finish.exit_code


def _earlier_run(config: JobConfig, stack: contextlib.ExitStack) -> FileIO | None:
    """The lock of the run that is resumed; None for a new job. Checks that there is one to go on with, or to be."""
    if config.resume:
        lock = stack.enter_context(run_directory.hold(Path(config.run_dir)))
        checkpoint_place.require_checkpoint(config)
        return lock
    if config.checkpoint_to and config.run_dir:  # a name that the launcher makes up has the time in it
        checkpoint_place.refuse_anothers(config)
    return None


def _start_and_see_to(
    job: Job, listener: socket.socket, lock: FileIO, stack: contextlib.ExitStack, token: str
) -> Finish:
    """Start the processes and wait for the end of the job."""
    signals = stack.enter_context(caught_signals())
    engine = stack.enter_context(contextlib.closing(LocalEngine((job.token_file,))))
    engine.start(coordinator_process(job, listener, lock))
    for spec in worker_processes(job):
        engine.start(spec)
    listener.close()  # only the coordinator holds it now: when it dies, connecting fails at once
    screen = Screen(open_display(job.config.progress, job.config.workers), workers=job.config.workers)
    stack.callback(screen.close)
    launcher = _Launcher(job, engine, screen, signals)
    finish = launcher.run(token)
    screen.conclude(finish, job, launcher.last_lines(finish.lost_worker))
    return finish


def _reachable(listener: socket.socket) -> Address:
    """Where processes on this machine find the coordinator."""
    host, port = listener.getsockname()[:2]
    return Address(host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port=port)  # noqa: S104  compared only


class _Launcher:
    """The loop around the supervisor."""

    def __init__(self, job: Job, engine: Engine, screen: Screen, signals: Signals) -> None:
        self._job = job
        self._engine = engine
        self._screen = screen
        self._signals = signals
        self._watcher: WatcherClient | None = None
        self._supervisor = Supervisor(job.config.workers)
        self._finish: Finish | None = None
        self._numbers = {worker_name(worker): worker for worker in range(job.config.workers)}
        self._last: dict[str, tuple[str, ...]] = {}  # last lines of processes that ended, by name
        self._coordinator_exit: str | None = None  # how its process ended

    def run(self, token: str) -> Finish:
        """Returns when the job is over and every process is gone."""
        try:
            self._connect(token)
        except ShoalError as error:
            self._await_coordinator_exit()
            self._read_record()
            self._coordinator_gone(str(error))
        while self._finish is None:
            self._wait()
            self._look_around()
        if self._watcher is not None:
            self._watcher.close()  # a coordinator that is still there ends the record now
            self._watcher = None
        self._take(self._engine.stop(grace=self._finish.grace))
        return self._finish

    def _connect(self, token: str) -> None:
        """In a thread: a coordinator that first looks at a slow store must not keep the launcher from its signals."""
        answer: queue.SimpleQueue[WatcherClient | ShoalError] = queue.SimpleQueue()

        def connect() -> None:
            try:
                answer.put(WatcherClient.connect(self._job.coordinator, token, timeout=CONNECT_TIMEOUT))
            except ShoalError as error:
                answer.put(error)

        threading.Thread(target=connect, name="shoal-connect", daemon=True).start()
        is_stopping = False
        while self._finish is None:
            try:
                got = answer.get(timeout=CONNECT_LOOK)
            except queue.Empty:
                for number in self._signals.take():
                    self._decide(supervision.Signalled(number))
                    is_stopping = True
                if is_stopping:  # else exits of processes wait until the coordinator can be told of them
                    self._take(self._engine.poll())
                    self._decide(supervision.Tick())
                continue
            if isinstance(got, ShoalError):
                raise got
            self._watcher = got
            return

    def last_lines(self, worker: int | None) -> tuple[str, ...]:
        return () if worker is None else self._last.get(worker_name(worker), ())

    def _wait(self) -> None:
        sources = [source for source in (self._engine, self._signals, self._watcher) if source is not None]
        deadline = self._supervisor.deadline
        patience = LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
        _wait_for(sources, min(patience, LOOK_SECONDS))

    def _look_around(self) -> None:
        for number in self._signals.take():
            self._decide(supervision.Signalled(number))
        self._take(self._engine.poll())
        self._read_messages()
        if self._screen.lost_reader():
            self._decide(supervision.Signalled(signal.SIGPIPE))
        self._decide(supervision.Tick())

    def _take(self, happenings: tuple[Happening, ...]) -> None:
        for happened in happenings:
            if isinstance(happened, Printed):
                if happened.name in self._numbers and self._finish is None:
                    self._screen.worker_lines(self._numbers[happened.name], happened.lines)
                continue
            if isinstance(happened, Working):
                if happened.name in self._numbers and self._watcher is not None:
                    with contextlib.suppress(ShoalError):  # reading from it will say what is wrong
                        self._watcher.process_working(self._numbers[happened.name])
                continue
            self._last[happened.name] = happened.last
            if happened.name == COORDINATOR:
                self._coordinator_exit = _how(happened)
                if self._watcher is not None:
                    self._read_messages()
                    self._decide(supervision.CoordinatorExited(self._coordinator_exit))
            else:
                worker = self._numbers[happened.name]
                self._screen.worker_ended(worker)
                self._decide(supervision.WorkerExited(worker, happened.code))

    def _read_messages(self) -> None:
        try:
            while self._watcher is not None and (message := self._watcher.receive(0.0)) is not None:
                if isinstance(message, Ended):
                    self._decide(message)
                else:
                    self._screen.show(message.event, message.time)
                    self._decide(message.event)
        except ShoalError as error:
            self._coordinator_gone(str(error))

    def _coordinator_gone(self, reason: str) -> None:
        """Its process has most likely just ended; how it did says more than a closed connection."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        self._await_coordinator_exit()
        how = self._coordinator_exit or f"does not answer any more ({reason})"
        self._decide(supervision.CoordinatorExited(how))

    def _await_coordinator_exit(self) -> None:
        limit = time.monotonic() + EXIT_WAIT
        while self._coordinator_exit is None and (left := limit - time.monotonic()) > 0:
            _wait_for([self._engine], left)
            self._take(self._engine.poll())

    def _read_record(self) -> None:
        """A very short job may be over before the launcher could watch it: its record says how it went."""
        with contextlib.suppress(OSError), (self._job.run_dir / EVENTS).open("rb") as lines:
            lines.seek(self._job.record_start)
            for line in lines:
                try:
                    record = msgspec.json.decode(line, type=Record)
                except msgspec.MsgspecError:  # the end of a line that a crash of an earlier run has torn
                    continue
                self._screen.show(record.event, record.time)
                self._decide(record.event)
                if isinstance(record.event, JobEnded):
                    code = record.event.exit_code
                    error = next((kind.__name__ for kind in all_errors() if code and kind.exit_code == code), "")
                    self._decide(Ended(exit_code=code, error=error, text=record.event.reason))

    def _decide(self, fact: supervision.Fact) -> None:
        for instruction in self._supervisor.handle(fact, time.monotonic()):
            # A coordinator that cannot be told anything may still have said something: reading finds out.
            with contextlib.suppress(ShoalError):
                self._carry_out(instruction)

    def _carry_out(self, instruction: supervision.Instruction) -> None:
        match instruction:
            case supervision.TellExit() if self._watcher is not None:
                self._watcher.process_exited(instruction.worker, instruction.code, describe_exit(instruction.code))
            case supervision.AskToStop() if self._watcher is not None:
                self._watcher.request_stop(instruction.reason, exit_code=instruction.exit_code)
            case supervision.InterruptWorkers():
                self._screen.hold()
                for name in self._numbers:
                    self._engine.interrupt(name)
            case supervision.Say():
                self._screen.say(instruction.text)
            case Finish():
                self._finish = instruction


class _Source(Protocol):
    def fileno(self) -> int: ...


def _wait_for(sources: Sequence[_Source], seconds: float) -> None:
    """`select` would refuse descriptors from 1024 on, which a program that calls `shoal.launch` may well have."""
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    poll.poll(seconds * 1000)


def _how(exited: Exited) -> str:
    """How the coordinator ended, with the last thing it said."""
    said = next((f" ({line.strip()})" for line in reversed(exited.last) if line.strip()), "")
    return describe_exit(exited.code) + said
