"""A simulated coordinator: a process around the live membership core that remembers only what it wrote down.

Stands for `membership.coordinator` with its decision file and its publisher's thread: carries out the core's
instructions in order, feeds it connections and time. A crash loses everything but the decisions and the store, at any
point, also between two instructions. Not here: any decision (`membership.core.core`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shoal import events
from shoal.job_config import JobConfig
from shoal.membership.core.core import TICK, MembershipCore
from shoal.membership.core.decisions import Decision, GenerationDecided, MembersReleased, Remembered
from shoal.membership.core.protocol import (
    Arrived,
    Close,
    Closed,
    DiscardCheckpoint,
    End,
    Input,
    Instruction,
    Publish,
    Published,
    PublishFailed,
    RecordEvent,
    Send,
    Tick,
    WriteDecision,
)
from shoal.membership.publisher import PublishOutcome, PublishRequest
from shoal.plan.members.invariants import History
from shoal.plan.members.model import ToyStore
from shoal.plan.world import network
from shoal.plan.world.network import COORDINATOR, Network
from shoal.plan.world.virtual_time import Process, VirtualTime
from shoal.wire.messages import Formed, decode_client

MakeCore = Callable[[JobConfig, float, Remembered | None], MembershipCore]


class CoordinatorSurroundings(Protocol):
    time: VirtualTime
    network: Network
    history: History
    store: ToyStore
    config: JobConfig
    decisions: list[Decision]

    def happened(self, event: events.AnyEvent) -> None: ...

    def job_ended(self, exit_code: int) -> None: ...

    def coordinator_crashed(self) -> None: ...


class Coordinator:
    def __init__(self, around: CoordinatorSurroundings, core: MembershipCore) -> None:
        self.process = Process(around.time)
        self.is_doomed = False  # it crashes at its next decision, before or after writing it down
        self._around = around
        self._core = core
        self._clients: dict[int, network.StreamEnd] = {}
        self._count = 0
        self._inputs: list[Input] = []
        self._is_handling = False
        around.network.listen(COORDINATOR, self.process, self._accept)
        self._tick()

    def crash(self) -> None:
        if self.process.is_alive:
            self.process.die()
            self._around.network.process_died(COORDINATOR)
            self._around.coordinator_crashed()

    # Connections and time

    def _accept(self, end: network.StreamEnd, hello: object) -> None:  # noqa: ARG002  nothing is said before the first message
        self._count += 1
        client = self._count
        self._clients[client] = end
        end.listen(lambda data: self._received(client, data), lambda: self._closed(client))

    def _received(self, client: int, data: bytes) -> None:
        if client in self._clients:
            self._feed(Arrived(client, decode_client(data[4:])))

    def _closed(self, client: int) -> None:
        if self._clients.pop(client, None) is not None:
            self._feed(Closed(client))

    def _tick(self) -> None:
        self._feed(Tick())
        self.process.after(TICK, self._tick)

    # The core and its instructions

    def _feed(self, happened: Input) -> None:
        self._inputs.append(happened)
        if self._is_handling:
            return
        self._is_handling = True
        while self._inputs:
            for instruction in self._core.handle(self._inputs.pop(0), self._around.time.now):
                self._carry_out(instruction)
                if not self.process.is_alive:
                    return
        self._is_handling = False

    def _carry_out(self, instruction: Instruction) -> None:
        around = self._around
        match instruction:
            case Send():
                if isinstance(instruction.message, Formed):
                    around.history.told(instruction.message.generation)
                for client in instruction.clients:
                    if client in self._clients:
                        self._clients[client].send(instruction.message)
            case WriteDecision():
                self._write_down(instruction.decision)
            case RecordEvent():
                self._observe(instruction.event)
            case Close():
                if (end := self._clients.pop(instruction.client, None)) is not None:
                    end.close()
            case Publish():
                self._publish(instruction.request)
            case DiscardCheckpoint():
                if instruction.checkpoint not in around.store.published:
                    around.store.parts.pop(instruction.checkpoint, None)
            case End():
                around.job_ended(instruction.exit_code)

    def _write_down(self, decision: Decision) -> None:
        around = self._around
        if self.is_doomed and around.time.chance(0.5):
            self.crash()
            return
        around.decisions.append(decision)
        if isinstance(decision, GenerationDecided):
            around.history.decided(decision.generation)
        if isinstance(decision, MembersReleased):  # the events that follow may be lost, and the decision stands
            for worker in decision.finished:
                around.history.accepted(worker)
        if self.is_doomed:
            self.crash()

    def _observe(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.WorkerLeft) and not event.is_handover:
            self._around.history.accepted(event.worker)
        self._around.happened(event)

    # The publisher's thread

    def _publish(self, request: PublishRequest) -> None:
        around = self._around
        around.history.asked_to_publish(request.checkpoint)
        generation = around.history.generations[-1].number

        def publish() -> None:
            parts = around.store.parts.get(request.checkpoint, {})
            missing = [file for file in request.files if file not in parts]
            answer: Published | PublishFailed
            if missing:
                answer = PublishFailed(request.checkpoint, f"{missing[0]} is not there")
            else:
                states = [parts[file] for file in request.files]
                state = around.history.published(request.checkpoint, generation, states)
                around.store.published[request.checkpoint] = state
                answer = Published(request.checkpoint, PublishOutcome(size=len(states), removed=()))
            self.process.after(around.time.between(0.0, 0.05), lambda: self._feed(answer))

        self.process.after(around.time.between(0.0, 0.3), publish)
