"""Real links that are cut, slowed down or lead nowhere: network namespaces, and nobody is told that packets vanish."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from support.network import PROGRAMS, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

SILENCE = 1.5  # seconds


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as made:
        yield made


class Ranks:
    """One exchanging process per machine."""

    def __init__(self, network: Network, size: int = 1000) -> None:
        self.processes = [
            network.start(rank, PROGRAMS / "network_process.py", network.host(rank), str(rank), str(size), str(SILENCE))
            for rank in range(network.size)
        ]
        ports = [self.answer(rank) for rank in range(network.size)]
        addresses = ",".join(f"{network.host(rank)} {port}" for rank, port in enumerate(ports))
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


@pytest.mark.parametrize("size", [pytest.param(1000, marks=pytest.mark.long), 4_000_000], ids=["small", "large"])
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
