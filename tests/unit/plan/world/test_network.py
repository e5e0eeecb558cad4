"""The simulated network does what TCP does: order, delay, cuts that heal, connections that break and say so late."""

from __future__ import annotations

from shoal.plan.world.network import Network, StreamEnd
from shoal.plan.world.virtual_time import Process, VirtualTime


class Pair:
    """Two endpoints, 0 and 1, with one stream between them, and what the listening one got to see."""

    def __init__(self, seed: int = 0) -> None:
        self.time = VirtualTime(seed)
        self.network = Network(self.time, patience=1.0)
        self.processes = [Process(self.time), Process(self.time)]
        self.seen: list[object] = []
        self.network.listen(1, self.processes[1], self._accept)
        end = self.network.connect(0, self.processes[0], 1, "hello")
        assert end is not None
        self.end: StreamEnd = end
        self.end.listen(lambda _: None, lambda: None)
        self.run(1.0)

    def _accept(self, end: StreamEnd, hello: object) -> None:
        self.seen.append(hello)
        end.listen(self.seen.append, lambda: self.seen.append("closed"))

    def run(self, seconds: float) -> None:
        self.time.run(self.time.now + seconds, lambda: False)
        self.time.now += seconds


def test_messages_come_in_order_and_before_the_close() -> None:
    for seed in range(20):
        pair = Pair(seed)
        for number in range(50):
            pair.end.send(number)
        pair.end.close()
        pair.run(5.0)
        assert pair.seen == ["hello", *range(50), "closed"]


def test_a_cut_that_heals_soon_is_a_delay() -> None:
    pair = Pair()
    pair.network.links.cut(0, 1, 0.1)
    pair.end.send("late")
    pair.run(0.05)
    assert pair.seen == ["hello"]
    pair.run(1.0)
    assert pair.seen == ["hello", "late"]


def test_a_cut_that_lasts_breaks_the_connection() -> None:
    pair = Pair()
    pair.network.links.cut(0, 1, 10.0)
    pair.end.send("lost")
    pair.run(5.0)
    assert pair.seen == ["hello", "closed"]
    assert not pair.end.is_open
    assert pair.network.connect(0, pair.processes[0], 1, "again") is None


def test_a_frozen_process_finds_everything_when_it_wakes() -> None:
    pair = Pair()
    pair.processes[1].freeze(2.0)
    pair.end.send("first")
    pair.end.send("second")
    pair.run(1.0)
    assert pair.seen == ["hello"]
    pair.run(2.0)
    assert pair.seen == ["hello", "first", "second"]


def test_a_dead_process_closes_and_a_dead_machine_is_missed_later() -> None:
    pair = Pair()
    pair.network.process_died(0)
    pair.run(0.2)
    assert pair.seen == ["hello", "closed"]
    pair = Pair()
    pair.network.machine_died(0)
    pair.run(0.2)
    assert pair.seen == ["hello"]
    pair.run(2.0)
    assert pair.seen == ["hello", "closed"]


def test_nobody_answers_for_a_process_that_is_gone() -> None:
    pair = Pair()
    pair.processes[1].die()
    assert pair.network.connect(0, pair.processes[0], 1, "hello") is None
