"""Which member tells its script's calls, what newcomers are told of them, and that nobody is kept out for ever."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st

from shoal.job_config import JobConfig
from shoal.membership.core import briefings
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.protocol import Arrived, Closed, Instruction, Send
from shoal.membership.member.call_book import CallBook, teller
from shoal.terms import MOST_CALLS, Made, ScriptCall
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    Briefing,
    Calls,
    ClientMessage,
    Enlist,
    Formed,
    ProcessExited,
    Ready,
    RegroupWish,
    Watch,
    encode,
)
from support.fake_coordinator import generation
from support.membership import broken, join

LAUNCHER, GUEST = 99, 98  # clients
T = TypeVar("T")


def made(number: int, result: bytes | None = None) -> Made:
    return Made(ScriptCall.of("mean", [("number", number)]), result)


def calls(*numbers: int, first: int = 0) -> Calls:
    return Calls(first=first, calls=tuple(map(made, numbers)))


class Job:
    """A core whose clients have the numbers of their workers."""

    def __init__(self, workers: int) -> None:
        self.core = MembershipCore(JobConfig(workers=workers), now=0.0)
        self.say(LAUNCHER, Watch(version=PROTOCOL_VERSION))
        self.say(GUEST, Watch(version=PROTOCOL_VERSION, is_launcher=False))
        self.out: list[Instruction] = []
        for worker in range(workers):
            self.out += self.say(worker, join(worker))

    def say(self, client: int, message: ClientMessage) -> tuple[Instruction, ...]:
        return self.core.handle(Arrived(client, message), 1.0)

    def kill(self, worker: int) -> None:
        self.core.handle(Closed(worker), 1.0)
        self.say(LAUNCHER, ProcessExited(worker=worker, code=-9, reason=""))

    def newcomer(self, worker: int) -> None:
        """Somebody adds it to those that the launcher has started."""
        self.say(GUEST, Enlist())
        self.say(worker, join(worker))


def sent(kind: type[T], instructions: Iterable[Instruction]) -> list[tuple[tuple[int, ...], T]]:
    return [
        (one.clients, one.message) for one in instructions if isinstance(one, Send) and isinstance(one.message, kind)
    ]


def test_one_member_tells_and_nobody_listens_to_others() -> None:
    job = Job(3)
    job.say(0, calls(1, 2))
    job.say(1, calls(7, 8, 9))
    job.kill(0)
    job.say(1, broken(step=5, peer=0))
    job.say(2, broken(step=5, peer=0))
    job.say(2, calls(7, 8, 9))
    job.say(1, calls(1, 2, 3))
    job.newcomer(3)
    ((_, told),) = sent(Briefing, job.say(3, Ready(generation=0, seen=0)))
    assert told.calls == (made(1), made(2), made(3))


def test_all_that_was_told_is_void_when_nobody_brings_the_state() -> None:
    job = Job(1)
    job.say(0, calls(1, 2))
    job.kill(0)
    job.newcomer(1)
    assert sent(Briefing, job.say(1, Ready(generation=0, seen=0))), "a guest is compared with those that are gone"
    assert sent(Formed, job.say(1, Ready(generation=0, seen=2)))
    job.newcomer(2)
    assert not sent(Briefing, job.say(2, Ready(generation=0, seen=0, is_ahead=True)))
    assert sent(Briefing, job.say(1, calls(5)))


def test_a_newcomer_is_told_the_result_of_the_last_call_that_it_has_seen() -> None:
    job = Job(1)
    job.newcomer(1)
    job.say(0, calls(1))
    job.say(1, Ready(generation=0, seen=0, is_ahead=True))
    job.say(0, Calls(first=0, calls=(made(1, b"result"), made(2))))
    ((_, told),) = sent(Briefing, job.say(1, Ready(generation=0, seen=1)))
    assert (told.first, told.calls) == (0, (made(1, b"result"), made(2)))


def test_members_whose_loops_take_no_time_still_let_a_newcomer_in() -> None:
    job = Job(1)
    job.newcomer(1)
    seen = 0
    for number in range(10 * briefings.MOST_BRIEFINGS):
        wishes = sent(RegroupWish, job.say(0, calls(number, first=number)))
        out = job.say(1, Ready(generation=0, seen=seen))
        told = sent(Briefing, out)
        if wishes or sent(RegroupWish, out):
            return
        seen = max(seen, *(briefing.first + len(briefing.calls) for _, briefing in told)) if told else seen
    raise AssertionError("nobody was asked to let it in")


def test_calls_that_are_too_many_or_out_of_place_are_left_out() -> None:
    job = Job(1)
    job.say(0, calls(5, first=3))
    job.say(0, calls(1))
    job.say(0, Calls(first=1, calls=(made(2),) * (MOST_CALLS + 10)))
    job.say(0, calls(9, first=-1))
    job.newcomer(1)
    seen = 0
    while told := sent(Briefing, job.say(1, Ready(generation=0, seen=seen))):
        ((_, briefing),) = told
        assert len(encode(briefing)) < 2 * 1024 * 1024
        seen = briefing.first + len(briefing.calls)
    assert seen == MOST_CALLS


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.integers(0, 6)),
        st.tuples(st.just("form"), st.sampled_from([(), (0,), (0,), (1,)])),
        st.tuples(st.just("reconnect"), st.booleans()),
    ),
    max_size=40,
)


@given(EVENTS)
def test_the_coordinator_has_what_the_script_called_however_often_it_starts_anew(events: list[tuple[str, Any]]) -> None:
    """`known` is what the coordinator keeps of what it was told, as `Briefings` does. The worker's number is 0."""
    book, script, known = CallBook(0), list[Made](), list[Made]()
    current = generation(1, 0, 1)
    book.formed(current)

    def take(messages: Iterable[Calls]) -> None:
        for message in messages:
            if message.first <= len(known):
                known[message.first :] = message.calls

    for number, (kind, value) in enumerate(events):
        if kind == "make":
            index = min(value, len(script))  # a script that starts again from the top begins with its first call
            script[index:] = [made(number)]
            take(book.made(index, script[index]))
        elif kind == "form":
            current = generation(current.number + 1, 0, 1, holders=value)
            if not value:
                script.clear()
                known.clear()
            take(book.formed(current))
        else:  # the connection broke, and maybe the coordinator was started again
            if value:
                known.clear()
            book.formed(current)
            take(book.connected())
        if teller(current) == 0:
            assert known == script
