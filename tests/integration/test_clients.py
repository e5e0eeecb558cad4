"""Clients of real servers: whole states, lost blocks, refusals, bytes between workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import torch

from shoal.errors import ParametersLost, PeerLost, ServerRefused
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.parameters.relay.relay_mesh import RelayConfig, RelayMesh
from shoal.strategies.parameter_server.server_leases import LedgerTerms, LedgerView
from shoal.strategies.peers.peers import Peers
from shoal.values import Address, Generation, Member
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.collectives import in_threads
from support.server_groups import (
    JOB,
    JOB_KEY,
    PATIENCE,
    Died,
    begin,
    group_of,
    pulled,
    table_for,
    terms_of,
    values_of,
    wait_until,
)

ADAM = table_for("AdamW", weight_decay=0.01)


def push(client: ParameterClient, table: TableSpec, seed: int) -> Committed:
    outgoing = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        outgoing.put(name, gradient)
    answer = client.commit(outgoing, terms_of(table), step=seed)
    assert isinstance(answer, Committed), answer
    return answer


def by_torch(table: TableSpec, seeds: range) -> dict[str, torch.Tensor]:
    """What torch's own optimizer makes of first values of seed 0 and these gradients."""
    values = {name: torch.nn.Parameter(value) for name, value in values_of(table, 0).items()}
    optimizer = torch.optim.AdamW(values.values(), **table.rules[0].groups[0])
    for seed in seeds:
        for name, gradient in values_of(table, seed).items():
            values[name].grad = gradient
        optimizer.step()
    return {name: value.detach() for name, value in values.items()}


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-4)


def test_a_state_goes_on_at_another_number_of_servers_as_if_nothing_had_been() -> None:
    with group_of(3, 2) as group:
        client = begin(group, ADAM)
        for seed in range(1, 4):
            answer = push(client, ADAM, seed)
        state = client.read_state(answer.number)
    assert {key for parts in state.values() for key in parts} >= {"", "exp_avg", "exp_avg_sq", "step"}
    with group_of(2) as group:
        client = group.client(shares_memory=False)
        assert not client.define(ADAM)
        client.enrol(EnrolTerms(1, (0,), "synchronous"))
        values = {name: parts.pop("") for name, parts in state.items()}
        client.assign(values, state, updates=3)
        assert client.define(ADAM), "it has values now"
        for seed in range(4, 6):
            answer = push(client, ADAM, seed)
        assert answer.updates == 5
        assert_close(pulled(client, ADAM, answer.number), by_torch(ADAM, range(1, 6)))


def test_blocks_that_are_lost_with_their_only_server_are_assigned_anew() -> None:
    with group_of(2) as group:
        client = begin(group, ADAM)
        answer = push(client, ADAM, 1)
        state = client.read_state(answer.number)
        group.crash(1, "unit")
        push(client, ADAM, 2)
        wait_until(lambda: group.has_died(1), "the server dies")
        with pytest.raises(ParametersLost, match="assign them, from a checkpoint"):
            pulled(client, ADAM, answer.number)
        values = {name: parts.pop("") for name, parts in state.items()}
        number = client.assign(values, state, updates=1)
        assert_close(pulled(client, ADAM, number), by_torch(ADAM, range(1, 2)))
        answer = push(client, ADAM, 2)
        assert_close(pulled(client, ADAM, answer.number), by_torch(ADAM, range(1, 3)))


def test_a_server_that_came_too_late_to_know_the_ledger_says_that_all_is_lost() -> None:
    """It was in the map with those that knew it, and is the only one of them that lives: its ledger is a new one."""
    with group_of(2, 2) as group, ThreadPoolExecutor(1) as pool:
        client, other = begin(group, ADAM), group.client(1)
        other.define(ADAM)
        for seed in range(1, 4):
            answer = push(client, ADAM, seed)
        wait_until(lambda: other.origin is not None, "the other knows the ledger that is lost later")
        is_held, may_die = threading.Event(), threading.Event()

        def die(point: str) -> None:
            if point == "answer":
                is_held.set()
                assert may_die.wait(PATIENCE)
                raise Died

        group.at_points(0, die)
        asking = pool.submit(other.ask)  # home is held up with the answer, and begins no map
        assert is_held.wait(PATIENCE)
        group.start(2)
        wait_until(lambda: group.maps() == 2, "the third is in the map")
        group.servers[1].stop()
        wait_until(lambda: client.await_map().version == other.await_map().version == 3, "and one of the others is not")
        may_die.set()
        wake_up = threading.Timer(20.0, client.interrupt, ("it waits in vain",))
        wake_up.start()
        with pytest.raises(ParametersLost, match="others have begun in their place"):
            pulled(client, ADAM, answer.number)
        wake_up.cancel()
        wake_up.join()
        with pytest.raises(ParametersLost, match="others have begun in their place"):
            asking.result(PATIENCE)
        client.enrol(EnrolTerms(2, (0,), "asynchronous", scaling="none"))
        number = client.assign(values_of(ADAM, 0), None, updates=0)
        assert_close(pulled(client, ADAM, number), values_of(ADAM, 0))


def late(wait_for: Callable[..., object]) -> Callable[..., object]:
    def wait(*arguments: object) -> object:
        time.sleep(0.3)
        return wait_for(*arguments)

    return wait


def test_a_worker_that_asked_for_nothing_while_all_servers_died_does_not_wait_for_what_only_they_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where an answer of the other ledger would have come before the worker looks."""
    with group_of(2, 2) as group:
        client = begin(group, ADAM)
        for seed in range(1, 4):
            answer = push(client, ADAM, seed)
        first = client.origin
        for number in (0, 1):
            group.servers[number].stop()
        wait_until(lambda: group.has_died(0) and group.has_died(1), "all servers are gone")
        group.start(2)
        wait_until(lambda: client.origin not in (None, first), "another one has begun")
        monkeypatch.setattr(ClientCore, "wait_for", late(ClientCore.wait_for))
        wake_up = threading.Timer(20.0, client.interrupt, ("it waits in vain",))
        wake_up.start()
        with pytest.raises(ParametersLost, match="others have begun in their place"):
            pulled(client, ADAM, answer.number)
        with pytest.raises(ParametersLost, match="others have begun in their place"):
            client.ask()
        wake_up.cancel()
        wake_up.join()
        client.enrol(EnrolTerms(2, (0,), "asynchronous", scaling="none"))
        number = client.assign(values_of(ADAM, 0), None, updates=0)
        assert_close(pulled(client, ADAM, number), values_of(ADAM, 0))


def test_a_worker_that_asked_for_nothing_while_all_servers_died_finds_out_when_it_enrols() -> None:
    """The other ledger has more entries by then than this worker has seen of the one that is lost."""
    with group_of(2, 2) as group:
        client = group.client()
        client.define(ADAM)
        alone = Generation(1, (Member(0, 0, "host", 1, Address("host", 1)),), "ring", "identity", "the job begins")
        peers = SimpleNamespace(generation=alone)
        view = LedgerView(cast(Peers, peers), client, LedgerTerms(is_free=True, staleness=None, scaling="none"))
        view.enrol()
        for number in (0, 1):
            group.servers[number].stop()
        wait_until(lambda: group.has_died(0) and group.has_died(1), "all servers are gone")
        group.start(2)
        other = group.client(1)
        other.define(ADAM)
        while other.ask().number < view.seen:
            pass
        peers.generation = msgspec.structs.replace(alone, number=2)
        with pytest.raises(ParametersLost, match="others have begun in their place"):
            view.enrol()


def test_a_server_without_room_says_so_with_its_figures() -> None:
    with group_of(1, memory=150_000) as group:
        client = group.client()
        with pytest.raises(ServerRefused, match=r"0\.3 MiB .* of the 0\.1 MiB") as refused:
            client.define(ADAM)
        assert refused.value.kind == "memory"


def test_workers_hear_each_other_through_a_server_until_one_is_gone() -> None:
    with group_of(2) as group:
        client = begin(group, ADAM)
        servers = client.server_map
        assert servers is not None
        config = RelayConfig(server=servers.home, job=JOB, key=JOB_KEY, generation=4, workers=(0, 5, 9))
        meshes = [RelayMesh(config, rank) for rank in range(3)]
        try:
            data = bytes(range(256)) * 60_000
            meshes[2].post(1, b"header", memoryview(data))
            found = bytearray(6 + len(data))
            in_threads(meshes[2].drain, lambda: meshes[1].receive_into(2, memoryview(found)))
            assert found == b"header" + data
            meshes[0].abort("stands for a death")
            with pytest.raises(PeerLost) as lost:
                meshes[1].receive_into(2, memoryview(found))
            assert lost.value.peer == 0
        finally:
            for mesh in meshes:
                mesh.close()


def test_workers_that_know_of_a_new_home_before_it_does_stay_together_there() -> None:
    with group_of(2, 2) as group:
        wait_until(lambda: group.maps() == 1, "the group is complete")
        second = group.client().await_map().servers[1]
        config = RelayConfig(server=second, job=JOB, key=JOB_KEY, generation=2, workers=(0, 1))
        meshes = [RelayMesh(config, rank) for rank in range(2)]
        try:
            group.servers[0].stop()
            home = group.servers[1]._spaces[JOB].state.sequencer
            wait_until(lambda: home.is_home and home.is_begun, "the second server is home")
            meshes[0].post(1, b"still here")
            found = bytearray(10)
            meshes[1].receive_into(0, memoryview(found))
            assert found == b"still here"
        finally:
            for mesh in meshes:
                mesh.close()
