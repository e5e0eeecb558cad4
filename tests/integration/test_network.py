"""Real links that are cut, slowed down or lead nowhere: network namespaces, and nobody is told that packets vanish."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from support.network import PROGRAMS, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

SILENCE = 1.5  # seconds


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as made:
        yield made


class Ranks:
    """Exchanging processes: one per machine, or those that `machines` says, by rank."""

    def __init__(
        self,
        network: Network,
        size: int = 1000,
        *options: str,
        machines: Sequence[int] | None = None,
        stopped: int | None = None,
    ) -> None:
        """`options`: of the program. `stopped`: a rank that stands still before it connects."""
        places = range(network.size) if machines is None else machines
        self.processes = [
            network.start(
                place,
                PROGRAMS / "network_process.py",
                network.host(place),
                str(rank),
                str(size),
                str(SILENCE),
                *options,
            )
            for rank, place in enumerate(places)
        ]
        ports = [self.answer(rank) for rank in range(len(places))]
        if stopped is not None:
            self.processes[stopped].send_signal(signal.SIGSTOP)
        addresses = ",".join(f"{network.host(place)} {port}" for place, port in zip(places, ports, strict=True))
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(addresses + "\n")
            process.stdin.flush()

    def answer(self, rank: int) -> str:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        return pipe.readline().rstrip("\n")

    def exchange(self) -> None:
        for rank in range(len(self.processes)):
            assert [self.answer(rank), self.answer(rank)] == ["connected", "exchanged"]

    def lost(self, rank: int) -> tuple[int | None, str]:
        """Whom a rank lost, and its words."""
        words = self.answer(rank).split(" ", 2)
        assert words[0] == "lost"
        return None if words[1] == "None" else int(words[1]), words[2]

    def missed(self, rank: int) -> tuple[list[int], list[int]]:
        """After it has lost one: all ranks that do not answer it, and those that answer and did not come."""
        unreached, late = self.answer(rank).split("; ")
        return json.loads(unreached.removeprefix("unreached ")), json.loads(late.removeprefix("late "))

    def all_missed(self) -> dict[int, list[int]]:
        """By rank, all that do not answer it. Nobody is only late."""
        found = {}
        for rank in range(len(self.processes)):
            while not (line := self.answer(rank)).startswith("lost"):
                assert line in ("connected", "exchanged")
            found[rank], late = self.missed(rank)
            assert not late
        return found


def test_two_machines_that_cannot_reach_each_other_any_more_name_each_other(network: Network) -> None:
    ranks = Ranks(network)
    ranks.exchange()
    network.part(0, 1)
    found = {rank: ranks.lost(rank) for rank in range(3)}
    blamed = {rank: peer for rank, (peer, _) in found.items()}
    assert blamed[0] == 1 or blamed[1] == 0  # the first to notice is sure; the other one may hear of it from rank 2
    assert blamed[2] in (0, 1)
    assert any("does not answer" in text for _, text in found.values())


@pytest.mark.parametrize("size", [1000, 4_000_000], ids=["small", "large"])
def test_a_machine_whose_cable_is_pulled_is_named_by_all_others(network: Network, size: int) -> None:
    """With small messages the others wait for it; with large ones bytes are on their way to it."""
    ranks = Ranks(network, size)
    ranks.exchange()
    network.unplug(2)
    assert {ranks.lost(0)[0], ranks.lost(1)[0]} == {2}
    assert ranks.lost(2)[0] in (0, 1)


def test_a_machine_that_only_waits_notices_too(network: Network) -> None:
    ranks = Ranks(network)
    ranks.exchange()
    for process in ranks.processes:
        process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)  # nobody sends any more
    network.unplug(0)
    assert ranks.lost(1)[0] == 0
    assert ranks.lost(2)[0] == 0


@pytest.mark.parametrize("size", [1000, pytest.param(4_000_000, marks=pytest.mark.long)], ids=["small", "large"])
def test_a_stopped_process_on_a_machine_that_answers_is_not_taken_for_a_cut_link(network: Network, size: int) -> None:
    """Also not when so much is on its way to it that it takes no more: it may only be busy."""
    ranks = Ranks(network, size)
    ranks.exchange()
    stopped = ranks.processes[1]
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(3 * SILENCE)
    assert all(process.poll() is None for process in ranks.processes)
    stopped.send_signal(signal.SIGCONT)
    network.unplug(1)
    assert ranks.lost(0)[0] == 1


@pytest.mark.long
def test_a_short_cut_is_survived(network: Network) -> None:
    ranks = Ranks(network)
    ranks.exchange()
    network.unplug(1)
    time.sleep(SILENCE / 3)
    network.plug_in_again(1)
    time.sleep(3 * SILENCE)
    assert all(process.poll() is None for process in ranks.processes)


@pytest.mark.long
def test_a_slow_link_is_no_cut_link(network: Network) -> None:
    network.slow_down(1, "10mbit")
    ranks = Ranks(network, 2_000_000)  # 1.6 s for each message at this rate
    ranks.exchange()
    time.sleep(2 * SILENCE)
    assert all(process.poll() is None for process in ranks.processes)


def test_a_machine_that_cannot_be_reached_when_the_mesh_is_made_is_named(network: Network) -> None:
    network.part(0, 2)
    ranks = Ranks(network)
    assert ranks.answer(1) == "connected"
    first, _, last = (ranks.lost(rank)[0] for rank in range(3))
    # Whoever notices first is sure of it; by then the other one may only know that all gave up.
    assert (first, last) in ((2, 0), (2, None), (None, 0))


Links = tuple[tuple[int, int], ...]

HOSTS = (0, 1, 1, 2)  # machines by rank: the ranks of machine 1 and the one of machine 2 will not reach each other
BOTH_WAYS, THERE, BACK = ((1, 2), (2, 1)), ((1, 2),), ((2, 1),)  # what is cut; from the first to the second
ALL_PAIRS = {frozenset({1, 3}), frozenset({2, 3})}


def pairs(missed: dict[int, list[int]]) -> set[frozenset[int]]:
    return {frozenset({rank, other}) for rank, others in missed.items() for other in others}


def cut(network: Network, links: Links) -> None:
    for here, there in links:
        network.cut(here, there)


@pytest.mark.parametrize(
    "links",
    [pytest.param(BOTH_WAYS, marks=pytest.mark.long), THERE, pytest.param(BACK, marks=pytest.mark.long)],
    ids=["both ways", "there", "back"],
)
def test_all_pairs_that_cannot_connect_are_named_at_once(network: Network, links: Links) -> None:
    """By whoever connects and by whoever waits to be connected to. Rank 0 reaches all, and blames nobody."""
    cut(network, links)
    missed = Ranks(network, machines=HOSTS).all_missed()
    assert missed == {0: [], 1: [3], 2: [3], 3: [1, 2]}


@pytest.mark.parametrize(
    "links",
    [BOTH_WAYS, pytest.param(THERE, marks=pytest.mark.long), pytest.param(BACK, marks=pytest.mark.long)],
    ids=["both ways", "there", "back"],
)
def test_all_pairs_that_are_cut_while_ranks_exchange_are_named_at_once(network: Network, links: Links) -> None:
    """Of a cut in one direction perhaps by one side only; nobody else is named."""
    ranks = Ranks(network, machines=HOSTS)
    ranks.exchange()
    cut(network, links)
    missed = ranks.all_missed()
    assert pairs(missed) == ALL_PAIRS
    if links == BOTH_WAYS:
        assert missed == {0: [], 1: [3], 2: [3], 3: [1, 2]}


# Around a ring, only ranks 0 and 5 and ranks 2 and 3 are connected across the cut; ranks 1 and 4 have no link there.
RING = (1, 1, 1, 2, 2, 2)


@pytest.mark.parametrize(
    "links",
    [BOTH_WAYS, pytest.param(THERE, marks=pytest.mark.long), pytest.param(BACK, marks=pytest.mark.long)],
    ids=["both ways", "there", "back"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "later"])
def test_pairs_without_a_connection_are_named_too_if_they_are_cut(
    network: Network, links: Links, is_late: bool
) -> None:
    """Whoever decides which ranks go on has to know all pairs, not only those that have a connection."""
    if not is_late:
        cut(network, links)
    ranks = Ranks(network, 1000, "ring", machines=RING)
    if is_late:
        ranks.exchange()
        cut(network, links)
    wanted = {frozenset({here, there}) for here in range(3) for there in range(3, 6)}
    assert pairs(ranks.all_missed()) == wanted


def test_a_killed_rank_is_named_by_ranks_that_have_no_connection_to_it(network: Network) -> None:
    ranks = Ranks(network, 1000, "ring", machines=RING)
    ranks.exchange()
    ranks.processes[2].kill()
    for rank in (0, 1, 3, 4, 5):
        assert ranks.lost(rank)[0] == 2
        assert ranks.missed(rank) == ([], [])


@pytest.mark.long
def test_a_rank_that_answers_and_does_not_come_is_late_and_not_out_of_reach(network: Network) -> None:
    """Its process is stopped: its machine answers for it, whoever should connect to whom."""
    ranks = Ranks(network, machines=HOSTS, stopped=2)
    missed = []
    for rank in (0, 1, 3):
        ranks.lost(rank)
        missed.append(ranks.missed(rank))
    assert ([], [2]) in missed, "who gives up first says why"
    assert all(each in (([], [2]), ([], [])) for each in missed), "the others may give up because of that one"
