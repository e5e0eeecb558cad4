"""The launcher's loop: one thread waits for everything at once and carries out the supervisor's instructions.

It waits for output and exits of processes, the coordinator's messages, signals, and deadlines. Not here: what to do
about them (`supervision`), starting the first processes and cleaning up (`run_job`).
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from dataclasses import dataclass

import msgspec

from shoal.disk.aftermath import EVENTS, log_failure
from shoal.engines.engine import MachinesLeave, NoMachines, Placed, Working, describe_exit
from shoal.engines.waiting import Source, wait_for
from shoal.errors import ShoalError, all_errors
from shoal.events import (
    AnyEvent,
    EngineSaid,
    Event,
    FaultInjected,
    JobEnded,
    Record,
    StepsApplied,
    WorkerFailed,
    WorkerStarted,
)
from shoal.files import whole_lines
from shoal.launching import coordinator_line as line
from shoal.launching.chaos import clauses
from shoal.launching.chaos.laboratory import Laboratory, Running
from shoal.launching.coordinator_line import CoordinatorLine
from shoal.launching.processes.running import Gone, JobProcess, LinesPrinted, Processes, ProcessNews
from shoal.launching.processes.spares import Spares
from shoal.launching.processes.specs import COORDINATOR, Job, placed, worker_name, worker_process
from shoal.launching.screen import Screen
from shoal.launching.servers.server_side import ServerSide
from shoal.launching.signals import Signals
from shoal.launching.supervision import orders
from shoal.launching.supervision.orders import FinishJob
from shoal.launching.supervision.supervisor import Supervisor
from shoal.membership.watcher import WatcherClient
from shoal.wire.messages import Ended, Enlisted, Happened

LOOK_SECONDS = 1.0  # the longest wait when nothing happens
EXIT_WAIT = 1.0  # seconds to wait for the exit of a coordinator that does not answer
NOT_STARTED = 127  # exit code of a process that could not be started, as shells have it


@dataclass(frozen=True)
class Equipment:
    """What the loop works with. Its maker closes it."""

    processes: Processes
    screen: Screen
    signals: Signals
    line: CoordinatorLine
    coordinator: JobProcess  # for starting it again
    servers: ServerSide


class LauncherLoop:
    def __init__(self, job: Job, equipment: Equipment) -> None:
        """The first processes are started already."""
        self._job = job
        self._processes = equipment.processes
        self._screen = equipment.screen
        self._signals = equipment.signals
        self._line = equipment.line
        self._coordinator = equipment.coordinator
        self._servers = equipment.servers
        self._supervisor = Supervisor(job.config.workers, job.config.max_failures)
        self._spares = Spares(job, self._processes)
        self._has_steps = False  # spares are started only after the first step: they must not slow the start down
        self._laboratory = Laboratory(
            clauses.parse(job.config.chaos), seed=job.config.seed, processes=self._processes, line=self._line
        )
        self._running = {worker_name(worker): worker for worker in range(job.config.workers)}
        self._last: dict[int, tuple[str, ...]] = {}  # last lines of workers that ended
        self._unreported: list[AnyEvent] = []  # events that wait for the coordinator
        self._was_up = False  # the coordinator has answered once
        self._coordinator_runs = True
        self._finish: FinishJob | None = None

    def run(self) -> FinishJob:
        """Returns when the job is over and every process is gone."""
        self._line.open()
        while self._finish is None:
            self._wait()
            self._look_around()
        self._line.close()  # makes a coordinator that still runs end the record
        self._servers.cease()
        self._take(self._processes.stop(grace=self._finish.grace))
        return self._finish

    def last_lines(self, worker: int | None) -> tuple[str, ...]:
        return () if worker is None else self._last.get(worker, ())

    # Looking

    def _wait(self) -> None:
        due = [self._supervisor.deadline]
        due.append(self._servers.next_due)
        if not self._supervisor.is_ending:
            due += [self._laboratory.next_due, self._spares.next_due if self._has_steps else None]
        first = min((one for one in due if one is not None), default=math.inf)
        sources: tuple[Source, ...] = (*self._processes.sources, self._signals, self._line, *self._servers.sources)
        wait_for(sources, min(max(0.0, first - time.monotonic()), LOOK_SECONDS))

    def _look_around(self) -> None:
        for number in self._signals.take():
            self._decide(orders.Signalled(number))
        self._take(self._processes.poll())
        self._hear_of_machines()
        self._read_news()
        if self._screen.lost_reader():
            self._decide(orders.Signalled(signal.SIGPIPE))
        self._look_at_servers()
        self._screen.say_if_starting(self._job.config.progress, time.monotonic())
        self._decide(orders.TimePassed())
        if self._supervisor.is_ending:
            self._laboratory.cease()
            return
        now = time.monotonic()
        running = Running(frozenset(self._running.values()), self._servers.serving)
        self._laboratory.act(running, self._report, now)
        if self._has_steps:
            self._spares.refill(now)

    def _hear_of_machines(self) -> None:
        for news in self._processes.machine_news():
            if isinstance(news, NoMachines):
                self._decide(orders.MachinesGone(news.text))
            elif isinstance(news, Placed):
                self._report(placed(news))
            elif isinstance(news, MachinesLeave):
                self._decide(orders.MachinesLeaving(news.text))
            elif not self._supervisor.has_ended:
                self._screen.say(news.text)
                self._report(EngineSaid(text=news.text, is_problem=news.is_problem))

    def _look_at_servers(self) -> None:
        if self._supervisor.has_ended or self._finish is not None:
            self._servers.cease()
        seen = self._servers.look(time.monotonic())
        if seen.lines:
            self._screen.say(*seen.lines)
        for measured in seen.shown:
            self._screen.show(measured, time.time())
        for event in seen.events:
            self._report(event)
        if seen.failure:
            self._decide(orders.ServersFailed(seen.failure))

    def _take(self, happenings: tuple[ProcessNews, ...]) -> None:
        for happened in happenings:
            if happened.name == COORDINATOR:
                if isinstance(happened, Gone) and self._finish is None:
                    self._coordinator_exited(happened)
            elif self._spares.owns(happened.name):
                if isinstance(happened, LinesPrinted):
                    self._spares.printed(happened.name, happened.lines)
                elif isinstance(happened, Gone):
                    self._spares.exited(happened.name, time.monotonic())
            elif self._servers.owns(happened.name):
                self._servers.take(happened, time.monotonic())
            elif happened.name in self._running:
                self._from_worker(self._running[happened.name], happened)

    def _from_worker(self, worker: int, happened: ProcessNews) -> None:
        if isinstance(happened, LinesPrinted):
            if self._finish is None:
                self._screen.worker_lines(worker, happened.lines)
        elif isinstance(happened, Working):
            self._line.send(lambda client: client.process_working(worker))
        else:
            del self._running[happened.name]
            self._last[worker] = happened.last
            self._screen.worker_ended(worker)
            self._decide(orders.WorkerExited(worker, happened.code, happened.reason))

    # The coordinator

    def _read_news(self) -> None:
        for news in self._line.receive():
            match news:
                case Happened():
                    self._happened(news.event, news.time)
                case Ended() | Enlisted():
                    self._decide(news)
                case line.Connected():
                    self._was_up = True
                    self._catch_up()
                    self._decide(orders.CoordinatorBack())
                case line.Broke() if not self._supervisor.has_ended:
                    self._line.open()
                case line.NoAnswer() if not self._supervisor.has_ended:
                    self._no_answer(news.reason)
                case _:
                    pass

    def _happened(self, event: Event, at: float) -> None:
        self._screen.show(event, at)
        self._has_steps = self._has_steps or isinstance(event, StepsApplied)
        if isinstance(event, WorkerFailed):
            log_failure(self._job.run_dir, event)
        self._laboratory.observe(event, time.monotonic())
        self._decide(event)

    def _coordinator_exited(self, exited: Gone) -> None:
        self._coordinator_runs = False
        self._read_news()
        self._line.drop()
        is_own_end = exited.code >= 0
        if is_own_end and not self._supervisor.has_ended:
            self._read_record()
        self._decide(orders.CoordinatorExited(_how(exited), may_return=self._was_up or not is_own_end))

    def _no_answer(self, reason: str) -> None:
        """The coordinator's process has probably just ended: wait for its exit, which says more."""
        limit = time.monotonic() + EXIT_WAIT
        while self._coordinator_runs and (left := limit - time.monotonic()) > 0:
            wait_for(self._processes.sources, left)
            self._take(self._processes.poll())
        if self._coordinator_runs:
            self._read_record()
            self._decide(orders.CoordinatorExited(f"does not answer any more ({reason})", may_return=False))

    def _read_record(self) -> None:
        """A very short job may be over before the launcher could watch it: read how it went from its record."""
        with contextlib.suppress(OSError):
            for text in whole_lines(self._job.run_dir / EVENTS, self._job.record_start):
                try:
                    record = msgspec.json.decode(text, type=Record)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue  # the rest of a line that a crash of an earlier run cut short
                if self._line.is_news(record.time):
                    self._happened(record.event, record.time)
                if isinstance(record.event, JobEnded):
                    code = record.event.exit_code
                    error = next((kind.__name__ for kind in all_errors() if code and kind.exit_code == code), "")
                    self._decide(Ended(exit_code=code, error=error, text=record.event.reason))

    def _report(self, event: AnyEvent) -> None:
        """Add an event to the record, but not through a coordinator that is about to be killed: it would be lost."""
        is_its_end = isinstance(event, FaultInjected) and event.fault == "kill-coordinator"
        self._unreported.append(event)
        if self._line.is_up and not is_its_end:
            self._catch_up()

    def _catch_up(self) -> None:
        unreported, self._unreported = self._unreported, []

        def tell(client: WatcherClient) -> None:
            for event in unreported:
                client.report(event)

        self._line.send(tell)

    # Doing

    def _decide(self, fact: orders.Fact) -> None:
        for instruction in self._supervisor.handle(fact, time.monotonic()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: orders.Instruction) -> None:
        match instruction:
            case orders.TellExit(worker=worker, code=code, reason=reason):
                how = describe_exit(code, reason)
                self._line.send(lambda client: client.process_exited(worker, code, how, loss=reason))
            case orders.AskForNumber():
                self._line.send(lambda client: client.enlist())
            case orders.StartWorker():
                self._start_worker(instruction)
            case orders.RestartCoordinator():
                self._start_coordinator()
            case orders.KillCoordinator():
                self._processes.send_signal({COORDINATOR}, signal.SIGKILL)
            case orders.AskToStop(reason=reason, exit_code=exit_code):
                self._line.send(lambda client: client.request_stop(reason, exit_code=exit_code))
            case orders.InterruptWorkers():
                self._screen.hold()
                self._processes.send_signal(self._running.keys(), signal.SIGINT)
            case orders.Say():
                self._screen.say(instruction.text)
            case FinishJob():
                self._finish = instruction

    def _start_worker(self, order: orders.StartWorker) -> None:
        planned = worker_process(self._job, order.worker, place=order.place)
        is_spare = self._spares.go(planned, time.monotonic())
        try:
            if not is_spare:
                self._processes.start(planned)
        except ShoalError as error:
            self._screen.say(f"shoal: {error}")
            self._decide(orders.WorkerExited(order.worker, NOT_STARTED))
            return
        self._running[planned.name] = order.worker
        self._report(WorkerStarted(worker=order.worker, is_spare=is_spare, reason=order.reason))

    def _start_coordinator(self) -> None:
        try:
            self._processes.start(self._coordinator)
        except ShoalError as error:
            self._decide(orders.CoordinatorExited(f"ended, and {error}", may_return=False))
            return
        self._coordinator_runs = True
        self._line.open()


def _how(exited: Gone) -> str:
    """How the coordinator ended, with the last line that it printed."""
    said = next((f" ({text.strip()})" for text in reversed(exited.last) if text.strip()), "")
    return describe_exit(exited.code) + said
