"""The coordinator's process around the core: whatever is told rests on decisions that are on disk."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from shoal.events import JobStarted
from shoal.job_config import JobConfig
from shoal.membership.coordinator import CoordinatorSettings, _Coordinator
from shoal.membership.core.decisions import Decision, NumberGiven
from shoal.membership.core.protocol import Arrived, Closed, Input, Instruction, Send, WriteDecision
from shoal.wire.messages import Enlist, Enlisted, decode_coordinator

SLOW, OTHER = 1, 2  # clients


class Disk:
    """A ledger that says what is on it."""

    def __init__(self) -> None:
        self.waiting: list[Decision] = []
        self.trouble = None

    def add(self, decision: Decision) -> None:
        self.waiting.append(decision)

    def flush(self) -> bool:
        self.waiting.clear()
        return True


class Decider:
    """A core that tells two clients something, and decides something about whoever is lost by that."""

    def handle(self, happened: Input, _now: float) -> tuple[Instruction, ...]:
        if isinstance(happened, Closed):
            return WriteDecision(NumberGiven(2)), Send((OTHER,), Enlisted(worker=2))
        return WriteDecision(NumberGiven(1)), Send((SLOW,), Enlisted(worker=1)), Send((OTHER,), Enlisted(worker=1))


class Lines:
    """Connections of which one is given up because its client does not read."""

    def __init__(self, coordinator: _Coordinator, disk: Disk) -> None:
        self.told: list[tuple[int, int, bool]] = []  # client, number, and whether the decision was on disk
        self._coordinator = coordinator
        self._disk = disk

    def send(self, client: int, data: bytes) -> None:
        message = decode_coordinator(data[4:])
        assert isinstance(message, Enlisted)
        self.told.append((client, message.worker, NumberGiven(message.worker) not in self._disk.waiting))
        if client == SLOW:
            self._coordinator._closed(SLOW, "it has not read")


def test_decisions_about_a_client_that_is_lost_by_telling_it_are_on_disk_first() -> None:
    async def scene() -> list[tuple[int, int, bool]]:
        with socket.socket() as listener:
            started = JobStarted(script="", arguments=(), workers=2, strategy="", schedule="", codec="", seed=0)
            coordinator = _Coordinator(
                CoordinatorSettings(listener=listener, token="", config=JobConfig(), run_dir=None, started=started)
            )
            disk = Disk()
            lines = Lines(coordinator, disk)
            parts: dict[str, Any] = {"_ledger": disk, "_connections": lines, "_core": Decider()}
            for name, part in parts.items():
                setattr(coordinator, name, part)
            coordinator._loop = asyncio.get_running_loop()
            coordinator._over = coordinator._loop.create_future()
            coordinator._feed(Arrived(OTHER, Enlist()))
            await asyncio.sleep(0.05)
            return lines.told

    assert asyncio.run(scene()) == [(SLOW, 1, True), (OTHER, 1, True), (OTHER, 2, True)]
