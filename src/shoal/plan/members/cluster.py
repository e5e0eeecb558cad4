"""A simulated cluster: a schedule's job from its start to its end, with the faults that the schedule has.

Puts the simulated processes together around the live protocol and inflicts the schedule's faults on them. Not here:
which schedules there are (`fault_schedules`), what must be true (`invariants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from shoal import events
from shoal.events import AnyEvent, StepsApplied
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.decisions import Decision, EndDecided, Remembered, add_up
from shoal.membership.core.protocol import JobProgram
from shoal.plan.members.fault_schedules import Fault, FaultKind, Schedule
from shoal.plan.members.invariants import PROGRESS, History, Violation
from shoal.plan.members.launcher import Launcher
from shoal.plan.members.model import ToyStore, Trainer
from shoal.plan.members.reach_check import Reach
from shoal.plan.members.script import Script
from shoal.plan.members.simulated_coordinator import Coordinator
from shoal.plan.members.simulated_worker import SimulatedWorker
from shoal.plan.world.network import COORDINATOR, Network
from shoal.plan.world.virtual_time import VirtualTime

# A replay leaves these out: there are too many of them.
UNTOLD = (events.CheckpointPublished, events.CheckpointStarted, events.StepsApplied)


@dataclass(frozen=True)
class Parts:
    """The pieces under test; broken variants replace one of them."""

    core: Callable[..., MembershipCore] = MembershipCore
    script: type[Script] = Script
    trainer: Callable[..., Trainer] = Trainer
    remember: Callable[[list[Decision]], Remembered] = add_up


@dataclass(frozen=True)
class Outcome:
    """Figures of a job that finished as it should."""

    seconds: float
    generations: int
    steps: int  # on the way to the result
    applied: int  # steps, including those that were done again
    checkpoints: int
    restores: int


def simulate(schedule: Schedule, parts: Parts | None = None) -> Outcome:
    """Raises Violation if an invariant does not hold."""
    return Cluster(schedule, parts or Parts()).run()


class Cluster:
    def __init__(self, schedule: Schedule, parts: Parts) -> None:
        self.config = schedule.config
        self.pace = schedule.pace
        self.time = VirtualTime(schedule.seed)
        self.network = Network(self.time, patience=schedule.config.heartbeat_limit, host_of=schedule.host_of)
        self.history = History(schedule.task)
        self._reach = Reach(self.network.links, schedule.config)
        self.store = ToyStore()
        self.trainer = parts.trainer(schedule.task)
        self.decisions: list[Decision] = []
        self.events: list[tuple[float, AnyEvent]] = []
        self.suffered: list[tuple[float, Fault]] = []
        self.workers: dict[int, SimulatedWorker] = {}  # by number, including dead ones
        self._schedule = schedule
        self._parts = parts
        self._late = schedule.late
        self._exit_code: int | None = None
        self._coordinator = self._new_coordinator()
        self._launcher = Launcher(self, lambda: self._exit_code is not None)
        for number in range(schedule.config.workers - schedule.missing):
            self.time.after(self.time.between(0.0, 0.5), partial(self.start_worker, number))
        for fault in schedule.faults:
            self.time.after(fault.at, partial(self._suffer, fault))

    def run(self) -> Outcome:
        self.time.run(self._schedule.limit, lambda: self._exit_code is not None)
        if self._exit_code is None:
            raise Violation(PROGRESS, f"the job is not over after {self.time.now:.0f} s: {self._where()}")
        if self._exit_code != 0:
            ends = [decision for decision in self.decisions if isinstance(decision, EndDecided)]
            raise Violation(PROGRESS, f"the job failed: {ends[-1].text if ends else self._exit_code}")
        result = self.history.check_end()
        return Outcome(
            seconds=self.time.now,
            generations=len(self.history.generations),
            steps=result.step,
            applied=self.history.steps,
            checkpoints=self.history.publications,
            restores=self.history.restores,
        )

    def _where(self) -> str:
        alive = ", ".join(worker.where for worker in self.workers.values() if worker.process.is_alive)
        number = self.history.generations[-1].number if self.history.generations else 0
        return f"generation {number}; {alive or 'no worker'}"

    # What processes do

    def start_worker(self, number: int) -> None:
        if self._exit_code is None:
            self.workers[number] = SimulatedWorker(self, number, self._parts.script)

    def process_ended(self, worker: int, code: int) -> None:
        if self.time.chance(0.7):
            self._launcher.worker_ended(worker, code)
        self._replace(worker)

    def _replace(self, worker: int) -> None:
        """Somebody starts another in its place, unless it was done by then."""
        delay = self.time.between(0.1, 4.0)
        self.time.after(delay, lambda: None if self.history.is_accepted(worker) else self._launcher.enlist())

    def came_behind(self) -> None:
        """A worker is behind its loop; late faults count from the first time on."""
        late, self._late = self._late, ()
        for fault in late:
            self.time.after(fault.at, partial(self._suffer, fault))

    def happened(self, event: AnyEvent) -> None:
        if not isinstance(event, StepsApplied):
            self.events.append((self.time.now, event))
        self._reach.happened(event, self.time.now)

    def job_ended(self, exit_code: int) -> None:
        self._exit_code = exit_code

    def coordinator_crashed(self) -> None:
        self.time.after(self.time.between(0.05, 4.0), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        if not self._coordinator.process.is_alive:
            self._coordinator = self._new_coordinator()

    def _new_coordinator(self) -> Coordinator:
        remembered = self._parts.remember(self.decisions) if self.decisions else None
        core = self._parts.core(self.config, now=self.time.now, remembered=remembered, program=JobProgram(joins=True))
        return Coordinator(self, core)

    # What happens to them

    def _suffer(self, fault: Fault) -> None:  # noqa: PLR0912  one case for each kind
        self.suffered.append((self.time.now, fault))
        alive = [worker for worker in self.workers.values() if worker.process.is_alive]
        if not alive or self._exit_code is not None:
            return
        one = alive[int(fault.first * len(alive))]
        other = alive[int(fault.second * len(alive))]
        seconds, one_way = fault.seconds, fault.second < 0.5
        match fault.kind:
            case FaultKind.KILL:
                one.end(-9)
            case FaultKind.KILL_ALL:
                for worker in alive:
                    worker.end(-9)
            case FaultKind.VANISH:
                self._vanish(one)
            case FaultKind.STOP:
                one.process.freeze(seconds)
            case FaultKind.STOP_ALL:
                for worker in alive:
                    worker.process.freeze(seconds * self.time.between(0.8, 1.2))
            case FaultKind.SLOW:
                one.script.slowness = 20.0
                self.time.after(seconds, lambda: setattr(one.script, "slowness", 1.0))
            case FaultKind.HAND_OVER:
                one.script.is_leaving = True
            case FaultKind.HANG:
                one.script.hangs_for = 2 * seconds
            case FaultKind.RAISE:
                one.script.is_raising = True
            case FaultKind.CUT:
                self._cut(one.number, other.number, seconds)
            case FaultKind.CUT_ONE_WAY:
                self.network.links.cut(one.number, other.number, seconds)
            case FaultKind.CUT_HOSTS | FaultKind.CUT_HOSTS_ONE_WAY:
                self._cut_hosts(one.number, other.number, fault)
            case FaultKind.CUT_OFF:
                self._cut(one.number, COORDINATOR, seconds)
            case FaultKind.CUT_OFF_ONE_WAY:
                link = (one.number, COORDINATOR) if one_way else (COORDINATOR, one.number)
                self.network.links.cut(*link, seconds)
            case FaultKind.SPLIT:
                self._split(alive, fault)
            case FaultKind.RESET:
                self.network.reset(one.number, other.number)
            case FaultKind.RESET_OFF:
                self.network.reset(one.number, COORDINATOR)
            case _:
                self._suffer_everywhere(fault)

    def _suffer_everywhere(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.CRASH:
                self._coordinator.crash()
            case FaultKind.CRASH_DECIDING:
                self._coordinator.is_doomed = True
            case FaultKind.LOSSY:
                self.network.loss = 0.01
                self.time.after(fault.seconds, lambda: setattr(self.network, "loss", 0.0))
            case FaultKind.LAGGING:
                self.network.slowness = 60.0
                self.time.after(fault.seconds, lambda: setattr(self.network, "slowness", 1.0))
            case FaultKind.JOIN:
                self._launcher.enlist()

    def _vanish(self, worker: SimulatedWorker) -> None:
        worker.process.die()
        self.network.machine_died(worker.number)
        self._replace(worker.number)

    def _cut(self, one: int, other: int, seconds: float) -> None:
        self.network.links.cut(one, other, seconds)
        self.network.links.cut(other, one, seconds)

    def _cut_hosts(self, one: int, other: int, fault: Fault) -> None:
        here, there = self._schedule.host_of(one), self._schedule.host_of(other)
        if here != there:
            self.network.links.cut(here, there, fault.seconds, of_hosts=True)
            if fault.kind is FaultKind.CUT_HOSTS:
                self.network.links.cut(there, here, fault.seconds, of_hosts=True)

    def _split(self, alive: list[SimulatedWorker], fault: Fault) -> None:
        count = 1 + int(fault.second * len(alive))
        away = [worker.number for worker in alive[:count]]
        rest = [worker.number for worker in alive[count:]]
        for one in away:
            for other in (*rest, COORDINATOR):
                self._cut(one, other, fault.seconds)


def how_to_replay(seed: int) -> str:
    return f"shoal simulate --replay {seed}"


def replay(schedule: Schedule, parts: Parts | None = None) -> Iterator[str]:
    """Lines for people; the last one says how the job ended. Then raises Violation if an invariant does not hold."""
    config = schedule.config
    hosts = ", ".join(str(schedule.host_of(worker)) for worker in range(config.workers))
    yield (
        f"schedule {schedule.seed}: {config.workers} workers on hosts {hosts}, at least {config.fewest}, "
        f"a checkpoint every {schedule.pace.checkpoint_every} steps, {len(schedule.faults)} faults, "
        f"{len(schedule.late)} more behind the loop"
    )
    cluster = Cluster(schedule, parts or Parts())
    violation: Violation | None = None
    last = ""
    try:
        outcome = cluster.run()
        last = (
            f"finished after {outcome.seconds:.1f} s: {outcome.steps} steps ({outcome.applied} applied), "
            f"{outcome.generations} generations, {outcome.checkpoints} checkpoints, {outcome.restores} restores"
        )
    except Violation as found:
        violation, last = found, f"NOT TRUE: {found}"
    happened = [(time, f"fault: {fault.kind.value} ({fault.seconds:.1f} s)") for time, fault in cluster.suffered]
    happened += [
        (time, f"{type(event).__struct_config__.tag}: {_text(event)}")
        for time, event in cluster.events
        if not isinstance(event, UNTOLD)
    ]
    for time, text in sorted(happened, key=lambda pair: pair[0]):
        yield f"{time:8.3f} s  {text}"
    yield last
    if violation is not None:
        raise violation


def _text(event: events.AnyEvent) -> str:
    worker = getattr(event, "worker", None)
    who = "" if worker is None else f"worker {worker}"
    number = getattr(event, "generation", None)
    which = "" if number is None else f"generation {number}"
    return ", ".join(part for part in (which, who, getattr(event, "reason", "")) if part)
