"""What reaches a coordinator over connections that break anywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.events import Advised, StepsApplied
from shoal.membership.member import outbox as outbox_module
from shoal.membership.member.outbox import Outbox
from shoal.steps import StepRow
from shoal.values import TimeShares, Unreached
from shoal.wire.message_frames import body_length
from shoal.wire.messages import (
    MAX_MESSAGE_BYTES,
    ClientMessage,
    ExchangeBroken,
    Heartbeat,
    Leave,
    Message,
    PartWritten,
    Ready,
    Report,
    decode_client,
)


def broken(generation: int) -> ExchangeBroken:
    return ExchangeBroken(generation=generation, step=1, operation="all-reduce", peer=None, reason="")


def part(name: str) -> PartWritten:
    return PartWritten(checkpoint=name, generation=1, step=1, file="a", size=1, seconds=0, blocked=0, reason="due")


def report(text: str) -> Report:
    return Report(events=(Advised(worker=0, text=text),))


def drain(outbox: Outbox, most: int = 1 << 30) -> bytes:
    """Let a connection take so many bytes."""
    taken = b""
    while outbox and len(taken) < most:
        data = bytes(outbox.next_bytes()[: most - len(taken)])
        outbox.taken(len(data))
        taken += data
    return taken


def messages(data: bytes) -> list[ClientMessage]:
    """The whole messages; a coordinator drops the rest with the connection."""
    found = []
    while len(data) >= 4 and len(data) >= 4 + body_length(data[:4], MAX_MESSAGE_BYTES):
        end = 4 + body_length(data[:4], MAX_MESSAGE_BYTES)
        found.append(decode_client(data[4:end]))
        data = data[end:]
    return found


SOME_MESSAGES = some.one_of(
    some.builds(report, some.text(max_size=20)),
    some.builds(broken, some.integers(1, 9)),
    some.builds(lambda number: Ready(generation=number), some.integers(1, 9)),
    some.builds(part, some.sampled_from(["a", "b", "c"])),
    some.just(Heartbeat(generation=1, step=1, operation="forward")),
)


@given(some.lists(SOME_MESSAGES, max_size=12), some.lists(some.integers(0, 200), max_size=6))
def test_whatever_breaks_all_that_counts_arrives_whole_and_nothing_is_made_up(
    said: list[Message], cuts: list[int]
) -> None:
    outbox = Outbox()
    for message in said:
        outbox.add(message)
    heard: list[Message] = []
    for size in cuts:
        heard += messages(drain(outbox, size))
        outbox.start_over(0.0)
    heard += messages(drain(outbox))
    assert all(message in said for message in heard)
    lasting = [message for message in said if not isinstance(message, Heartbeat | Report)]
    notices = [message for message in lasting if isinstance(message, Ready | ExchangeBroken)]
    assert all(message in heard for message in lasting)
    if notices:
        assert [message for message in heard if isinstance(message, Ready | ExchangeBroken)][-1] == notices[-1]


@given(some.lists(SOME_MESSAGES, max_size=12))
def test_without_a_break_everything_arrives_once_and_in_order(said: list[Message]) -> None:
    outbox = Outbox()
    for message in said:
        outbox.add(message)
    assert messages(drain(outbox)) == said
    assert not outbox


def test_what_has_been_answered_is_not_said_again() -> None:
    outbox = Outbox()
    for message in (part("a"), part("b"), broken(3)):
        outbox.add(message)
    drain(outbox)
    outbox.settled("a")
    outbox.generation_heard(3)
    outbox.start_over(0.0)
    assert messages(drain(outbox)) == [part("b"), broken(3)]
    outbox.generation_heard(4)
    outbox.start_over(0.0)
    assert messages(drain(outbox)) == [part("b")]


def test_who_could_not_be_reached_when_a_connection_broke_is_not_named_on_the_next() -> None:
    """The coordinator may have been away for long. A notice that was cut in two is none."""
    outbox = Outbox()
    outbox.add(msgspec.structs.replace(broken(1), unreached=Unreached(unreachable=(2,), late=(3,))))
    assert messages(drain(outbox))[0].unreached.unreachable == (2,)  # type: ignore[union-attr]  # it is that notice
    for most in (1 << 30, 10):
        outbox.start_over(0.0)
        drain(outbox, most)
    outbox.start_over(0.0)
    assert messages(drain(outbox)) == [broken(1)]


def steps(number: int, rows: int = 1) -> Report:
    row = StepRow(number, 0, 0.1, 8, {}, 8, 1, 0.1 * number)
    return Report(events=(applied(number, rows=(row,) * rows),))


def applied(number: int, **changes: Any) -> StepsApplied:
    made = StepsApplied(
        worker=0, generation=1, step=number, epoch=0, samples=8 * number, seconds=0.1 * number, shares=TimeShares(),
        bytes_sent=0, values={}, clock=0.1 * number,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_reports_of_steps_are_said_again_as_sent_now() -> None:
    """For a coordinator that died before it could write them; what comes twice has the same totals and rows."""
    outbox = Outbox()
    for number in range(1, 4):
        outbox.add(steps(number))
    drain(outbox)
    outbox.start_over(77.0)
    again = [event for message in messages(drain(outbox)) for event in getattr(message, "events", ())]
    assert [event.samples for event in again] == [8, 16, 24]
    assert [event.clock for event in again] == [77.0] * 3
    assert [event.rows[0].ended for event in again] == [pytest.approx(0.1 * number) for number in range(1, 4)]


def test_what_is_said_again_is_bounded() -> None:
    outbox = Outbox()
    for number in range(1, 50):
        outbox.add(steps(number, rows=outbox_module.RECENT_ROWS // 10))
    drain(outbox)
    outbox.start_over(0.0)
    again = messages(drain(outbox))
    assert len(again) == 10
    assert [event.step for event in getattr(again[-1], "events", ())] == [49]


def test_a_last_word_is_said_again() -> None:
    outbox = Outbox()
    leave = Leave(step=1, reason="done")
    outbox.add(leave)
    drain(outbox)
    outbox.start_over(0.0)
    assert messages(drain(outbox)) == [leave]


def test_when_too_much_waits_the_oldest_events_go_and_nothing_else() -> None:
    outbox = Outbox()
    outbox.add(report("x" * 2_000_000))
    begun = drain(outbox, 100)
    outbox.add(broken(1))
    for number in range(20):
        outbox.add(report(f"{number:02}" + "x" * 1_000_000))
    arrived = messages(begun + drain(outbox))
    assert arrived[0] == report("x" * 2_000_000)
    assert broken(1) in arrived
    texts = [message.events[0].text[:2] for message in arrived[2:] if isinstance(message, Report)]
    assert texts == [f"{number:02}" for number in range(20 - len(texts), 20)]
    assert len(texts) >= outbox_module.MAX_WAITING // 1_100_000 - 3
