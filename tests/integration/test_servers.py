"""Servers of a group: what is committed is applied once, whoever dies when; blocks move; nonsense is refused."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from shoal.errors import ParametersLost, Refused, ServerRefused
from shoal.parameters.blocks.table_blocks import table_bytes
from shoal.parameters.client.parameter_client import EnrolTerms, ParameterClient
from shoal.parameters.connections.connection import Connection, Hearer
from shoal.parameters.keeper.group_events import BlocksLost, MapMade
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.server import keeper_line, server_peers
from shoal.parameters.server.server import ServerConfig, ServerLoop
from shoal.parameters.server.space import space
from shoal.parameters.server.updates.holding import HoldingLayout, layout_of
from shoal.parameters.server.updates.shard import Shard
from shoal.transport.connection.handshake import Key
from shoal.transport.connection.name_lookup import SocketAddress
from shoal.values import Address, Server, ServerMap
from shoal.wire.keeper_messages import GroupNews, ServerBeat, ServerFigures
from shoal.wire.ledger_entries import Call, Committed
from shoal.wire.note import PARAMETER_VERSION
from shoal.wire.parameter_messages import Define, KeyList, Propose, Refusal, ServerHello, Stage
from shoal.wire.tables import LoopTerms, PushId, TableSpec
from support.launcher import write_token
from support.server_groups import (
    JOB,
    LR,
    PATIENCE,
    TOKEN,
    ServerProcess,
    begin,
    group_of,
    pulled,
    raw,
    table_for,
    terms_of,
    values_of,
    wait_until,
)


def commit(client: ParameterClient, table: TableSpec, seed: int, step: int = 0, **terms: object) -> Committed:
    push = client.begin_push()
    for name, gradient in values_of(table, seed).items():
        push.put(name, gradient)
    answer = client.commit(push, terms_of(table, **terms), step=step)
    assert isinstance(answer, Committed), answer
    return answer


def expected(table: TableSpec, seeds: range) -> dict[str, torch.Tensor]:
    """SGD's values after gradients of these seeds."""
    found = values_of(table, 0)
    for seed in seeds:
        for name, gradient in values_of(table, seed).items():
            found[name].add_(gradient, alpha=-LR)
    return found


def check(client: ParameterClient, table: TableSpec, *, pushes: int, at_least: int) -> None:
    wanted = expected(table, range(1, pushes + 1))
    for name, value in pulled(client, table, at_least).items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize(("servers", "replicas"), [(1, 1), (3, 1), (3, 2)])
def test_pushes_are_applied_and_pulled(servers: int, replicas: int, shares_memory: bool) -> None:
    table = table_for()
    with group_of(servers, replicas) as group:
        client = begin(group, table, shares_memory=shares_memory)
        for number in range(1, 6):
            answer = commit(client, table, number)
            check(client, table, pushes=number, at_least=answer.number)
        assert answer.updates == 5


HOME_POINTS, OTHER_POINTS = ("record", "answer"), ("recorded",)
CRASHES = [(point, victim) for victim in (0, 1, 2) for point in ("unit", "applied")]
CRASHES += [(point, 0) for point in HOME_POINTS] + [(point, 1) for point in OTHER_POINTS]


@pytest.mark.parametrize(("point", "victim"), CRASHES)
def test_a_server_that_dies_at_any_point_loses_and_repeats_nothing(point: str, victim: int) -> None:
    table = table_for()
    with group_of(3, 2) as group:
        client = begin(group, table)
        answer = commit(client, table, 1)
        group.crash(victim, point, 2)
        for number in range(2, 8):
            answer = commit(client, table, number)
        wait_until(lambda: group.has_died(victim), "it applies what is committed, and dies")
        assert answer.updates == 7
        check(client, table, pushes=7, at_least=answer.number)
        group.start(3)
        wait_until(lambda: group.holders() == tuple({0, 1, 2, 3} - {victim}), "three servers hold everything")
        answer = commit(client, table, 8)
        check(client, table, pushes=8, at_least=answer.number)


@pytest.mark.parametrize(("point", "victim"), [("begun", 0), ("begun", 3), ("fetch", 1), ("fetched", 3)])
def test_a_server_that_dies_while_blocks_move_loses_nothing(point: str, victim: int) -> None:
    table = table_for("Adam")
    with group_of(3, 2) as group:
        client = begin(group, table)
        reference = Reference(table)
        reference.push(client, 1)
        group.crash(victim, point)
        group.start(3)
        for number in range(2, 20):
            answer = reference.push(client, number)
        wait_until(lambda: group.has_died(victim) and group.is_settled(), "it died and the rest goes on")
        answer = reference.push(client, 20)
        reference.check(client, answer.number)


class Reference:
    """torch's own optimizer on whole tensors."""

    def __init__(self, table: TableSpec, clip: float | None = None) -> None:
        self.table = table
        self.clip = clip
        self.values = {name: torch.nn.Parameter(value) for name, value in values_of(table, 0).items()}
        self.optimizer = getattr(torch.optim, table.rules[0].name)(self.values.values(), **table.rules[0].groups[0])

    def push(self, client: ParameterClient, seed: int, step: int = 0) -> Committed:
        for name, gradient in values_of(self.table, seed).items():
            self.values[name].grad = gradient
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.values.values(), self.clip)
        self.optimizer.step()
        return commit(client, self.table, seed, step, clip_norms=() if self.clip is None else (self.clip,))

    def check(self, client: ParameterClient, at_least: int) -> None:
        for name, value in pulled(client, self.table, at_least).items():
            torch.testing.assert_close(value, self.values[name].data)
        for name, state in client.read_state(at_least).items():
            for key, wanted in self.optimizer.state[self.values[name]].items():
                torch.testing.assert_close(state[key], wanted, check_dtype=False)


def test_servers_come_and_go_while_training_goes_on_with_their_state() -> None:
    table = table_for("AdamW", weight_decay=0.1)
    with group_of(2) as group:
        client = begin(group, table, shares_memory=False)
        reference = Reference(table)
        for number in range(1, 5):
            answer = reference.push(client, number)
        group.start(2)
        for number in range(5, 9):
            answer = reference.push(client, number)
        wait_until(lambda: group.holders() == (0, 1, 2), "the new server has its share")
        wait_until(lambda: min(each.held_bytes for each in group.figures().values()) > 0, "it says so")
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            administrator.change_servers(remove=(0,))
        for number in range(9, 13):
            answer = reference.push(client, number)
        wait_until(lambda: group.has_died(0), "the server that was taken out has ended")
        assert group.holders() == (1, 2)  # which let it end
        answer = reference.push(client, 13)
        reference.check(client, answer.number)
        moved = [event.size for event in group.events if isinstance(event, MapMade) and event.size]
        assert sum(moved) < 2 * table_bytes(table.tensors)


def test_a_pull_that_was_given_up_before_its_answer_came_leaves_the_next_one_right() -> None:
    table = table_for()
    with group_of(2) as group:
        client = begin(group, table)
        answer = commit(client, table, 1)
        check(client, table, pushes=1, at_least=answer.number)
        group.start(2)
        wait_until(lambda: group.holders() == (0, 1, 2), "the servers' memory is laid out anew")
        given_up = client.pull(answer.number + 3, ())  # both new maps have an entry, and the next push
        wait_until(lambda: bool(given_up._asked), "it is asked for")
        given_up.close()
        answer = commit(client, table, 2)  # which answers it, before anything that is asked later
        check(client, table, pushes=2, at_least=answer.number)


@pytest.mark.parametrize("victim", [None, 0, 1])
def test_a_norm_over_all_servers_clips_as_torch_does(victim: int | None) -> None:
    table = table_for("SGD", momentum=0.9)
    with group_of(3, 2) as group:
        client = begin(group, table, "synchronous")
        reference = Reference(table, clip=3.0)
        reference.push(client, 1, step=0)
        if victim is not None:
            group.crash(victim, "unit", 2)
        for number in range(2, 8):
            answer = reference.push(client, number, step=number)
        reference.check(client, answer.number)
        wait_until(lambda: victim is None or group.has_died(victim), "it applies what is committed, and dies")


@pytest.mark.parametrize("clip", [None, 0.5])
def test_servers_that_have_no_block_of_a_small_table_go_on(clip: float | None) -> None:
    table = table_for(sizes=(10,))
    with group_of(4) as group:
        client = begin(group, table, "synchronous")
        reference = Reference(table, clip)
        for step in range(1, 4):
            answer = reference.push(client, step, step=step)
        reference.check(client, answer.number)
        wait_until(lambda: all(each.updates == 4 for each in group.figures().values()), "all have counted them")
        assert not any(group.has_died(number) for number in range(4))


def test_a_job_that_ends_while_blocks_move_holds_up_no_move() -> None:
    table = table_for()
    with group_of(2) as group:
        client = begin(group, table)
        at_fetch, is_over = threading.Event(), threading.Event()

        def wait_at(point: str) -> None:
            if point == "fetch":
                at_fetch.set()
                is_over.wait(PATIENCE)

        for number in (0, 1):
            group.at_points(number, wait_at)
        group.start(2)
        assert at_fetch.wait(PATIENCE)
        client.close()
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            administrator.close_space(JOB)
        wait_until(lambda: not group.servers[2]._spaces, "the new server knows that the job is over")
        is_over.set()
        wait_until(group.is_settled, "the new server is in place")


def test_blocks_that_nobody_has_are_named_lost_until_they_are_assigned() -> None:
    table = table_for()
    with group_of(3) as group:
        client = begin(group, table)
        commit(client, table, 1)
        group.crash(1, "unit")
        answer = commit(client, table, 2)
        with pytest.raises(ParametersLost, match="checkpoint"):
            pulled(client, table, answer.number)
        wait_until(lambda: group.is_settled() and group.holders() == (0, 2), "the others go on")
        assert any(isinstance(event, BlocksLost) and event.blocks for event in group.events)
        number = client.assign(values_of(table, 0), None, 0)
        check(client, table, pushes=0, at_least=number)
        answer = commit(client, table, 1)
        check(client, table, pushes=1, at_least=answer.number)


def test_synchronous_workers_make_one_update_of_all_their_gradients() -> None:
    table = table_for()
    with group_of(2) as group:
        first = group.client(0)
        first.define(table)
        first.enrol(EnrolTerms(1, (0, 1), "synchronous"))
        number = first.assign(values_of(table, 0), None, 0)
        second = group.client(1, shares_memory=False)
        assert second.define(table)
        second.enrol(EnrolTerms(1, (0, 1), "synchronous"))
        with ThreadPoolExecutor(1) as other:
            theirs = other.submit(commit, second, table, 2)
            answer = commit(first, table, 1)
            assert theirs.result().number == answer.number > number
        check(second, table, pushes=2, at_least=answer.number)


def test_a_worker_that_is_ahead_is_sent_values_when_the_slowest_has_caught_up() -> None:
    table = table_for()
    with group_of(2) as group:
        clients = [group.client(worker) for worker in (0, 1)]
        for client in clients:
            client.define(table)
            client.enrol(EnrolTerms(1, (0, 1), "asynchronous", staleness=1, scaling="none"))
        clients[0].assign(values_of(table, 0), None, 0)
        for client in clients:
            client.open_loop(LoopTerms(loop=1, first_epoch=0, epochs=1, samples=100, update=1))
            assert client.lease(4).lease is not None
        for number in (1, 2):
            answer = commit(clients[0], table, number)
        pull = clients[0].pull(answer.number, ())
        into = torch.empty(table.tensors[0].shape)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(pull.wait, "t0", into)
            assert not wait([waiting], timeout=0.3).done  # two clocks ahead
            commit(clients[1], table, 3)
            waiting.result(PATIENCE)
        torch.testing.assert_close(into, expected(table, range(1, 4))["t0"], rtol=0, atol=1e-4)


def test_jobs_share_a_group_and_know_nothing_of_each_other() -> None:
    table = table_for()
    with group_of(2) as group:
        mine = begin(group, table)
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            administrator.open_space(SpaceTerms(job="other", key="another", quota=0))
        other = group.client(0, job="other", key="another")
        assert not other.define(table_for(sizes=(100,)))
        answer = commit(mine, table, 1)
        check(mine, table, pushes=1, at_least=answer.number)
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            held = sum(figures.held_bytes for _, figures in administrator.status().figures)
            administrator.close_space("job")
            wait_until(
                lambda: sum(figures.held_bytes for figures in group.figures().values()) < held or not held,
                "the job's memory is free",
            )


# What is refused


def test_a_server_without_room_says_its_figures() -> None:
    table = table_for("Adam")
    with (
        group_of(1, memory=100_000) as group,
        pytest.raises(ServerRefused, match=r"0.3 MiB.*of the 0.1 MiB") as refused,
    ):
        group.client().define(table)
    assert refused.value.kind == "memory"


def test_a_push_that_does_not_fit_is_refused_and_the_server_goes_on() -> None:
    table = table_for()
    with group_of(1, memory=table_bytes(table.tensors) + 1000) as group:
        client = group.client(shares_memory=False)
        client.define(table)
        client.enrol(EnrolTerms(1, (0,), "asynchronous"))
        with pytest.raises(ServerRefused, match="no room for"):
            client.assign(values_of(table, 0), None, 0)
        assert not group.has_died(0)


def test_a_job_over_its_quota_is_refused() -> None:
    with group_of(2, 2, quota=100_000) as group, pytest.raises(ServerRefused, match="its quota is 100000") as refused:
        group.client().define(table_for())
    assert refused.value.kind == "quota"


def test_an_optimizer_that_cannot_run_in_parts_is_refused_by_name() -> None:
    with group_of(1) as group, pytest.raises(ServerRefused, match=r"LBFGS.*--strategy all-reduce"):
        group.client().define(table_for("LBFGS"))


def test_another_table_than_the_others_have_is_refused() -> None:
    with group_of(1) as group:
        group.client(0).define(table_for())
        with pytest.raises(ServerRefused, match="another table"):
            group.client(1).define(table_for(sizes=(10,)))


def test_a_wrong_token_is_refused() -> None:
    with group_of(1) as group, pytest.raises(Refused, match="wrong token"):
        group.client(key="guessed").define(table_for())


def test_garbage_on_the_port_harms_nobody() -> None:
    table = table_for()
    with group_of(1) as group:
        client = begin(group, table)
        address = group.servers[0].address
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(200), b"x"):
            with socket.create_connection((address.host, address.port)) as stranger:
                stranger.sendall(garbage)
        answer = commit(client, table, 1)
        check(client, table, pushes=1, at_least=answer.number)


def test_another_version_is_told_which_one_is_spoken_here() -> None:
    with group_of(1) as group:
        wait_until(lambda: group.maps() == 1, "the group is complete")
        asked = raw(group, ServerHello(version=PARAMETER_VERSION + 1, job=JOB, worker=0))
        assert isinstance(asked, Refusal)
        assert (asked.kind, "install the same Shoal" in asked.reason) == ("version", True)


def test_nonsense_from_a_worker_is_refused_with_a_sentence() -> None:
    table = table_for()
    hello = ServerHello(version=PARAMETER_VERSION, job=JOB, worker=0)
    define = Define(request=1, table=table)
    keys = KeyList(digest=b"0" * 16, blocks=(0, 1))
    stage = Stage(push=PushId(0, 1), view=1, keys=b"1" * 16, first=0, last=1)
    foreign = Propose(view=1, entry=Call(worker=7, request=1, generation=1, reason="for others"))
    with group_of(1) as group:
        wait_until(lambda: group.maps() == 1, "the group is complete")
        for note in (keys, stage, foreign, ServerBeat(figures=ServerFigures())):
            refusal = raw(group, hello, define, note)
            assert isinstance(refusal, Refusal), note
            assert refusal.kind == "bad-request"
        assert not group.has_died(0)


def test_a_push_that_is_given_up_leaves_nothing_behind() -> None:
    table = table_for()
    with group_of(1) as group:
        client = begin(group, table, shares_memory=False)
        for _ in range(5):
            push = client.begin_push()
            for name, gradient in values_of(table, 1).items():
                push.put(name, gradient)
        answer = commit(client, table, 1)
        check(client, table, pushes=1, at_least=answer.number)
        spare = 2  # buffers that are kept for the next pushes
        most = table_bytes(table.tensors) * (1 + spare)
        wait_until(lambda: 0 < group.figures()[0].held_bytes <= most, "what was staged is gone")


def test_a_worker_that_dies_leaves_nothing_half_staged() -> None:
    table = table_for()
    with group_of(1) as group:
        begin(group, table)
        doomed = group.client(1, shares_memory=False)
        doomed.define(table)
        push = doomed.begin_push()
        push.put("t0", torch.zeros(table.tensors[0].shape))
        doomed.close()
        wait_until(lambda: not group.staged(0), "it is gone")


def test_a_server_whose_keeper_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_line, "LOST_SECONDS", 0.3)
    with group_of(1) as group:
        wait_until(lambda: group.maps() == 1, "the group is complete")
        group.keeper.close()
        wait_until(lambda: group.has_died(0), "it ends")
        assert "no keeper at" in str(group.failures.pop(0))


def test_a_server_that_was_taken_out_ends_though_the_next_map_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_line, "LOST_SECONDS", 0.3)
    nobody = Address("127.0.0.1", 1)
    server = ServerLoop(ServerConfig(keeper=nobody, token=TOKEN, number=0))
    members = tuple(Server(number=number, address=nobody, host="here", process=1) for number in range(2))
    for version, living in enumerate((members, members[1:], members[1:]), start=1):
        numbers = tuple(member.number for member in living)
        server._heard_keeper(GroupNews(map=ServerMap(version, living, numbers, numbers, 1)), b"")
    server.run()  # it would look for a keeper, and find none


def test_of_two_servers_that_cannot_reach_each_other_one_goes_and_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_for()
    with group_of(2, 2) as group:
        client = begin(group, table)
        answer = commit(client, table, 1)
        there = group.servers[0].address

        class CutOff(Connection):
            @classmethod
            def connecting(cls, address: Address | SocketAddress, key: Key, hearer: Hearer) -> Connection:
                if isinstance(address, SocketAddress) and address.place[1] == there.port:
                    raise OSError(errno.EHOSTUNREACH, "No route to host")
                return Connection.connecting(address, key, hearer)

        monkeypatch.setattr(server_peers, "UNREACHED_SECONDS", 0.3)
        monkeypatch.setattr(server_peers, "Connection", CutOff)  # for those that are made from now on
        group.cut(1, 0)
        for number in (2, 3):
            answer = commit(client, table, number)
        check(client, table, pushes=3, at_least=answer.number)
        wait_until(lambda: group.holders() == (0,), "the keeper hears that all of it is there")
        wait_until(lambda: group.has_died(1), "the other has ended")
        assert "cannot reach each other" in str(group.failures.pop(1))


# Nothing keeps a server from serving the others


def test_a_table_that_takes_long_to_lay_out_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    large, may_go_on = table_for(sizes=(9000,)), threading.Event()

    def slow(table: TableSpec, servers: ServerMap, server: int) -> HoldingLayout:
        if table.digest == large.digest:
            may_go_on.wait(PATIENCE)
        return layout_of(table, servers, server)

    monkeypatch.setattr(space, "layout_of", slow)
    table = table_for()
    with group_of(2, 2) as group, ThreadPoolExecutor(1) as other:
        client = begin(group, table)
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            administrator.open_space(SpaceTerms(job="large", key="its own"))
        defining = other.submit(group.client(0, job="large", key="its own").define, large)
        for number in (1, 2, 3):
            answer = commit(client, table, number)
        check(client, table, pushes=3, at_least=answer.number)
        assert not defining.done()
        may_go_on.set()
        assert not defining.result(PATIENCE), "it has no values yet"


def test_memory_is_given_back_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    close = Shard.close

    def noting(shard: Shard) -> None:
        threads.append(threading.current_thread().name)
        close(shard)

    monkeypatch.setattr(Shard, "close", noting)
    with group_of(1) as group:
        client = begin(group, table_for())
        group.start(1)
        wait_until(lambda: group.holders() == (0, 1), "there is another layout")
        client.close()
        with KeeperClient(group.keeper.address, TOKEN, timeout=5.0) as administrator:
            administrator.close_space(JOB)
        wait_until(lambda: len(threads) >= 2, "what both servers held is gone")
    assert all(name.startswith("shoal-background") for name in threads)


# Real processes


@pytest.mark.long
def test_killed_processes_are_replaced_and_everything_is_counted_once(tmp_path: Path) -> None:
    table = table_for()
    token_file = tmp_path / "token"
    write_token(token_file, TOKEN)
    with group_of(0, 2, expected=3) as group, contextlib.ExitStack() as stack:
        processes = {}

        def start(number: int, *options: str) -> None:
            processes[number] = ServerProcess(group.keeper.address, token_file, number, *options)
            stack.callback(processes[number].end)

        for number in range(3):
            start(number)
        client = begin(group, table)
        pushes = 0
        for victim in range(3):
            start(victim + 3)
            processes[victim].kill()
            for _ in range(10):
                pushes += 1
                answer = commit(client, table, pushes)
            check(client, table, pushes=pushes, at_least=answer.number)
            wait_until(lambda: len(group.holders()) == 3 and group.is_settled(), "three servers again")
        start(6, "--crash-at", "unit:5")
        wait_until(lambda: len(group.holders()) == 4, "four servers")
        for _ in range(10):
            pushes += 1
            answer = commit(client, table, pushes)
        assert processes[6].process.wait(PATIENCE) == -signal.SIGKILL
        check(client, table, pushes=pushes, at_least=answer.number)
        client.close()
        assert processes[5].end() == (0, "")
