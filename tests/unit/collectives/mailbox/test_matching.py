"""Which receive gets which message, against a model that is simple enough to be right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.mailbox.matching import Matching

SOURCES, TAGS = some.integers(0, 2), some.integers(0, 2)
POSTS = some.tuples(some.just("post"), some.one_of(some.none(), SOURCES), TAGS)
ARRIVALS = some.tuples(some.just("arrive"), SOURCES, TAGS)
LEAVES = some.tuples(some.just("leave"), some.one_of(some.none(), SOURCES), TAGS)


class Model:
    """Two lists in order; whoever comes looks through the other one from its start."""

    def __init__(self) -> None:
        self.posted: list[tuple[int, int | None, int]] = []
        self.arrived: list[tuple[int, int, int]] = []

    def post(self, name: int, source: int | None, tag: int) -> tuple[int, int] | None:
        for message in self.arrived:
            if source in (None, message[1]) and tag == message[2]:
                self.arrived.remove(message)
                return message[1], message[0]
        self.posted.append((name, source, tag))
        return None

    def arrive(self, name: int, source: int, tag: int) -> int | None:
        for receive in self.posted:
            if receive[1] in (None, source) and receive[2] == tag:
                self.posted.remove(receive)
                return receive[0]
        self.arrived.append((name, source, tag))
        return None

    def leave(self, source: int | None) -> set[int]:
        gone = {receive[0] for receive in self.posted if receive[1] == source}
        self.posted = [receive for receive in self.posted if receive[0] not in gone]
        return gone


@given(some.lists(some.one_of(POSTS, ARRIVALS, LEAVES), max_size=60))
def test_the_same_pairs_as_a_search_from_the_start(events: list[tuple[str, int | None, int]]) -> None:
    matching: Matching[int, int] = Matching()
    model = Model()
    for name, (event, source, tag) in enumerate(events):
        if event == "post":
            assert matching.post(name, source, tag) == model.post(name, source, tag)
        elif event == "leave":
            assert set(matching.abandon(source)) == model.leave(source)
        else:
            assert source is not None
            found = matching.match(source, tag)
            if found is None:
                matching.keep(name, source, tag)
            assert found == model.arrive(name, source, tag)


def test_a_receive_from_anybody_does_not_overtake_an_earlier_one_from_the_same_source() -> None:
    matching: Matching[str, str] = Matching()
    assert matching.post("from 1", 1, 0) is None
    assert matching.post("from any", None, 0) is None
    assert matching.match(1, 0) == "from 1"
    assert matching.match(1, 0) == "from any"


def test_of_the_waiting_messages_the_one_that_came_first_is_received() -> None:
    matching: Matching[str, str] = Matching()
    matching.keep("second tag", 1, 7)
    matching.keep("from 2", 2, 0)
    matching.keep("from 1", 1, 0)
    assert matching.post("a", None, 0) == (2, "from 2")
    assert matching.post("b", None, 0) == (1, "from 1")
    assert matching.post("c", None, 0) is None
