"""The process that is the Ray cluster's client for a launcher: `python -P -m shoal.engines.ray.room_keeper`.

It asks for placement groups, starts an agent in each bundle, and reports in lines on its standard output
(`room_messages`). It is a process of its own because Ray's client may wait for ever for a cluster that does not answer,
ends its whole process when the cluster is lost, and prints what it likes. This process ends when its standard input
closes, because the launcher is done or dead. Ray then frees the room and ends the actors.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.engines.equipment import cores
from shoal.engines.nodes.agent_programs import NO_SHOAL, last_line
from shoal.engines.nodes.provider import WayIn
from shoal.engines.ray import room_messages as messages
from shoal.engines.ray import texts
from shoal.engines.ray.agent_actor import AgentActor
from shoal.engines.ray.room_messages import LONGEST_LINE, RoomWish, decode_open, decode_room, line_of, shortened
from shoal.engines.ray.room_slots import RoomSlots
from shoal.engines.waiting import wait_for

LOOK_SECONDS = 1  # seconds between two checks for room; Ray accepts whole seconds only
END_SECONDS = 10.0  # that leaving the cluster may take
OWN_HOST = "127.0.0.1"  # of a cluster that is started here
OWN_MEMORY = 100 * 1024 * 1024  # bytes of its object store, which nobody needs
CPU, GPU, MEMORY = "CPU", "GPU", "memory"  # Ray's names
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}

Tell = Callable[[messages.KeeperMessage], None]


class GivesUp(Exception):
    """With the line that the user is told."""


class LauncherLines:
    """What the launcher says on standard input; a thread reads it, since Ray's calls may block for ever."""

    def __init__(self) -> None:
        self.is_gone = False
        self._lines: list[bytes] = []
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)  # rung when something has happened, also in Ray
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def ring(self, _: object = None) -> None:
        os.eventfd_write(self._bell, 1)

    def wait(self, seconds: float | None) -> None:
        if wait_for([self], seconds):
            os.eventfd_read(self._bell)

    def fileno(self) -> int:
        return self._bell

    def line(self) -> bytes | None:
        """The next line. None: the launcher is gone."""
        while not self._lines and not self.is_gone:
            self.wait(None)
        return self._lines.pop(0) if self._lines else None

    def _read(self) -> None:
        read = b""
        while (data := os.read(0, 65536)) and len(read) < LONGEST_LINE:
            *whole, read = (read + data).split(b"\n")
            self._lines += whole
            self.ring()
        self.is_gone = True
        self.ring()
        time.sleep(END_SECONDS)
        os._exit(1)  # Ray hangs; without this process its cluster ends what is left


class RoomKeeper:
    def __init__(self, room: RoomWish, launcher: LauncherLines, tell: Tell) -> None:
        self._room = room
        self._launcher = launcher
        self._tell = tell
        self._places: list[tuple[PlacementGroup, int]] = []  # by slot: its group and the bundle in it
        self._slots = RoomSlots(room.most)
        self._to_begin = set(range(room.fewest))  # slots of first workers in which no agent was started yet
        self._actors: dict[int, Any] = {}  # by slot
        self._answers: dict[int, Future[Any]] = {}  # by slot: what its actor was asked last
        self._running: set[int] = (
            set()
        )  # slots whose actor runs an agent; its pending answer will say how the agent ended

    def connect(self) -> None:
        if self._room.cluster:
            ray.init(address=self._room.cluster, **QUIET)
            return
        enough = max(float(cores()), self._room.most * self._room.bundle.get(CPU, 0.0))
        try:
            ray.init(
                address="local",
                num_cpus=int(enough),
                include_dashboard=False,
                object_store_memory=OWN_MEMORY,
                _node_ip_address=OWN_HOST,
                **QUIET,
            )
        except Exception as error:  # whatever Ray cannot do
            raise GivesUp(texts.ray_not_started(last_line(str(error).splitlines()))) from None

    def reserve(self) -> None:
        """Ask for all room, and wait for that of the first workers. Raises `GivesUp` if it takes too long."""
        room = self._room
        first = placement_group([room.bundle] * room.fewest, strategy="PACK")
        self._places = [(first, number) for number in range(room.fewest)]
        limit = time.monotonic() + room.wait
        while not first.wait(LOOK_SECONDS) and not self._launcher.is_gone:
            if time.monotonic() > limit:
                raise GivesUp(self._no_room())
        self._places += [(placement_group([room.bundle]), 0) for _ in range(room.most - room.fewest)]

    def _no_room(self) -> str:
        room, free = self._room, ray.available_resources()
        there = {name: free.get(name, 0.0) for name in room.bundle}
        nodes = sum(node["Alive"] for node in ray.nodes())
        return texts.no_ray_room(texts.ray_room(room.fewest, room.bundle), there, nodes, room.wait)

    def run(self, way_in: WayIn) -> None:
        """Keep an agent in each slot until the launcher is gone."""
        while not self._launcher.is_gone:
            for slot in self._slots.due(time.monotonic()):
                self._fill(slot)
            due = self._slots.next_due
            self._launcher.wait(None if due is None else max(0.0, due - time.monotonic()))
            for slot in [slot for slot, answer in self._answers.items() if answer.done()]:
                self._answered(slot, self._answers.pop(slot), way_in)

    def _fill(self, slot: int) -> None:
        """Start an actor. Ray lets it wait as long as there is no room."""
        group, bundle = self._places[slot]
        wants = self._room.bundle
        actor = ray.remote(AgentActor).options(
            num_cpus=wants.get(CPU, 0),
            num_gpus=wants.get(GPU, 0),
            memory=wants.get(MEMORY),
            resources={name: number for name, number in wants.items() if name not in (CPU, GPU, MEMORY)},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        )
        self._actors[slot] = actor.remote()
        self._await(slot, self._actors[slot].node_id.remote())

    def _await(self, slot: int, answer: Any) -> None:
        self._answers[slot] = answer.future()
        self._answers[slot].add_done_callback(self._launcher.ring)

    def _answered(self, slot: int, answer: Future[Any], way_in: WayIn) -> None:
        if (error := answer.exception()) is not None:
            self._ended(slot, None, str(error).splitlines())
        elif slot in self._running:
            self._ended(slot, *answer.result())
        else:
            node = self._slots.placed(slot, answer.result(), time.monotonic())
            self._tell(messages.AgentBegan(node=node, is_first=slot in self._to_begin))
            self._to_begin.discard(slot)
            self._running.add(slot)
            threads = max(1, int(self._room.bundle.get(CPU, 0)))
            self._await(slot, self._actors[slot].run.remote(way_in.errand_line(node, slots=1), threads))

    def _ended(self, slot: int, code: int | None, lines: list[str]) -> None:
        self._running.discard(slot)
        with contextlib.suppress(Exception):  # Ray may know that the actor is dead
            ray.kill(self._actors.pop(slot))
        if name := self._slots.ended(slot, time.monotonic()):
            self._tell(messages.AgentEnded(node=name, code=code, lines=shortened(lines)))
        elif slot in self._to_begin:
            has_none = any(NO_SHOAL.search(line) for line in lines)
            raise GivesUp(texts.NO_SHOAL_IN_RAY if has_none else texts.no_ray_agent(last_line(lines)))


def keep(launcher: LauncherLines, tell: Tell) -> None:
    if (line := launcher.line()) is None:
        return
    keeper = RoomKeeper(decode_room(line), launcher, tell)
    keeper.connect()
    tell(messages.ClusterReached())
    keeper.reserve()
    tell(messages.RoomReserved())
    if (line := launcher.line()) is not None:
        opened = decode_open(line)
        keeper.run(WayIn(opened.address, opened.token))


def main() -> int:
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what Ray prints goes where errors go

    def tell(message: messages.KeeperMessage) -> None:
        output.write(line_of(message))

    try:
        keep(LauncherLines(), tell)
    except (GivesUp, msgspec.MsgspecError) as error:
        tell(messages.KeeperFailed(text=str(error)))
    except BrokenPipeError:  # the launcher is gone
        pass
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
