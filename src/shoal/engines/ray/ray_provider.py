"""Agents in a Ray cluster: one for each worker that has room there, started by the keeper of that room."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Sequence

from shoal.engines import texts as engine_texts
from shoal.engines.nodes.agent_programs import last_line
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, NodeGone, Provider, WayIn
from shoal.engines.ray import texts
from shoal.engines.ray.held_room import HeldRoom
from shoal.engines.ray.room_messages import AgentBegan, AgentEnded, KeeperFailed, OpenRoom
from shoal.engines.waiting import wait_for
from shoal.errors import UsageError

START_SECONDS = 60.0  # that Ray may take to start processes where there is room


class RayProvider(Provider):
    def __init__(self, held: HeldRoom, first: int) -> None:
        """`held` has room for so many first workers, and is closed with the provider."""
        self._held = held
        self._first = first
        self._expected: list[str] = []  # nodes of the first workers
        self._running: list[str] = []  # nodes whose agents have not ended
        self._gone: list[NodeGone] = []
        self._failed = ""  # what the keeper said when it gave up
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung if `poll` has something to return
        self._selector = selectors.EpollSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._selector.register(held, selectors.EVENT_READ)
        self._is_closed = False

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        self._held.open(OpenRoom(address=way_in.address, token=way_in.token))
        limit = time.monotonic() + START_SECONDS
        while len(self._expected) < self._first and not self._failed:
            if not wait_for([self._held], max(0.0, limit - time.monotonic())):
                raise UsageError(texts.no_ray_agent(texts.nothing_said(START_SECONDS)))
            self._hear()
        if self._failed:
            raise UsageError(self._failed)
        return tuple(self._expected)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[NodeGone, ...]:
        for key, _ in self._selector.select(0):
            if key.fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            else:
                self._hear()
        gone, self._gone = self._gone, []
        return tuple(gone)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._selector.close()
        os.close(self._bell)
        self._held.close()

    def _hear(self) -> None:
        if (said := self._held.take()) is None:
            self._selector.unregister(self._held)
            self._failed = self._failed or texts.ray_keeper_ended(self._held.words())
            for node in self._running:
                self._lose(NodeGone(node, self._failed))
            self._running = []
            return
        for message in said:
            match message:
                case AgentBegan(node=node, is_first=is_first):
                    self._running.append(node)
                    self._expected += [node] * is_first
                case AgentEnded(node=node, code=code, lines=lines):
                    self._running.remove(node)
                    self._lose(NodeGone(node, why_no_agent(node, code, lines), why_lost(code, lines)))
                case KeeperFailed(text=text):
                    self._failed = text
                case _:
                    pass

    def _lose(self, gone: NodeGone) -> None:
        self._gone.append(gone)
        os.eventfd_write(self._bell, 1)


def why_no_agent(node: str, code: int | None, lines: Sequence[str]) -> str:
    """One line for the user: what is wrong with the node, and what to do."""
    if code is None:
        return texts.no_ray_agent(rays_words(lines))
    if code == AGENT_HAS_NO_WAY:
        return engine_texts.no_way_back(last_line(lines))
    return engine_texts.agent_ended(node, code, last_line(lines))


def why_lost(code: int | None, lines: Sequence[str]) -> str:
    """Why a node that was there is gone; follows 'node b is gone: '."""
    if code is None:
        return texts.ray_lost(rays_words(lines))
    return engine_texts.AGENT_ENDED if code == 0 else engine_texts.agent_failed(code, last_line(lines))


def rays_words(lines: Sequence[str]) -> str:
    """Ray's errors say first that an actor died, then where, and last why: the first line that names a cause counts."""
    causes = [line for line in lines if "died because" in line or "unavailable" in line]
    return last_line(causes[:1] or lines)
