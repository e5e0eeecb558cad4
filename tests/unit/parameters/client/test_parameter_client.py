"""A worker's client against servers that do what tests say, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from shoal.errors import Aborted, ExchangeFailed, MeetingCalled, Refused, ServerRefused, ServersLost, UsageError
from shoal.parameters import texts
from shoal.parameters.client import client_servers
from shoal.parameters.client.parameter_client import (
    ClientConfig,
    EnrolTerms,
    MapAdopted,
    ParameterClient,
)
from shoal.transport.connection.sending import SendQueue
from shoal.values import Address
from shoal.wire import parameter_messages as wire
from shoal.wire.ledger_entries import Committed, Void
from shoal.wire.tables import LoopTerms, PushTerms, Range, RuleSpec, TableSpec, TensorSpec
from support.stand_in_servers import JOB, TOKEN, StandIns

SHAPES = {"embedding": (300, 64), "weight": (2000, 17), "bias": (17,), "half": (129, 33), "empty": (0, 4)}
DTYPES = {"half": "bfloat16"}
TABLE = TableSpec(
    kind="dense",
    tensors=tuple(TensorSpec(name, shape, DTYPES.get(name, "float32")) for name, shape in SHAPES.items()),
    rules=(RuleSpec(name="SGD", groups=({"lr": 0.5},)),),
    block_bytes=4096,
)
TERMS = PushTerms(groups=(({"lr": 0.5},),))
ORDER = list(SHAPES)


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Small whole numbers: sums and halves of them are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-8, 9, shape, generator=generator).to(getattr(torch, DTYPES.get(name, "float32")))
        for name, shape in SHAPES.items()
    }


def stepped(values: dict[str, torch.Tensor], *gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {name: value.clone() for name, value in values.items()}
    for gradient in gradients:
        for name in found:
            found[name] -= 0.5 * gradient[name]
    return found


@contextmanager
def stand_ins(count: int, replicas: int = 1) -> Iterator[StandIns]:
    made = StandIns(count, replicas)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def client_of(servers: StandIns, worker: int = 0, **settings: object) -> Iterator[ParameterClient]:
    made = ParameterClient(ClientConfig(keeper=servers.keeper, key=TOKEN, job=JOB, worker=worker, **settings))
    try:
        yield made
    finally:
        made.close()


def begin(client: ParameterClient, *, mode: str = "asynchronous", **terms: object) -> None:
    assert not client.define(TABLE)
    client.enrol(EnrolTerms(generation=1, workers=(0,), mode=mode, scaling="none", **terms))
    client.assign(tensors(0), None, updates=0)


def push(client: ParameterClient, gradients: dict[str, torch.Tensor], **details: object) -> Committed | Void:
    outgoing = client.begin_push()
    for name, gradient in gradients.items():
        outgoing.put(name, gradient)
    return client.commit(outgoing, TERMS, **details)


def pulled(client: ParameterClient, at_least: int) -> dict[str, torch.Tensor]:
    into = {name: torch.full_like(value, 99) for name, value in tensors(0).items()}
    client.pull(at_least, ORDER).wait_all(into)
    return into


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def interrupted_later(client: ParameterClient) -> Iterator[None]:
    """What would wait for ever fails."""
    timer = threading.Timer(20.0, lambda: client.interrupt("it waits in vain"))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.fixture(params=[True, False], ids=["memory", "network"])
def shares_memory(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(("count", "replicas"), [(1, 1), (3, 1), (3, 2)])
def test_what_is_pushed_is_in_what_is_pulled(count: int, replicas: int, shares_memory: bool) -> None:
    with stand_ins(count, replicas) as servers, client_of(servers, shares_memory=shares_memory) as client:
        begin(client)
        expected = tensors(0)
        for step in range(1, 6):
            committed = push(client, tensors(step))
            assert isinstance(committed, Committed)
            expected = stepped(expected, tensors(step))
            found = client.pull(committed.number, ORDER)
            into = {name: torch.full_like(value, 99) for name, value in expected.items()}
            found.wait_all(into)
            assert same(into, expected)
            assert found.updates == step
        sent = [note for note in servers.heard if isinstance(note, wire.Stage) and not note.is_state]
        assert all((note.place >= 0) == shares_memory for note in sent)
        assert {name: parts[""] for name, parts in client.read_state(0).items()}.keys() == expected.keys()
        assert same({name: parts[""] for name, parts in client.read_state(0).items()}, expected)


def test_gradients_that_lie_strangely_are_taken_and_wrong_ones_are_refused_by_name() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)
        outgoing = client.begin_push()
        strange = torch.ones(17, 2000).t()
        outgoing.put("weight", strange, scale=2.0)
        outgoing.put("bias", torch.ones(34)[::2])
        with pytest.raises(UsageError) as caught:
            outgoing.put("half", torch.ones(129, 33))
        given, half = (texts.tensor_kind(dtype, (129, 33)) for dtype in ("float32", "bfloat16"))
        assert str(caught.value) == texts.gradient_differs("half", given, half)
        with pytest.raises(UsageError) as caught:
            outgoing.put("elsewhere", torch.ones(1))
        assert str(caught.value) == texts.not_in_the_table("elsewhere", len(tensors(0)))
        committed = client.commit(outgoing, TERMS)
        expected = tensors(0)
        expected["weight"] -= 1.0
        expected["bias"] -= 0.5
        assert same(pulled(client, committed.number), expected)


def test_units_leave_before_the_commit() -> None:
    with stand_ins(2) as servers, client_of(servers, shares_memory=False) as client:
        begin(client)
        outgoing = client.begin_push()
        for name, gradient in tensors(1).items():
            outgoing.put(name, gradient)
        limit = time.monotonic() + 10
        while sum(isinstance(note, wire.StageEnd) for note in tuple(servers.heard)) < 4:  # two were of the assignment
            assert time.monotonic() < limit
            time.sleep(0.005)
        assert isinstance(client.commit(outgoing, TERMS), Committed)


def test_a_key_list_is_sent_once() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)
        for step in range(3):
            pulled(client, push(client, tensors(step)).number)
        assert sum(isinstance(note, wire.KeyList) for note in servers.heard) == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_server_costs_no_update_wherever_it_dies(victim: int, shares_memory: bool) -> None:
    events: list[MapAdopted] = []
    with (
        stand_ins(3, 2) as servers,
        client_of(servers, shares_memory=shares_memory, on_event=events.append) as client,
    ):
        begin(client)
        gradients = tensors(1)
        outgoing = client.begin_push()
        for name in ORDER[:2]:
            outgoing.put(name, gradients[name])
        servers.kill(victim, add=7)
        for name in ORDER[2:]:
            outgoing.put(name, gradients[name])
        committed = client.commit(outgoing, TERMS)
        assert isinstance(committed, Committed)
        found = client.pull(committed.number, ORDER)
        servers.kill(2, add=8)
        into = {name: torch.full_like(value, 99) for name, value in tensors(0).items()}
        found.wait_all(into)
        assert same(into, stepped(tensors(0), gradients))
        assert servers.ledger.updates == 1
        limit = time.monotonic() + 20  # values that were here before the last map need not wait for it
        while len(events) < 3 and time.monotonic() < limit:
            time.sleep(0.005)
        assert [event.version for event in events] == [1, 2, 3]
        assert events[1].reason == f"server {victim} is gone"


def test_a_commit_that_waits_for_others_is_staged_and_proposed_anew_when_servers_change() -> None:
    with (
        stand_ins(3, 2) as servers,
        client_of(servers) as client,
        client_of(servers, worker=1) as other,
    ):
        terms = EnrolTerms(generation=1, workers=(0, 1), mode="synchronous")
        for each in (client, other):
            each.define(TABLE)
            each.enrol(terms)
        client.assign(tensors(0), None, updates=0)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(push(client, tensors(1), step=1)))
        thread.start()
        limit = time.monotonic() + 10
        while not servers.ledger.open_pushes and time.monotonic() < limit:
            time.sleep(0.005)
        servers.kill(0)
        assert isinstance(push(other, tensors(2), step=1), Committed)
        thread.join()
        assert isinstance(answers[0], Committed)
        assert same(pulled(client, answers[0].number), stepped(tensors(0), tensors(1), tensors(2)))
        assert servers.ledger.updates == 1


def test_broken_connections_are_made_again_and_nothing_is_lost_or_counted_twice(shares_memory: bool) -> None:
    with stand_ins(2) as servers, client_of(servers, shares_memory=shares_memory) as client:
        begin(client)
        expected = tensors(0)
        for step in range(1, 7):
            outgoing = client.begin_push()
            for name, gradient in tensors(step).items():
                outgoing.put(name, gradient)
            servers.break_connections()
            committed = client.commit(outgoing, TERMS)
            expected = stepped(expected, tensors(step))
            servers.break_connections()
            assert same(pulled(client, committed.number), expected)
        assert servers.ledger.updates == 6


def test_a_server_that_does_not_know_the_map_yet_is_asked_again() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)

        def lag(is_behind: bool) -> None:
            for each in servers.servers.values():
                each.is_behind = is_behind

        servers.do(lambda: lag(True))
        timer = threading.Timer(0.2, lambda: servers.do(lambda: lag(False)))
        timer.start()
        committed = push(client, tensors(1))
        timer.join()
        assert same(pulled(client, committed.number), stepped(tensors(0), tensors(1)))


def test_a_proposal_to_a_server_that_does_not_know_the_map_yet_is_made_again() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)
        home = servers.servers[0]
        servers.do(lambda: setattr(home, "is_behind", True))
        timer = threading.Timer(0.2, lambda: servers.do(lambda: setattr(home, "is_behind", False)))
        timer.start()
        with interrupted_later(client):
            assert client.ask().updates == 0
        timer.join()


def test_memory_is_free_again_though_the_servers_word_was_lost_before_the_map_changed() -> None:
    with stand_ins(3) as servers, client_of(servers) as client:
        begin(client)
        servers.do(lambda: setattr(servers, "says_released", False))
        for step in (1, 2):  # each in a place of its own, which servers may read as far as the worker knows
            assert isinstance(push(client, tensors(step)), Committed)
        servers.do(lambda: setattr(servers, "says_released", True))
        servers.kill(2)
        servers.break_connections()
        with interrupted_later(client):
            committed = push(client, tensors(3))
        expected = stepped(tensors(0), *(tensors(step) for step in (1, 2, 3)))
        assert same(pulled(client, committed.number), expected)


def test_values_that_change_under_the_copy_are_sent_in_the_end() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)

        def leave_open(server: object, part: wire.Part) -> None:
            for each in servers.servers.values():
                assert each.layout is not None and each.memory is not None
                if each is server:
                    each.memory.break_seal(each.layout.unit_of(part.first))

        servers.on_part = leave_open
        assert same(pulled(client, 0), tensors(0))
        assert [note for note in servers.heard if isinstance(note, wire.Pull) and note.by_value]


def test_a_pull_goes_on_while_the_script_computes_and_may_be_interrupted() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        begin(client)
        servers.do(lambda: setattr(servers, "answers_pulls", False))
        found = client.pull(0, ORDER)
        timer = threading.Timer(0.05, lambda: client.interrupt("the group broke"))
        timer.start()
        with pytest.raises(Aborted, match="the group broke"):
            found.wait("bias", torch.zeros(17))
        with pytest.raises(Aborted, match="the group broke"):
            client.ask()
        timer.join()
        client.resume()
        servers.do(lambda: setattr(servers, "answers_pulls", True))
        with pytest.raises(Aborted):  # what began before stays dead
            found.wait("bias", torch.zeros(17))
        assert same(pulled(client, 0), tensors(0))


def test_an_interrupted_step_is_withdrawn_and_its_memory_is_used_again() -> None:
    with stand_ins(2) as servers, client_of(servers) as client:
        client.define(TABLE)
        client.enrol(EnrolTerms(generation=1, workers=(0, 1), mode="synchronous"))
        client.assign(tensors(0), None, updates=0)
        for step in range(1, 6):
            timer = threading.Timer(0.02, lambda: client.interrupt("the other one is gone"))
            timer.start()
            with pytest.raises(Aborted):
                push(client, tensors(step), step=step)
            timer.join()
            client.resume()
            assert isinstance(client.withdraw(step), Void)
        client.enrol(EnrolTerms(generation=2, workers=(0,), mode="synchronous"))
        assert isinstance(push(client, tensors(9), step=9), Committed)
        assert isinstance(client.withdraw(9), Committed)


def test_a_push_that_is_given_up_is_forgotten_by_servers(shares_memory: bool) -> None:
    with stand_ins(2) as servers, client_of(servers, shares_memory=shares_memory) as client:
        begin(client)
        for seed in range(1, 6):
            outgoing = client.begin_push()
            for name, gradient in tensors(seed).items():
                outgoing.put(name, gradient)
        committed = client.commit(outgoing, TERMS)
        assert same(pulled(client, committed.number), stepped(tensors(0), tensors(5)))
        assert [each.staged for each in servers.servers.values()] == [{}, {}]


def test_leases_are_granted_used_and_over() -> None:
    with stand_ins(1) as servers, client_of(servers) as client:
        begin(client)
        client.open_loop(LoopTerms(loop=1, first_epoch=0, epochs=1, samples=10, update=5))
        used = 0
        while not (granted := client.lease(1)).is_over:
            assert granted.lease is not None
            lease: Range = granted.lease
            assert isinstance(push(client, tensors(1), used=[lease]), Committed)
            used += lease.size
        assert used == 10
        assert isinstance(push(client, tensors(1), used=[Range(0, 0, 5)]), Void)
        assert client.ask().is_over


def test_a_read_that_would_wait_is_held_when_a_meeting_is_called() -> None:
    with stand_ins(1) as servers, client_of(servers) as client, client_of(servers, worker=1) as slow:
        terms = EnrolTerms(generation=1, workers=(0, 1), mode="asynchronous", staleness=0)
        for each in (client, slow):
            each.define(TABLE)
            each.enrol(terms)
        client.assign(tensors(0), None, updates=0)
        client.open_loop(LoopTerms(loop=1, first_epoch=0, epochs=1, samples=100, update=5))
        slow.open_loop(LoopTerms(loop=1, first_epoch=0, epochs=1, samples=100, update=5))
        slow.lease(1)
        lease = client.lease(1).lease
        assert lease is not None
        committed = push(client, tensors(1), used=[lease])
        found = client.pull(committed.number, ORDER)
        slow.call("to save")
        with pytest.raises(MeetingCalled, match="to save") as held:
            found.wait("bias", torch.zeros(17))
        client.attended = held.value.meetings
        assert client.attended == 1


def test_what_the_ledger_does_not_take_is_an_error_with_its_reason() -> None:
    with stand_ins(1) as servers, client_of(servers) as client:
        client.define(TABLE)
        client.enrol(EnrolTerms(generation=2, workers=(0,), mode="asynchronous"))
        with pytest.raises(ExchangeFailed, match=r"Enrol of worker 0: .* generation 1; the present one is 2"):
            client.enrol(EnrolTerms(generation=1, workers=(0,), mode="asynchronous"))


def test_a_refusal_says_what_the_server_says() -> None:
    other = TableSpec(kind="dense", tensors=TABLE.tensors[:1], rules=TABLE.rules, block_bytes=4096)
    with stand_ins(1) as servers, client_of(servers) as client, client_of(servers, worker=1) as stranger:
        client.define(TABLE)
        with pytest.raises(ServerRefused, match="another table") as refused:
            stranger.define(other)
        assert refused.value.kind == "table"


def test_a_client_that_is_closed_while_its_thread_sends_ends_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    is_sending, may_go_on = threading.Event(), threading.Event()
    take_gone = SendQueue.take_gone
    with stand_ins(1) as servers, client_of(servers, shares_memory=False) as client:
        begin(client)
        core = client._core

        def wait_and_take(queue: SendQueue[Any]) -> list[Any]:
            if any(connection._queue is queue for connection in core.lines.connections):
                is_sending.set()
                assert may_go_on.wait(20)
            return take_gone(queue)

        monkeypatch.setattr(SendQueue, "take_gone", wait_and_take)
        outgoing = client.begin_push()
        for name, gradient in tensors(1).items():
            outgoing.put(name, gradient)
        assert is_sending.wait(20)
        closing = threading.Thread(target=client.close)
        closing.start()
        limit = time.monotonic() + 20
        while not core.thread._is_ending and time.monotonic() < limit:
            time.sleep(0.005)
        may_go_on.set()
        closing.join()
        assert core.thread.failure is None


def test_a_wrong_token_is_refused_and_an_empty_address_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_servers, "REFUSED_SECONDS", 0.2)
    with stand_ins(1) as servers:
        config = ClientConfig(keeper=servers.keeper, key="another", job=JOB, worker=0)
        stranger = ParameterClient(config)
        try:
            with pytest.raises(Refused, match="wrong token"):
                stranger.define(TABLE)
        finally:
            stranger.close()
    nobody = ParameterClient(ClientConfig(keeper=Address("127.0.0.1", 1), key=TOKEN, job=JOB, worker=0, lost_after=0.3))
    try:
        with pytest.raises(ServersLost, match="no whole set of parameter servers"):
            nobody.define(TABLE)
    finally:
        nobody.close()
