"""A tenant with a valid key harms nobody else: whatever it says, no server ends, and others' updates are exact."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.errors import ServerRefused
from shoal.parameters.blocks.table_blocks import GRAIN, table_bytes
from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.parameters.keeper.group_events import SpaceEnded
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.ledger.effects import Effect
from shoal.parameters.ledger.ledger import Ledger
from shoal.parameters.server.updates.holding import HoldingLayout, layout_of
from shoal.transport.memory.arena import Offer
from shoal.wire.ledger_entries import AnyEntry, Assign, Call, Enrol, OpenLoop, Push
from shoal.wire.parameter_messages import (
    Define,
    Defined,
    KeyList,
    Propose,
    Refusal,
    Relay,
    RelayJoin,
    RelayLost,
    ServerWelcome,
    Stage,
    StageDone,
    StageEnd,
)
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range, RuleSpec, TableSpec, TensorSpec
from support.hostile import HostileWorker, Victim
from support.server_groups import (
    PATIENCE,
    TOKEN,
    Group,
    group_of,
    table_for,
    terms_of,
    values_of,
    wait_until,
)

TABLE = table_for()
HOSTILE, KEY = "hostile", "a key of its own"
QUOTA = 1_000_000_000


@pytest.fixture(name="group")
def fixture_group() -> Iterator[Group]:
    """Two servers with everything on both, and a space for the hostile job."""
    with group_of(2, 2) as group:
        open_hostile(group)
        yield group


def open_hostile(group: Group, quota: int = QUOTA) -> None:
    with KeeperClient(group.keeper.address, TOKEN, PATIENCE) as keeper:
        keeper.open_space(SpaceTerms(job=HOSTILE, key=KEY, quota=quota))
    wait_until(lambda: all(HOSTILE in each._spaces for each in group.servers.values()), "servers know the job")
    wait_until(lambda: group.maps() > 0, "the group is complete")


def worker(group: Group, server: int = 0, number: int = 0, arena: bytes = b"") -> HostileWorker:
    made = HostileWorker(group.servers[server].address, HOSTILE, KEY).hello(number, arena)
    assert isinstance(made.hear(), ServerWelcome)
    return made


def propose(worker: HostileWorker, *entries: AnyEntry) -> None:
    worker.say(*(Propose(view=1, entry=entry) for entry in entries))


def enrolled(number: int = 0) -> Enrol:
    return Enrol(worker=number, request=1, generation=1, workers=(number,), mode="asynchronous")


def loop(**terms: object) -> OpenLoop:
    usual = {"loop": 1, "first_epoch": 0, "epochs": 1, "samples": 10, "update": 1}
    planned = LoopTerms(**{**usual, **terms})  # type: ignore[arg-type]  # terms of several types
    return OpenLoop(worker=0, request=2, generation=1, terms=planned)


def an_epoch_beyond_64_bits(group: Group) -> None:
    """The leases of such a loop would come to an epoch that no message can hold."""
    with worker(group) as hostile:
        propose(hostile, enrolled(), loop(first_epoch=2**64 - 2))
        told = hostile.hear_all()
        assert any(isinstance(note, Refusal) and "first_epoch" in note.reason for note in told)


def epochs_that_would_fill_all_memory(group: Group) -> None:
    with worker(group) as hostile:
        used = (Range(2**47, 0, 1),)
        propose(hostile, enrolled(), loop(epochs=2**47 + 1, done=used))
        told = hostile.hear_all()
        assert any(isinstance(note, Refusal) and "nothing is said of most epochs" in note.reason for note in told)


def a_table_that_no_server_can_cut(group: Group) -> None:
    huge = TensorSpec(name="huge", shape=(8 * 10**9,), dtype="float32")
    table = TableSpec(kind="dense", tensors=(huge,), rules=(RuleSpec("SGD", ({"lr": 0.1},)),), block_bytes=GRAIN)
    with worker(group) as hostile:
        hostile.say(Define(request=1, table=table))
        refusal = hostile.hear()
        assert isinstance(refusal, Refusal)
        assert "at most" in refusal.reason


def a_table_over_the_quota(group: Group) -> None:
    huge = TensorSpec(name="huge", shape=(8 * 10**9,), dtype="float32")
    table = TableSpec(kind="dense", tensors=(huge,), rules=(RuleSpec("SGD", ({"lr": 0.1},)),), block_bytes=1 << 20)
    with worker(group) as hostile:
        hostile.say(Define(request=1, table=table))
        refusal = hostile.hear()
        assert isinstance(refusal, Refusal)
        assert (refusal.kind, f"its quota is {QUOTA}" in refusal.reason) == ("quota", True)


def an_optimizer_that_torch_would_not_make(group: Group) -> None:
    table = msgspec.structs.replace(TABLE, rules=(RuleSpec("Adagrad", ({"initial_accumulator_value": -1.0},)),))
    with worker(group) as hostile:
        hostile.say(Define(request=1, table=table))
        refusal = hostile.hear()
        assert isinstance(refusal, Refusal)
        assert refusal.kind == "rule"


def memory_that_is_a_pipe_without_a_writer(group: Group) -> None:
    """Whoever opens it for reading waits for one."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe)
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        offer = Offer(process=os.getpid(), descriptor=descriptor, size=1 << 20, nonce=bytes(32))
        with worker(group, arena=msgspec.msgpack.encode(offer)):
            pass
    finally:
        os.close(descriptor)


def a_push_without_a_table(group: Group) -> None:
    push = PushId(0, 1)
    with worker(group) as hostile:
        propose(
            hostile,
            enrolled(),
            Push(worker=0, request=2, generation=1, view=1, push=push, terms=terms_of(TABLE)),
            Assign(worker=0, request=3, generation=1, view=1, push=push, updates=0),
        )
        told = hostile.hear_all()
        assert sum(isinstance(note, Refusal) and "define it first" in note.reason for note in told) == 2


def frames_that_are_announced_and_never_sent(group: Group) -> None:
    """Memory for what a head announces is not taken before it is looked at."""
    for number in range(8):
        with worker(group, number=number) as hostile:
            hostile.say(RelayJoin(generation=1, workers=tuple(range(8))))
            head = msgspec.msgpack.encode(Relay(generation=1, peer=(number + 1) % 8))
            hostile.say_bytes(b"SHPM\x02\0\0\0" + len(head).to_bytes(4, "big") + (1 << 39).to_bytes(8, "big") + head)
            while isinstance(told := hostile.hear(), RelayLost):
                pass  # of those before it, which are gone
            assert isinstance(told, Refusal)


ATTACKS = [
    an_epoch_beyond_64_bits,
    epochs_that_would_fill_all_memory,
    a_table_that_no_server_can_cut,
    a_table_over_the_quota,
    an_optimizer_that_torch_would_not_make,
    memory_that_is_a_pipe_without_a_writer,
    a_push_without_a_table,
    frames_that_are_announced_and_never_sent,
]


@pytest.mark.timeout(120)
def test_what_a_hostile_job_says_is_refused_and_the_other_job_trains_on(group: Group) -> None:
    victim = Victim(group, TABLE, near=1e-4)
    victim.train()
    for attack in ATTACKS:
        attack(group)
        victim.train()
        assert not any(group.has_died(number) for number in (0, 1)), attack.__name__
    assert not any(isinstance(event, SpaceEnded) for event in group.events), "everything was refused before it counted"


# What cannot be seen before it is applied


class Unruly:
    """The hostile job as a client that has begun to train as it should."""

    def __init__(self, group: Group, rule: str = "SGD", **values: float) -> None:
        self.table = table_for(rule, **values)
        self.client: ParameterClient = group.client(0, job=HOSTILE, key=KEY)
        self.client.define(self.table)
        self.client.enrol(EnrolTerms(1, (0,), "asynchronous", scaling="none"))
        self.client.assign(values_of(self.table, 0), None, 0)

    def push(self, **changes: float) -> None:
        push = self.client.begin_push()
        for name, gradient in values_of(self.table, 1).items():
            push.put(name, gradient)
        groups = tuple(tuple({**group, **changes} for group in rule.groups) for rule in self.table.rules)
        self.client.commit(push, PushTerms(groups=groups))

    def goes_on(self) -> None:
        for _ in range(1000):  # what is asked for meanwhile may be answered before it is over
            self.push()


def home_plan(group: Group, table: TableSpec) -> HoldingLayout:
    made = group.keeper.status().map
    assert made is not None
    return layout_of(table, made, made.home.number)


def staged(plan: HoldingLayout, push: PushId, first: int, last: int) -> Stage:
    return Stage(push=push, view=plan.map.version, keys=plan.keys, first=first, last=last)


def values_that_raise_in_the_optimizer(group: Group) -> str:
    unruly = Unruly(group, "NAdam")
    with pytest.raises(ServerRefused) as caught:
        unruly.push(momentum_decay=-1e300)
        unruly.goes_on()
    return str(caught.value)


def a_push_that_is_staged_on_one_server_only(group: Group) -> str:
    unruly, push = Unruly(group), PushId(0, 1000)
    plan = home_plan(group, unruly.table)
    with worker(group, plan.server) as hostile:
        hostile.say(KeyList(digest=plan.keys, blocks=plan.layout.blocks))
        for unit in plan.layout.units:
            hostile.say(staged(plan, push, unit.first, unit.last), payload=bytes(unit.size))
        hostile.say(StageEnd(request=5, push=push, view=1, size=plan.layout.size))
        assert isinstance(hostile.hear(), StageDone)
        entry = Push(worker=0, request=1000, generation=1, view=1, push=push, terms=terms_of(unruly.table))
        hostile.say(Propose(view=1, entry=entry))
        with pytest.raises(ServerRefused) as caught:
            unruly.goes_on()
    return str(caught.value)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("attack", "cause"),
    [
        (values_that_raise_in_the_optimizer, "OverflowError"),
        (a_push_that_is_staged_on_one_server_only, "is not staged here"),
    ],
)
def test_what_cannot_be_applied_ends_that_job_alone_and_names_the_cause(
    group: Group, attack: Callable[[Group], str], cause: str
) -> None:
    victim = Victim(group, TABLE, near=1e-4)
    victim.train()
    assert cause in attack(group)
    victim.train()
    assert not any(group.has_died(number) for number in (0, 1))
    wait_until(lambda: any(isinstance(event, SpaceEnded) for event in group.events), "the keeper knows it")
    [ended] = [event for event in group.events if isinstance(event, SpaceEnded)]
    assert (ended.job, cause in ended.reason) == (HOSTILE, True)
    wait_until(lambda: not any(each._spaces[HOSTILE].held_bytes for each in group.servers.values()), "it holds nothing")
    group.start(2)
    wait_until(lambda: group.holders() == (0, 1, 2) and group.is_settled(), "servers come as if it were not there")
    victim.train()
    with pytest.raises(ServerRefused, match=cause):  # at the new server too
        group.client(1, job=HOSTILE, key=KEY).define(TABLE)
    with KeeperClient(group.keeper.address, TOKEN, PATIENCE) as keeper:
        keeper.close_space(HOSTILE)
        keeper.open_space(SpaceTerms(job=HOSTILE, key="another key", quota=QUOTA))
    assert not group.client(0, job=HOSTILE, key="another key").define(TABLE), "it may begin anew"
    victim.train()


@pytest.mark.timeout(120)
def test_an_entry_that_no_ledger_can_apply_ends_that_job_on_every_server_alike(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever nobody has thought of: here, meetings for a reason."""
    call = Ledger._call

    def raising(ledger: Ledger, entry: Call, effects: list[Effect]) -> None:
        if entry.reason == "hostile":
            raise ZeroDivisionError("nobody has thought of this")
        call(ledger, entry, effects)

    monkeypatch.setattr(Ledger, "_call", raising)
    victim, unruly = Victim(group, TABLE, near=1e-4), Unruly(group)
    victim.train()
    with pytest.raises(ServerRefused, match=r"Call of worker 0, cannot be applied: ZeroDivisionError: nobody"):
        unruly.client.call("hostile")
    victim.train()
    victim.client.call("harmless")
    assert not any(group.has_died(number) for number in (0, 1))
    for server in group.servers.values():
        wait_until(lambda space=server._spaces[HOSTILE]: space.has_ended, "both say so")  # type: ignore[misc]
        ledger = server._spaces[HOSTILE].state.sequencer.ledger
        assert ledger is not None and "ZeroDivisionError" in ledger.ended


# Memory


@pytest.mark.timeout(120)
@pytest.mark.parametrize("quota", [0, 400_000])
def test_pushes_that_are_never_proposed_take_no_room_that_another_job_was_promised(quota: int) -> None:
    table = table_for("Adam", sizes=(25_000,))
    size = table_bytes(table.tensors)  # Adam keeps three values for each parameter
    with group_of(1, memory=10 * size) as group:
        open_hostile(group, quota)
        victim = group.client(0)
        victim.define(table)
        with worker(group) as hostile:
            plan = home_plan(group, table)
            hostile.say(Define(request=1, table=table))
            assert isinstance(hostile.hear(), Defined)
            hostile.say(KeyList(digest=plan.keys, blocks=plan.layout.blocks))
            payload = bytes(plan.layout.offset(1))
            for number in range(50):
                hostile.say(staged(plan, PushId(0, number), 0, 1), payload=payload)
            hostile.say(StageEnd(request=9, push=PushId(0, 99), view=1, size=0))  # its answer is the last
            told = [hostile.hear() for _ in range(40)]
            refusals = {note.reason for note in told if isinstance(note, Refusal)}
            assert any("over its quota" in reason if quota else "no room for a push" in reason for reason in refusals)
            victim.enrol(EnrolTerms(1, (0,), "asynchronous", scaling="none"))
            victim.assign(values_of(table, 0), None, 0)
            for number in range(1, 4):
                push = victim.begin_push()
                for name, gradient in values_of(table, number).items():
                    push.put(name, gradient)
                assert victim.commit(push, terms_of(table)).updates == number
        assert not group.has_died(0)
