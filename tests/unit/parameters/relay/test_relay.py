"""The relay between workers: bytes arrive in order whenever their receiver joins, and every loss is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.relay.relay import KEPT_GENERATIONS, MAX_WAITING, Forwarded, RelayHub
from shoal.wire.parameter_messages import Relay, RelayJoin, RelayLost

WORKERS = (3, 5, 8)


def joining(generation: int = 1, workers: tuple[int, ...] = WORKERS) -> RelayJoin:
    return RelayJoin(generation=generation, workers=workers)


def sent(data: bytes) -> memoryview:
    return memoryview(data)


def lost(deliveries: tuple[Forwarded, ...]) -> list[tuple[object, int]]:
    return [(each.line, each.note.peer) for each in deliveries if isinstance(each.note, RelayLost)]


def test_bytes_go_to_a_member_that_has_joined_under_the_senders_number() -> None:
    hub = RelayHub()
    assert hub.join("a", 3, joining()) == ()
    assert hub.join("b", 5, joining()) == ()
    (only,) = hub.frame("a", Relay(generation=1, peer=5), sent(b"x"))
    assert (only.line, only.note, bytes(only.payload or b"")) == ("b", Relay(generation=1, peer=3), b"x")


@given(st.lists(st.tuples(st.sampled_from([3, 5]), st.binary(max_size=5)), max_size=30), st.integers(0, 30))
def test_whenever_the_receiver_joins_it_gets_each_senders_bytes_in_order(
    frames: list[tuple[int, bytes]], when: int
) -> None:
    hub = RelayHub()
    for worker in (3, 5):
        hub.join(worker, worker, joining())
    got: list[Forwarded] = []
    for number, (sender, data) in enumerate(frames):
        if number == when:
            got += hub.join(8, 8, joining())
        got += hub.frame(sender, Relay(generation=1, peer=8), sent(data))
    if when >= len(frames):
        got += hub.join(8, 8, joining())
    for sender in (3, 5):
        assert [bytes(each.payload or b"") for each in got if each.note.peer == sender] == [
            data for source, data in frames if source == sender
        ]
    assert {each.line for each in got} <= {8}
    assert hub.waiting_bytes == 0


def test_a_closed_link_is_told_to_those_who_joined_and_to_those_who_do_later() -> None:
    hub = RelayHub()
    hub.join("a", 3, joining())
    hub.join("b", 5, joining())
    hub.frame("a", Relay(generation=1, peer=8), sent(b"last words"))
    assert lost(hub.lost("a", "it died")) == [("b", 3)]
    late = hub.join("c", 8, joining())
    assert [bytes(each.payload or b"") for each in late[:1]] == [b"last words"]
    assert lost(late) == [("c", 3)]
    assert hub.lost("a", "again") == ()


def test_a_member_that_was_lost_cannot_come_back_into_the_same_generation() -> None:
    hub = RelayHub()
    hub.join("a", 3, joining())
    hub.join("b", 5, joining())
    hub.lost("a", "it died")
    assert lost(hub.join("c", 3, joining())) == [("c", 5), ("c", 8)]
    assert hub.join("c", 3, joining(generation=2)) == ()


def test_a_newer_link_of_a_member_replaces_the_older_whose_end_is_no_loss() -> None:
    hub = RelayHub()
    hub.join("a", 3, joining())
    hub.join("b", 5, joining())
    hub.join("a2", 3, joining())
    assert hub.lost("a", "closed") == ()
    assert hub.frame("b", Relay(generation=1, peer=3), sent(b"x"))[0].line == "a2"


def test_too_much_for_one_that_has_not_joined_loses_it_for_the_sender() -> None:
    hub = RelayHub()
    hub.join("a", 3, joining())
    big = memoryview(bytearray(MAX_WAITING))
    assert hub.frame("a", Relay(generation=1, peer=5), big) == ()
    assert hub.frame("a", Relay(generation=1, peer=8), big) == ()  # each pair has its own limit
    (only,) = hub.frame("a", Relay(generation=1, peer=5), sent(b"x"))
    assert isinstance(only.note, RelayLost)
    assert str(MAX_WAITING + 1) in only.note.reason


def test_strangers_and_the_past_are_told_that_nobody_is_there() -> None:
    hub = RelayHub()
    hub.join("a", 3, joining(generation=KEPT_GENERATIONS + 1))
    assert lost(hub.join("b", 5, joining(generation=1))) == [("b", 3), ("b", 8)]
    assert lost(hub.join("c", 9, joining(generation=2))) == [("c", 3), ("c", 5), ("c", 8)]
    assert lost(hub.frame("c", Relay(generation=2, peer=3), sent(b"x"))) == [("c", 3)]
    assert lost(hub.frame("a", Relay(generation=KEPT_GENERATIONS + 1, peer=4), sent(b"x"))) == [("a", 4)]
    others = joining(KEPT_GENERATIONS + 1, (3, 5))
    assert lost(hub.join("b", 5, others)) == [("b", 3)]
