"""A tenant with a valid key says everything at random, well-formed and not: servers live, and another job's updates are
exact."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import ServerRefused, ShoalError
from shoal.parameters.client.parameter_client import EnrolTerms
from shoal.parameters.keeper.group_events import GroupServerLost, SpaceEnded
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.server.updates.holding import layout_of
from shoal.values import ServerMap
from shoal.wire import parameter_messages as wire
from shoal.wire.ledger_entries import Push
from shoal.wire.note_frames import encode_note
from shoal.wire.tables import PushId, PushTerms, RuleSpec, TensorSpec
from support.hostile import HostileWorker, Victim
from support.launcher import write_token
from support.random_messages import FLOATS, NAN, RandomValues, mutated
from support.server_groups import (
    PATIENCE,
    TOKEN,
    Group,
    ServerProcess,
    group_of,
    table_for,
    terms_of,
    values_of,
    wait_until,
)

TABLE = table_for(sizes=(3000, 200))
HOSTILE, KEY = "hostile", "a key of its own"
ITS_TABLE = table_for("NAdam", sizes=(3000, 200))
# What a worker may say, the deeper ways more often; now and then anything at all.
KINDS = [wire.Stage, wire.StageEnd, wire.Discard, wire.Pull, wire.KeyList, wire.Define, wire.RelayJoin, wire.Relay]
KINDS += [wire.Propose] * 6
RULES = ["SGD", "Adam", "AdamW", "NAdam", "Adagrad", "RMSprop", "Rprop", "ASGD", "LBFGS", "nobody's"]


class Tenant:
    """Connects, and says what comes to its mind."""

    def __init__(self, servers: ServerMap, rng: random.Random) -> None:
        self._rng = rng
        self._map = servers
        self._pushes = 100
        self._plans = plans = [layout_of(ITS_TABLE, servers, server.number) for server in servers.servers]
        tensors = (TensorSpec(name="t", shape=(5,), dtype="float32"), TensorSpec(name="u", shape=(), dtype="float16"))
        group = {"lr": 0.1}
        self._values = RandomValues(
            rng,
            {
                "worker": [0, 1],
                "workers": [(0, 1), (0,), (1, 0)],
                "view": [servers.version],
                "generation": [1, 2],
                "keys": [plan.keys for plan in plans],
                "digest": [plan.keys for plan in plans],
                "blocks": [plan.layout.blocks for plan in plans],
                "push": [PushId(worker, number) for worker in (0, 1) for number in (1, 2)],
                "table": [ITS_TABLE],
                "terms": [terms_of(ITS_TABLE), PushTerms(groups=(), scale=NAN)],
                "tensors": [tensors],
                "name": RULES,
                "rules": [(RuleSpec("SGD", (group,)),), (RuleSpec("Adam", (group, group)),)],
                "request": list(range(40)),
                "first": [0, 1],
                "last": [1, 2],
                "place": [-1],
                "mode": ["synchronous", "asynchronous"],
                "loop": [1],
                "at_least": [0, 1, 5],
            },
            floats=(*FLOATS, NAN),
        )

    def visit(self, notes: int) -> None:
        server = self._rng.choice(self._map.servers)
        with HostileWorker(server.address, HOSTILE, KEY) as worker:
            worker.hello(self._rng.choice((0, 1)))
            if self._rng.random() < 0.8:
                worker.say_bytes(encode_note(wire.Define(request=1, table=ITS_TABLE)))
            for _ in range(notes):
                worker.say_bytes(self._note())

    def push(self) -> None:
        """Stage something as it should be, on all servers as a rule, and propose it with whatever terms."""
        self._pushes += 1
        push = PushId(self._rng.choice((0, 1)), self._pushes)
        for plan, server in zip(self._plans, self._map.servers, strict=True):
            if self._rng.random() < 0.1:
                continue
            with HostileWorker(server.address, HOSTILE, KEY) as worker:
                worker.hello(push.worker)
                notes = [encode_note(wire.Define(request=1, table=ITS_TABLE))]
                notes.append(encode_note(wire.KeyList(digest=plan.keys, blocks=plan.layout.blocks)))
                view, size = self._map.version, 0
                for unit in plan.layout.units:
                    note = wire.Stage(push=push, view=view, keys=plan.keys, first=unit.first, last=unit.last)
                    notes.append(encode_note(note, unit.size) + self._rng.randbytes(unit.size))
                    size += unit.size
                notes.append(encode_note(wire.StageEnd(request=2, push=push, view=view, size=size)))
                worker.say_bytes(b"".join(notes))
                while not isinstance(worker.hear(), wire.StageDone | wire.Refusal | wire.Moved | None):
                    pass
        with HostileWorker(self._map.home.address, HOSTILE, KEY) as worker:
            worker.hello(push.worker)
            name = self._rng.choice(("lr", "eps", "weight_decay", "momentum_decay"))
            groups = (({"lr": 0.1, name: self._rng.choice(FLOATS)},),)
            clip = self._rng.choice(((), (None,), (1e-300,)))
            terms = PushTerms(groups=groups, scale=self._rng.choice(FLOATS), clip_norms=clip)
            entry = Push(
                worker=push.worker,
                request=self._pushes,
                generation=1,
                view=self._map.version,
                push=push,
                terms=terms,
                step=self._rng.choice((0, 1, self._pushes)),
            )
            worker.say_bytes(encode_note(wire.Propose(view=self._map.version, entry=entry)))
            worker.say_bytes(self._note())

    def _note(self) -> bytes:
        kind = wire.AnyNote if self._rng.random() < 0.05 else self._rng.choice(KINDS)
        payload = self._rng.randbytes(self._rng.choice((0, 0, 0, 4, 4096, 12000)))
        try:
            data = encode_note(self._values.of(kind), len(payload)) + payload
        except ShoalError:
            return b""
        return mutated(data, self._rng) if self._rng.random() < 0.02 else data


def reopen(group: Group) -> None:
    with KeeperClient(group.keeper.address, TOKEN, PATIENCE) as keeper:
        keeper.close_space(HOSTILE)
        keeper.open_space(SpaceTerms(job=HOSTILE, key=KEY, quota=50_000_000))


def begin_as_it_should(group: Group) -> None:
    """So that what the tenant says next means something."""
    client = group.client(0, job=HOSTILE, key=KEY)
    with contextlib.suppress(ServerRefused):
        client.define(ITS_TABLE)
        client.enrol(EnrolTerms(1, (0, 1), "asynchronous", scaling="none"))
        client.assign(values_of(ITS_TABLE, 0), None, 0)
    client.close()


def run(group: Group, rng: random.Random, visits: int) -> int:
    """How often the hostile job was ended."""
    wait_until(lambda: group.maps() > 0, "the group is complete")
    victim = Victim(group, TABLE, near=1e-3)
    made = group.keeper.status().map
    assert made is not None
    tenant = Tenant(made, rng)
    ended = 0
    for visit in range(visits):
        if visit % 5 == 0:
            reopen(group)
            begin_as_it_should(group)
        with contextlib.suppress(ConnectionError, ShoalError):  # it is not known yet, or its space is being made anew
            tenant.visit(notes=rng.randrange(1, 60))
            tenant.push()
        victim.train()
        ended = sum(isinstance(event, SpaceEnded) for event in tuple(group.events))
    assert not any(isinstance(event, GroupServerLost) for event in group.events)
    assert all(event.job == HOSTILE for event in group.events if isinstance(event, SpaceEnded))
    return ended


@pytest.mark.timeout(300)
def test_whatever_a_tenant_says_another_job_is_served() -> None:
    with group_of(2, 2) as group:
        run(group, random.Random(1), visits=15)
        assert not any(group.has_died(number) for number in (0, 1))


@contextlib.contextmanager
def real_processes(folder: Path) -> Iterator[tuple[Group, list[ServerProcess]]]:
    token_file = folder / "token"
    write_token(token_file, TOKEN)
    with group_of(0, 2, expected=2) as group, contextlib.ExitStack() as stack:
        processes = [ServerProcess(group.keeper.address, token_file, number) for number in range(2)]
        for process in processes:
            stack.callback(process.process.kill)
        yield group, processes


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_real_servers_survive_whatever_a_tenant_says(tmp_path: Path, seed: int) -> None:
    with real_processes(tmp_path) as (group, processes):
        run(group, random.Random(seed), visits=300)
        assert [process.process.poll() for process in processes] == [None, None]
        assert [process.end()[0] for process in processes] == [0, 0]
