"""Predicts how much a planned cluster would get done: the live membership core with thousands of virtual members.

Members are mere numbers and move in lockstep: they train, notice a failure, report, wait for the core's next
generation, connect, copy the state and train on. The core makes every decision. Times without a failure are skipped,
and the core's clock stands still in them. Not here: single messages that are lost or late (`cluster`); assumptions
(`cluster_plan`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shoal.job_config import JobConfig
from shoal.membership.core.core import TICK, MembershipCore
from shoal.membership.core.protocol import Arrived, Closed, End, Input, Send
from shoal.membership.core.protocol import Tick as TickInput
from shoal.plan.cluster_plan import Assumptions, ClusterPlan
from shoal.transport.mesh.first_peers import first_peers
from shoal.values import Address, Generation
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    Ended,
    Enlist,
    Enlisted,
    ExchangeBroken,
    Formed,
    Heartbeat,
    Join,
    ProcessExited,
    Ready,
    RegroupWish,
    Watch,
)

WATCHER = 1  # the client that starts workers and reports how they ended
LONGEST_TICK = (
    0.5  # seconds that the core's clock may move between two inputs; a longer step would look like a stall to it
)
SLOW_TICK = 0.4  # seconds between two ticks while nothing but time passes
BEAT_ROUND = 2.0  # seconds between two rounds of heartbeats while members wait for the core

CAUSES = {
    "noticing": "until failures were noticed",
    "regrouping": "forming generations and connecting",
    "copying": "copying the state to newcomers, or loading a checkpoint",
    "redone": "steps that had to be done again",
    "missing": "fewer nodes than planned, until replacements came",
    "waiting": "too few nodes to train",
    "checkpoints": "copies of the state for checkpoints",
}


@dataclass
class Prediction:
    """The result, in seconds of the whole cluster's time."""

    seconds: float = 0.0
    useful: float = 0.0  # work that is in the result
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    failures: int = 0
    generations: int = 0
    newcomers: int = 0
    restores: int = 0
    end: str = ""  # why the job ended before its time; empty when it did not

    @property
    def goodput(self) -> float:
        return self.useful / self.seconds if self.seconds else 1.0


def predict(
    plan: ClusterPlan, assumed: Assumptions | None = None, progress: Callable[[float], None] | None = None
) -> Prediction:
    """`progress` is called now and then with the share of the time that is done."""
    return _Simulation(plan, assumed or Assumptions()).run(progress or (lambda _: None))


class _Simulation:
    def __init__(self, plan: ClusterPlan, assumed: Assumptions) -> None:
        self._plan = plan
        self._assumed = assumed
        self._random = Random(plan.seed)
        self._result = Prediction()
        self._now = 0.0
        self._count = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        config = JobConfig(workers=plan.nodes, heartbeat_limit=assumed.heartbeat_limit, max_failures=10**9)
        self._core = MembershipCore(config, now=0.0)
        self._core_now = 0.0
        self._fed = 0.0  # when the core last got anything, by the simulation's clock
        self._handled = 0  # messages since the last generation was formed
        self._live: set[int] = set()  # workers whose process is there
        self._client = 1  # the newest connection
        self._clients: dict[int, int] = {}  # by worker
        self._generation: Generation | None = None
        self._members: list[int] = []  # living members of the generation
        self._holders: set[int] = set()  # workers that have the job's state
        self._phase = "waiting"  # one of the causes, or "training"
        self._phase_number = 0  # goes up with every change, which cancels what was planned before
        self._since = 0.0  # when the phase began
        self._work = 0.0  # done and applied, in seconds of the whole cluster
        self._saved = 0.0  # work that is in the newest checkpoint
        self._next_save = plan.checkpoint_every
        self._spares = plan.spares
        self._wish = False
        self._is_awaited = False  # the core has something to decide; otherwise its clock stands still
        self._is_ticking = False
        self._over = False

    def run(self, progress: Callable[[float], None]) -> Prediction:
        self._start()
        while self._queue and not self._over and self._queue[0][0] <= self._plan.seconds:
            self._now, _, action = heapq.heappop(self._queue)
            action()
            progress(self._now / self._plan.seconds)
        self._enter_phase("waiting" if self._over else self._phase)
        self._now = self._plan.seconds  # after an early end, the rest of the time is lost
        self._enter_phase(self._phase)
        self._result.seconds = self._plan.seconds
        self._result.useful = self._work
        return self._result

    def _start(self) -> None:
        self._feed_message(WATCHER, Watch(version=PROTOCOL_VERSION))
        for worker in range(self._plan.nodes):
            self._join(worker)
        for worker in range(self._plan.nodes):
            self._feed_message(self._clients[worker], Ready(generation=0))
        self._wait_for_core()

    # Time

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self._now + seconds, self._count, action))

    def _after_in_phase(self, seconds: float, action: Callable[[], None]) -> None:
        """Unless something else happens first."""
        number = self._phase_number
        self._after(seconds, lambda: action() if self._phase_number == number else None)

    def _enter_phase(self, phase: str) -> None:
        """Book the time since the last change under the phase that ends."""
        spent = self._now - self._since
        if self._phase == "training":
            self._settle_training(spent)
        else:
            self._result.lost[self._phase] += spent
        self._phase, self._since = phase, self._now
        self._phase_number += 1

    def _settle_training(self, spent: float) -> None:
        rate = self._rate
        step = self._plan.step / rate
        whole = math.floor(spent / step + 1e-6) * step
        saves = self._save_within(whole)
        self._work += (whole - saves) * rate
        self._saved = min(self._saved, self._work)
        self._result.lost["checkpoints"] += saves
        self._result.lost["missing"] += (whole - saves) * (1 - rate)
        self._result.lost["redone"] += spent - whole

    def _save_within(self, whole: float) -> float:
        """Make the checkpoints that are due within that much training; returns the seconds that they took."""
        count = 0
        while (at := max(self._next_save, self._since)) <= self._since + whole:
            count += 1
            self._saved = self._work + (at - self._since) * self._rate
            self._next_save = at + self._plan.checkpoint_every
        return min(whole, count * self._assumed.snapshot_seconds(self._plan))

    # Workers come and go

    def _join(self, worker: int) -> None:
        self._client += 1
        self._clients[worker] = self._client
        self._live.add(worker)
        self._feed_message(
            self._client,
            Join(
                version=PROTOCOL_VERSION,
                worker=worker,
                host=f"node-{worker}",
                process=1,
                address=Address(f"node-{worker}", 7000),
            ),
        )
        self._after(self._random.expovariate(1 / self._plan.mtbf), lambda: self._fail(worker))

    def _fail(self, worker: int) -> None:
        if worker not in self._live:
            return
        self._result.failures += 1
        is_silent = self._random.random() < self._assumed.silent_share
        # Let the others be heard now: from here on this worker is silent, and silence is measured against the others.
        self._beat(self._live if is_silent else {worker})
        self._live.discard(worker)
        self._holders.discard(worker)
        self._replace()
        notice = self._assumed.heartbeat_limit if is_silent else self._assumed.notice
        if worker in self._members:
            self._members.remove(worker)
            if self._phase not in ("noticing", "waiting"):
                self._enter_phase("noticing")
                self._after_in_phase(notice, self._report_broken)
            self._wait_for_core()
        if not is_silent:
            client = self._clients[worker]
            self._after(self._assumed.notice, lambda: self._feed(Closed(client)))
            exited = ProcessExited(worker=worker, code=-9, reason="simulated")
            self._after(self._assumed.notice, lambda: self._feed_message(WATCHER, exited))

    def _replace(self) -> None:
        if self._spares > 0:
            self._spares -= 1
            self._after(self._assumed.spare_start, lambda: self._feed_message(WATCHER, Enlist()))
            self._after(self._plan.restart, self._refill)
        else:
            self._after(self._plan.restart, lambda: self._feed_message(WATCHER, Enlist()))

    def _refill(self) -> None:
        self._spares += 1

    def _come(self, worker: int) -> None:
        self._result.newcomers += 1
        self._join(worker)
        number = 0 if self._generation is None else self._generation.number
        self._feed_message(self._clients[worker], Ready(generation=number))

    # The members in lockstep

    def _report_broken(self) -> None:
        self._report(is_planned=False)

    def _report(self, *, is_planned: bool) -> None:
        """All members leave their group and report it."""
        assert self._generation is not None
        self._enter_phase("regrouping" if self._members else "waiting")
        number = self._generation.number
        for worker in tuple(self._members):
            report = ExchangeBroken(
                generation=number,
                step=self._step,
                operation="all-reduce of gradients",
                peer=None,
                reason="simulated",
                holds=number if worker in self._holders else 0,
                is_planned=is_planned,
            )
            self._feed_message(self._clients[worker], report)
        self._wait_for_core()

    @property
    def _step(self) -> int:
        """Applied steps, including those of the present phase of training."""
        running = (self._now - self._since) * self._rate if self._phase == "training" else 0.0
        return int((self._work + running) / self._plan.step + 1e-6)

    @property
    def _rate(self) -> float:
        """Work per second, as a part of what all nodes do."""
        return 1.0 if self._generation is None else self._generation.size / self._plan.nodes

    def _formed(self, generation: Generation) -> None:
        if self._generation is not None and generation.number <= self._generation.number:
            return
        if self._phase == "training":  # the members had not yet missed the lost worker
            self._enter_phase("regrouping")
        self._generation = generation
        self._result.generations += 1
        self._members = [member.worker for member in generation.members if member.worker in self._live]
        self._wish = False
        if not self._holders & set(generation.holders):
            self._restore()
        cost, self._handled = self._handled * self._assumed.message, 0
        connecting = len(first_peers(generation.size // 4, generation.size)) * self._assumed.connection
        comparing = 2 * math.ceil(math.log2(max(2, generation.size))) * self._assumed.hop
        self._enter_phase("regrouping")
        self._is_awaited = len(self._members) < generation.size
        if self._is_awaited:  # a worker has died since: connecting fails
            self._after_in_phase(self._assumed.heartbeat_limit, self._report_broken)
        else:
            self._after_in_phase(cost + connecting + comparing, self._copy)

    def _restore(self) -> None:
        if self._work > 0:
            self._result.restores += 1
            self._result.lost["redone"] += self._work - self._saved
            self._work = self._saved
        self._holders = set()

    def _copy(self) -> None:
        everybody = self._holders >= set(self._members)
        self._enter_phase("copying")
        is_first = self._work == 0 and not self._holders
        self._after_in_phase(0.0 if everybody or is_first else self._plan.copy_seconds, self._train)

    def _train(self) -> None:
        self._holders |= set(self._members)
        self._enter_phase("training")
        if self._wish:
            self._plan_regrouping()

    def _plan_regrouping(self) -> None:
        """At the end of the step that is under way."""
        step = self._plan.step / self._rate
        spent = self._now - self._since
        left = step - spent % step
        self._after_in_phase(left, lambda: self._report(is_planned=True))

    # The core

    def _feed_message(self, client: int, message: ClientMessage) -> None:
        self._handled += 1
        self._feed(Arrived(client, message))

    def _feed(self, happened: Input) -> None:
        self._core_now += min(LONGEST_TICK, self._now - self._fed)
        self._fed = self._now
        for instruction in self._core.handle(happened, self._core_now):
            if isinstance(instruction, Send):
                self._take_in(instruction)
            elif isinstance(instruction, End):
                self._over = True

    def _take_in(self, sent: Send) -> None:
        message = sent.message
        if isinstance(message, Formed):
            self._after(0.0, lambda: self._formed(message.generation))
        elif isinstance(message, RegroupWish) and not self._wish:
            self._wish = True
            if self._phase == "training":
                self._plan_regrouping()
        elif isinstance(message, Enlisted):
            self._come(message.worker)
        elif isinstance(message, Ended):
            self._result.end = message.text

    def _wait_for_core(self) -> None:
        """Time passes for the core only while it has something to decide."""
        self._is_awaited = True
        if not self._is_ticking:
            self._is_ticking = True
            self._after(TICK, lambda: self._tick(0.0))

    def _tick(self, unheard: float) -> None:
        self._feed(TickInput())
        if unheard >= BEAT_ROUND:
            self._beat(self._live)
            unheard = 0.0
        self._is_ticking = self._is_awaited
        if self._is_ticking:
            # Before a silent failure is noticed there is nothing to decide for seconds.
            pause = SLOW_TICK if self._phase == "noticing" else TICK
            self._after(pause, lambda: self._tick(unheard + pause))

    def _beat(self, workers: set[int]) -> None:
        number = 0 if self._generation is None else self._generation.number
        beat = Heartbeat(generation=number, step=self._step, operation="forward and backward")
        for worker in tuple(workers):
            self._feed(Arrived(self._clients[worker], beat))
