"""A worker's way between generations, against a coordinator that says what the test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shoal.environment import WorkerEnvironment
from shoal.errors import Aborted, ExchangeFailed, PeerLost, ScriptFailed, ShoalError
from shoal.parameters.client.client_servers import Sent
from shoal.strategies.peers import cluster_peers, reaching
from shoal.strategies.peers.cluster_peers import ClusterPeers
from shoal.strategies.peers.peers import Briefed, JobOver
from shoal.terms import Made, ScriptCall
from shoal.values import Generation, Member, Unreached
from shoal.wire.messages import Beat, Briefing, Ended, ExchangeBroken, Expelled, Formed, Inject, Ready, Unanswered
from support.collectives import in_threads, succeed
from support.fake_coordinator import PATIENCE, TOKEN, Conversation, FakeCoordinator, generation, meanwhile
from support.launcher import write_token


class Cluster:
    """Workers of one job, and what the coordinator says to each."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack = stack
        self._token_file = folder / "token"
        write_token(self._token_file, TOKEN)
        self.coordinator = FakeCoordinator(heartbeat_limit=1.0, lease=60.0)
        stack.callback(self.coordinator.close)
        self.peers: list[ClusterPeers] = []
        self.conversations: list[Conversation] = []

    def join(self, *, current: Generation | None = None) -> ClusterPeers:
        number = len(self.peers)
        environment = WorkerEnvironment(
            coordinator=self.coordinator.address, token_file=str(self._token_file), worker=number
        )
        peers, conversation = succeed(
            lambda: ClusterPeers(environment), lambda: self.coordinator.accept(current=current)
        )
        self._stack.callback(peers.close)
        self._stack.callback(conversation.close)
        self.peers.append(peers)
        self.conversations.append(conversation)
        return peers

    def form(self, number: int, *workers: int) -> Generation:
        """A generation of those who joined, told to all of them."""
        members = []
        for rank, worker in enumerate(workers):
            join = self.conversations[worker].join
            assert join is not None
            members.append(Member(rank, worker, join.host, join.process, join.address))
        formed = Generation(number=number, members=tuple(members), schedule="auto", codec="identity", reason="a test")
        for worker in workers:
            self.conversations[worker].send(Formed(generation=formed))
        return formed

    def connect(self, number: int, *workers: int) -> None:
        self.form(number, *workers)
        succeed(*(lambda worker=worker: self.enter(worker, number) for worker in workers))

    def enter(self, worker: int, number: int) -> None:
        self.peers[worker].connect(self.peers[worker].await_generation(number - 1))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path)


def total(peers: ClusterPeers) -> float:
    tensor = torch.ones(3)
    peers.group.all_reduce(tensor, label="a sum").wait()
    return tensor.sum().item()


def on_and_on(peers: ClusterPeers) -> None:
    while True:
        total(peers)


def test_a_newcomer_has_a_place_to_build_for_and_can_do_nothing_with_it(cluster: Cluster) -> None:
    peers = cluster.join(current=generation(7, 3, 4, 5))
    assert peers.is_new
    assert (peers.group.rank, peers.group.size) == (3, 4)
    assert peers.generation.number == 0
    assert [member.rank for member in peers.generation.members] == [0, 1, 2, 3]
    with pytest.raises(ShoalError, match="in no generation yet"):
        total(peers)
    peers.leave_group("nothing to leave")
    assert peers.traffic().bytes_sent == 0


def test_members_meet_again_in_the_next_generation_and_keep_their_totals(cluster: Cluster) -> None:
    for _ in range(2):
        assert not cluster.join().is_new
    cluster.connect(1, 0, 1)
    assert succeed(*(lambda peers=peers: total(peers) for peers in cluster.peers)) == [6.0, 6.0]
    sent = cluster.peers[0].traffic().bytes_sent
    assert sent > 0
    for peers in cluster.peers:
        peers.leave_group("regrouping")
        peers.leave_group("twice does no harm")
    assert cluster.peers[0].traffic().bytes_sent == sent
    cluster.connect(2, 0, 1)
    succeed(*(lambda peers=peers: total(peers) for peers in cluster.peers))
    assert cluster.peers[0].traffic().bytes_sent == 2 * sent


def test_what_goes_to_parameter_servers_is_sent_too_and_what_they_read_is_told_apart(cluster: Cluster) -> None:
    peers = cluster.join(current=generation(7, 3))
    peers.servers = SimpleNamespace(sent=Sent(over_network=70, by_memory=900))  # type: ignore[assignment]  # all it is asked for
    try:
        assert (peers.traffic().bytes_sent, peers.traffic().bytes_shared) == (70, 900)
    finally:
        peers.servers = None


def test_who_leaves_at_a_steps_end_does_not_break_the_step_of_others(cluster: Cluster) -> None:
    """Rank 2 has all it needs and goes; ranks 0 and 1 still exchange with each other."""
    for _ in range(3):
        cluster.join()
    cluster.connect(1, 0, 1, 2)
    succeed(*(lambda peers=peers: total(peers) for peers in cluster.peers))
    cluster.peers[2].leave_group("regrouping as agreed")
    tensor = torch.ones(3)
    send = lambda: cluster.peers[0].group.send(tensor, 1, label="late").wait()  # noqa: E731
    succeed(send, lambda: cluster.peers[1].group.receive(torch.zeros(3), 0, label="late").wait())


def test_who_leaves_in_the_middle_of_an_operation_is_noticed(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)
    pending = cluster.peers[0].group.all_reduce(torch.ones(3), label="a sum")
    cluster.peers[0].leave_group("had enough")
    with pytest.raises(Aborted, match="had enough"):
        pending.wait()
    with pytest.raises(PeerLost):
        total(cluster.peers[1])


def test_a_member_that_does_not_come_is_named_within_the_heartbeat_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_peers, "LEAST_CONNECT_SECONDS", 0.3)
    for _ in range(2):
        cluster.join()
    cluster.form(1, 0, 1)
    with pytest.raises(ExchangeFailed) as failure:
        cluster.enter(0, 1)
    assert failure.value.peer == 1
    assert cluster.peers[0].unreached() == Unreached(late=(1,)), "its machine answers"
    assert cluster.peers[0].unreached() == Unreached(), "that was about the last try"


def test_a_newer_generation_ends_connecting_and_exchanging_in_the_older_one(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.form(1, 0, 1)

    first = cluster.peers[0].await_generation(0)

    def news() -> None:
        time.sleep(0.1)
        cluster.form(2, 0, 1)

    error = in_threads(lambda: cluster.peers[0].connect(first), news)[0]
    assert isinstance(error, Aborted)
    succeed(lambda: cluster.enter(0, 2), lambda: cluster.enter(1, 2))

    def more_news() -> None:
        time.sleep(0.1)
        cluster.form(3, 0, 1)

    error = in_threads(lambda: total(cluster.peers[0]), more_news)[0]
    assert isinstance(error, Aborted | PeerLost)  # worker 1 may hear it first, and give up its part


def test_a_generation_that_is_over_before_this_worker_gets_to_it_is_not_connected(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    first = cluster.form(1, 0, 1)
    cluster.form(2, 0, 1)
    assert cluster.peers[0].await_generation(1).number == 2
    with pytest.raises(Aborted):
        cluster.peers[0].connect(first)


def test_a_worker_that_is_put_out_asks_again_when_it_reaches_the_members(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)
    broken = ExchangeBroken(generation=1, step=1, operation="connecting", peer=1, reason="unreachable")
    cluster.peers[0].leave_group("broken")
    cluster.peers[0].tell(broken)
    assert cluster.conversations[0].expect(ExchangeBroken) == broken
    results: list[Generation] = []
    waiting = meanwhile(lambda: results.append(cluster.peers[0].await_generation(1)))
    cluster.conversations[0].send(Expelled(generation=1, reason="it cannot reach worker 1"))
    assert cluster.conversations[0].expect(Ready) == Ready(generation=1)
    cluster.form(3, 0, 1)
    waiting.join(PATIENCE)
    assert [found.number for found in results] == [3]


def test_a_worker_that_was_left_out_does_not_ask_before_it_can_reach_the_members(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)
    faults = cluster.peers[0]._listener.faults
    faults.cut(1, 1.5)
    cluster.conversations[0].send(Expelled(generation=1, reason="it cannot reach worker 1"))
    waiting = meanwhile(lambda: cluster.peers[0].await_generation(1))
    assert cluster.conversations[0].expect(Ready) == Ready(generation=1)
    assert not faults.is_cut(1)
    cluster.form(2, 0, 1)
    waiting.join(PATIENCE)


def test_a_worker_that_was_left_out_says_whom_it_cannot_reach_and_again_when_it_can(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "PROBES", 1)
    monkeypatch.setattr(reaching, "PROBE_SECONDS", 0.1)
    for _ in range(3):
        cluster.join()
    cluster.connect(1, 0, 1, 2)
    cluster.peers[0]._listener.faults.cut(2, 1.0)
    cluster.conversations[0].send(Expelled(generation=1, reason="it cannot reach worker 2"))
    waiting = meanwhile(lambda: cluster.peers[0].await_generation(1))
    assert cluster.conversations[0].expect(Ready) == Ready(generation=1, unreachable=(2,))
    assert cluster.conversations[0].expect(Ready) == Ready(generation=1)
    cluster.form(2, 0, 1, 2)
    waiting.join(PATIENCE)


CALLS = (Made(ScriptCall.of("model")),)


def test_a_newcomer_that_was_put_out_has_still_to_compare(cluster: Cluster) -> None:
    cluster.join()
    members = cluster.form(1, 0)
    newcomer = cluster.join(current=members)
    ready = Ready(generation=0, seen=2, is_ahead=True)
    newcomer.tell(ready)
    assert cluster.conversations[1].expect(Ready) == ready
    waiting = meanwhile(lambda: newcomer.await_generation(0))
    cluster.conversations[1].send(Expelled(generation=1, reason="it cannot reach worker 0"))
    assert cluster.conversations[1].expect(Ready) == ready
    cluster.form(2, 0, 1)
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_a_newcomer_that_cannot_reach_everybody_is_briefed_all_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "PROBES", 1)
    monkeypatch.setattr(reaching, "PROBE_SECONDS", 0.1)
    cluster.join()
    members = cluster.form(1, 0)
    newcomer = cluster.join(current=members)
    newcomer._listener.faults.cut(0, 3600.0)
    cluster.conversations[1].send(Formed(generation=members))
    newcomer.client.wait_for_generation(0)
    briefings: list[Briefed] = []

    def wait() -> None:
        newcomer.tell(Ready(generation=1, seen=0))
        with pytest.raises(Briefed) as raised:
            newcomer.await_generation(1)
        briefings.append(raised.value)

    waiting = meanwhile(wait)
    assert cluster.conversations[1].expect(Ready) == Ready(generation=1, seen=0, unreachable=(0,))
    cluster.conversations[1].send(Briefing(generation=members, first=0, calls=CALLS))
    waiting.join(PATIENCE)
    assert [(briefed.first, briefed.calls) for briefed in briefings] == [(0, CALLS)]


def test_a_silence_is_told_when_it_is_noticed(cluster: Cluster) -> None:
    """The script may be in the middle of a step, and get to its report much later."""
    for _ in range(2):
        cluster.join()
    cluster.connect(7, 0, 1)
    mesh = cluster.peers[0]._mesh
    assert mesh is not None and mesh.on_silence is not None
    mesh.on_silence(1)
    assert cluster.conversations[0].expect(Unanswered) == Unanswered(generation=7, peer=1)


def test_a_broken_group_whose_members_all_answer_misses_nobody(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)
    assert cluster.peers[0].unreached() == Unreached(), "nothing is broken"
    cluster.peers[1].leave_group("had enough")
    with pytest.raises(PeerLost):
        total(cluster.peers[0])
    assert cluster.peers[0].unreached() == Unreached()


def test_a_worker_that_is_put_out_while_it_trains_is_interrupted(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)

    def expel() -> None:
        time.sleep(0.05)
        cluster.conversations[0].send(Expelled(generation=1, reason="it hung"))

    error = in_threads(lambda: total(cluster.peers[0]), expel)[0]
    assert isinstance(error, Aborted)
    assert str(error) == "it hung"


def test_the_end_of_the_job_ends_every_wait(cluster: Cluster) -> None:
    peers = cluster.join()
    results: list[BaseException] = []

    def wait() -> None:
        try:
            peers.await_generation(0)
        except JobOver as over:
            results.append(over.error)

    waiting = meanwhile(wait)
    cluster.conversations[0].send(Ended(exit_code=1, error="ScriptFailed", text="it raised"))
    waiting.join(PATIENCE)
    assert [type(error) for error in results] == [ScriptFailed]
    assert peers.is_over


def test_without_the_coordinator_a_worker_goes_on_for_the_lease_then_waits(cluster: Cluster) -> None:
    peers = cluster.join()
    peers.hold()
    with peers.client._news:
        peers.client._heard_at -= 1.1  # seconds: so long ago
    peers.hold()  # the lease of 60 s
    passed = threading.Event()
    waiting = meanwhile(lambda: (peers.hold(at_end=True), passed.set()))  # more than the heartbeat limit of 1 s
    assert not passed.wait(0.2)
    cluster.conversations[0].send(Beat())
    assert passed.wait(PATIENCE)
    waiting.join(PATIENCE)


def test_a_cut_on_purpose_breaks_the_exchange_at_both_ends_until_it_is_over(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.join()
    cluster.connect(1, 0, 1)
    succeed(*(lambda peers=peers: total(peers) for peers in cluster.peers))
    cluster.conversations[0].send(Inject(worker=0, fault="cut", seconds=0.5, peer=1))
    errors = in_threads(*(lambda peers=peers: on_and_on(peers) for peers in cluster.peers))
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    for peers in cluster.peers:
        peers.leave_group("broken")
    cluster.connect(2, 0, 1)  # tried until the link is back
    assert succeed(*(lambda peers=peers: total(peers) for peers in cluster.peers)) == [6.0, 6.0]


def test_a_full_disk_on_purpose_ends_by_itself(cluster: Cluster) -> None:
    peers = cluster.join()
    assert not peers.disk_is_full()
    cluster.conversations[0].send(Inject(worker=0, fault="fill-disk", seconds=1.0))
    limit = time.monotonic() + PATIENCE
    while not peers.disk_is_full():
        assert time.monotonic() < limit
        time.sleep(0.01)
    while peers.disk_is_full():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_being_told_to_leave_is_a_wish_of_this_worker_alone(cluster: Cluster) -> None:
    peers = cluster.join()
    assert peers.leave_wish() is None
    peers.ask_to_leave("got SIGTERM")
    assert peers.leave_wish() == "got SIGTERM"
    assert peers.stop_wish() is None
