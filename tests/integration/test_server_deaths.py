"""Workers train while servers die at random points and others come: every gradient counts once, bit for bit."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.parameters.keeper.group_events import GroupServerLost
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.server_groups import LR, PATIENCE, Group, group_of, pulled, table_for, terms_of, wait_until

WORKERS = 3
HOME, OTHERS, MOVES = ("record", "answer"), ("recorded",), ("begun", "fetch", "fetched", "unit")


def gradient(table: TableSpec, worker: int, step: int) -> dict[str, torch.Tensor]:
    """Whole numbers: their sums are exact in any order."""
    generator = torch.Generator().manual_seed(worker * 100_000 + step)
    return {spec.name: torch.randint(-4, 5, spec.shape, generator=generator).float() for spec in table.tensors}


class Job:
    """Three workers as threads, of which one sends all bytes over the network."""

    def __init__(self, group: Group, mode: str, clip_norms: tuple[float, ...]) -> None:
        self.group = group
        self.table = table_for()
        self.terms = EnrolTerms(1, tuple(range(WORKERS)), mode, scaling="none")
        self.push_terms = terms_of(self.table, clip_norms=clip_norms)
        self.steps = [0] * WORKERS
        self.first = self._client(0)
        self.first.assign({spec.name: torch.zeros(spec.shape) for spec in self.table.tensors}, None, 0)

    def _client(self, worker: int) -> ParameterClient:
        client = self.group.client(worker, shares_memory=worker != 2)
        client.define(self.table)
        client.enrol(self.terms)
        return client

    def train(self, worker: int, least: int) -> int:
        """The number of its last entry."""
        client = self.first if worker == 0 else self._client(worker)
        number = 0
        while self.steps[worker] < least:
            push = client.begin_push()
            for name, value in gradient(self.table, worker, self.steps[worker]).items():
                push.put(name, value)
            answer = client.commit(push, self.push_terms, step=self.steps[worker])
            assert isinstance(answer, Committed), answer
            self.steps[worker] += 1
            number = answer.number
            pulled(client, self.table, number)
        return number

    def check(self, at_least: int) -> None:
        wanted = {spec.name: torch.zeros(spec.shape) for spec in self.table.tensors}
        for worker, steps in enumerate(self.steps):
            for step in range(steps):
                for name, value in gradient(self.table, worker, step).items():
                    wanted[name].sub_(value, alpha=LR)
        for name, value in pulled(self.first, self.table, at_least).items():
            assert torch.equal(value, wanted[name]), name


class Reaper:
    """Kills one server at a time, and only when everything is held twice."""

    def __init__(self, group: Group, seed: int) -> None:
        self.kills = 0
        self._group = group
        self._random = random.Random(seed)
        self._next = 3

    def run(self, work: list[Future[int]]) -> None:
        while not all(future.done() for future in work):
            time.sleep(self._random.random() * 0.05)
            if self._group.is_settled() and len(self._group.holders()) >= 2:
                self._strike()

    def _strike(self) -> None:
        victim = self._random.choice(self._group.holders())
        if self._random.random() < 0.5:
            own = HOME if victim == self._group.home() else OTHERS
            self._group.crash(victim, self._random.choice(("unit", "applied", *own)), self._random.randint(1, 6))
        else:
            self._group.crash(victim, self._random.choice(MOVES), self._random.randint(1, 2))
            self._start()
        limit = time.monotonic() + 0.5
        while not self._group.has_died(victim) and time.monotonic() < limit:
            time.sleep(0.002)
        if not self._group.spare(victim):
            self.kills += 1
            wait_until(lambda: self._is_known_dead(victim), "the keeper knows")
            if len(self._group.holders()) < 5:
                self._start()

    def _is_known_dead(self, victim: int) -> bool:
        return any(isinstance(event, GroupServerLost) and event.number == victim for event in tuple(self._group.events))

    def _start(self) -> None:
        self._group.start(self._next)
        self._next += 1


def train_among_deaths(seed: int, mode: str, clip_norms: tuple[float, ...], steps: int) -> int:
    """How many died."""
    with group_of(3, 2) as group:
        job = Job(group, mode, clip_norms)
        reaper = Reaper(group, seed)
        with ThreadPoolExecutor(WORKERS) as pool:
            work = [pool.submit(job.train, worker, steps) for worker in range(WORKERS)]
            reaper.run(work)
            last = max(future.result(PATIENCE) for future in work)
        job.check(last)
        return reaper.kills


MODES = pytest.mark.parametrize(("mode", "clip_norms"), [("asynchronous", ()), ("synchronous", (1e9,))])


def let_die(least: int, seed: int, mode: str, clip_norms: tuple[float, ...], steps: int) -> None:
    """In as many jobs as it takes: how many die in one depends on how busy the machine is."""
    kills, again = 0, 0
    while kills < least:
        kills += train_among_deaths(seed + 1000 * again, mode, clip_norms, steps)
        again += 1


@MODES
def test_servers_die_and_nothing_is_lost_or_counted_twice(mode: str, clip_norms: tuple[float, ...]) -> None:
    let_die(1, 1, mode, clip_norms, steps=30)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@MODES
def test_many_servers_die(seed: int, mode: str, clip_norms: tuple[float, ...]) -> None:
    let_die(6, seed, mode, clip_norms, steps=150)
