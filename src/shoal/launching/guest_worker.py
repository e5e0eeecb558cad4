"""One worker, on this machine, for a job that runs somewhere: a small launcher for one process.

Asks the coordinator for a number, starts the job's script under it, passes its output on, and ends with its exit code.
Ctrl-C makes the worker hand over, and so does SIGTERM. Not here: the job itself (`run_job`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from shoal.engines.engine import describe_exit
from shoal.engines.local import LocalEngine
from shoal.engines.waiting import wait_for
from shoal.errors import AddressUnavailable, Interrupted, Refused, ShoalError, by_name
from shoal.events import Event, GenerationFormed, StorageFailed
from shoal.launching import texts
from shoal.launching.coordinator_line import Broke, Connected, CoordinatorLine
from shoal.launching.plaintext import spoken_plaintext
from shoal.launching.processes.running import Gone, LinesPrinted, Processes
from shoal.launching.processes.specs import Job, worker_name, worker_process
from shoal.launching.signals import Signals, caught_signals
from shoal.membership.watcher import WatcherClient
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow
from shoal.wire.messages import Ended, Enlisted, Happened, Welcome

CONNECT_SECONDS = 30.0  # for the coordinator to answer the first time
RECONNECT_SECONDS = 660.0  # for the coordinator to come back: a worker does not wait longer either
RECONNECT_PAUSE = 1.0  # seconds between two attempts
LOOK_SECONDS = 1.0  # the longest wait when nothing happens
LAST_STEPS = 10.0  # seconds that the worker may take to end once the job has ended


def join_job(address: Address, token: str, job_of: Callable[[Welcome], Job], *, wait: float = 0.0) -> int:
    """Run one worker of the job whose coordinator listens at `address`, and return the command's exit code.

    `job_of` turns the coordinator's description of the job into what to run here. `wait`: seconds in which a
    coordinator that cannot be reached yet may come.
    """
    with contextlib.ExitStack() as stack:
        with told_if_slow(texts.waiting_for_coordinator(address)):
            client = _reach(address, token, timeout=CONNECT_SECONDS, seconds=wait)
        signals = stack.enter_context(caught_signals())
        line = CoordinatorLine(
            lambda: _reach(address, token, timeout=RECONNECT_PAUSE, seconds=RECONNECT_SECONDS), client
        )
        stack.callback(line.close)
        job = job_of(client.welcome)
        stack.enter_context(spoken_plaintext(job.config.plaintext))
        engine = stack.enter_context(contextlib.closing(LocalEngine()))
        return _Joining(job, Processes(engine), line, signals).run()


def _reach(address: Address, token: str, *, timeout: float, seconds: float) -> WatcherClient:
    """Try again for so many seconds. `timeout`: of one attempt."""
    limit = time.monotonic() + seconds
    while True:
        try:
            return WatcherClient.connect(address, token, timeout=timeout, is_launcher=False)
        except AddressUnavailable:
            if time.monotonic() >= limit:
                raise
            time.sleep(RECONNECT_PAUSE)


class _Joining:
    """One worker's process from its number to its end."""

    def __init__(self, job: Job, processes: Processes, line: CoordinatorLine, signals: Signals) -> None:
        self._job = job
        self._processes = processes
        self._line = line
        self._signals = signals
        self._worker: int | None = None
        self._told_to_go: signal.Signals | None = None  # the signal after which the worker hands over
        self._code: int | None = None  # exit code of this command
        self._ended: Ended | None = None
        self._exit_code: int | None = None  # of the worker's process
        self._limit = float("inf")  # when the worker must have ended
        self._is_in = False  # the worker is a member of the job

    def run(self) -> int:
        self._line.send(lambda client: client.enlist())
        while self._code is None:
            self._wait()
            for number in self._signals.take():
                self._signalled(number)
            self._look()
            if self._code is None and time.monotonic() >= self._limit:
                self._processes.stop(grace=0.5)
                self._code = self._of_job()
        return self._code

    def _wait(self) -> None:
        left = max(0.0, min(LOOK_SECONDS, self._limit - time.monotonic()))
        wait_for((*self._processes.sources, self._line, self._signals), left)

    def _look(self) -> None:
        for happened in self._processes.poll():
            if isinstance(happened, LinesPrinted):
                sys.stdout.write("".join(f"{text}\n" for text in happened.lines))
                sys.stdout.flush()
            elif isinstance(happened, Gone):
                self._exited(happened.code)
            elif (worker := self._worker) is not None:
                self._line.send(lambda client: client.process_working(worker))
        for news in self._line.receive():
            if isinstance(news, Enlisted) and self._worker is None:
                self._start(news.worker)
            elif isinstance(news, Ended):
                self._ended = news
                if not news.error:
                    print(f"shoal: {texts.job_has_ended(news.text)}", file=sys.stderr, flush=True)
                self._limit = time.monotonic() + (LAST_STEPS if self._worker is not None else 0.0)
            elif isinstance(news, Happened):
                self._happened(news.event)
            elif isinstance(news, Connected) and self._worker is None:
                self._line.send(lambda client: client.enlist())
            elif isinstance(news, Broke) and self._ended is None:
                self._line.open()
        if self._code is None and self._exit_code is not None:
            self._code = self._of_worker(self._exit_code)

    def _of_worker(self, code: int) -> int:
        """This command's exit code, where the worker ended with `code`.

        Whoever sent SIGTERM, such as Kubernetes, has to learn that the job is not done: 0 would say so.
        """
        if self._is_late(code):
            return self._of_job()
        if self._told_to_go == signal.SIGTERM and code == 0 and self._ended is None:
            return 128 + signal.SIGTERM
        return code

    def _happened(self, event: Event) -> None:
        if isinstance(event, StorageFailed) and self._worker is None:
            print(f"shoal: {texts.waiting_for_number(event.reason)}", file=sys.stderr, flush=True)
        elif isinstance(event, GenerationFormed) and self._worker in event.workers and not self._is_in:
            self._is_in = True
            said = texts.guest_is_in(self._worker, len(event.workers))
            print(f"shoal: {said}", file=sys.stderr, flush=True)

    def _is_late(self, code: int) -> bool:
        """Whether the worker started after the job's end and found no coordinator or token, which is no error."""
        is_token_gone = code == Refused.exit_code and not self._job.token_file.exists()
        return self._ended is not None and (code == AddressUnavailable.exit_code or is_token_gone)

    def _start(self, worker: int) -> None:
        self._worker = worker
        self._processes.start(replace(worker_process(self._job, worker, place=0), log=None))
        print(f"shoal: {texts.guest_started(worker, self._job.coordinator)}", file=sys.stderr, flush=True)

    def _signalled(self, number: signal.Signals) -> None:
        if self._worker is None or self._told_to_go is not None:
            self._processes.stop(grace=0.0)
            self._code = Interrupted.exit_code if number == signal.SIGINT else 128 + number
            return
        self._told_to_go = number
        self._processes.send_signal({worker_name(self._worker)}, signal.SIGTERM)
        print(f"shoal: {texts.HANDING_OVER}", file=sys.stderr, flush=True)

    def _exited(self, code: int) -> None:
        worker = self._worker
        assert worker is not None
        self._line.send(lambda client: client.process_exited(worker, code, describe_exit(code)))
        if code < 0:
            print(f"shoal: worker {worker} {describe_exit(code)}", file=sys.stderr, flush=True)
        self._exit_code = code if code >= 0 else 128 - code

    def _of_job(self) -> int:
        """Report the job's end and return its exit code, where this worker did not end by itself or never began."""
        ended = self._ended
        if ended is None or not ended.error:
            return 0
        error: ShoalError = by_name(ended.error, ended.text)
        print(f"shoal: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
