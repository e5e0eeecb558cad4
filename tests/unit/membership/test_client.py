"""A worker's client through broken connections, expulsions and coordinators that are away."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import psutil
import pytest

from shoal.errors import AddressUnavailable, ScriptFailed
from shoal.events import Advised
from shoal.membership import client as client_module
from shoal.membership import texts
from shoal.membership.client import CoordinatorClient
from shoal.strategies.peers.reaching import tell_from_outside
from shoal.terms import Made, ScriptCall
from shoal.transport.tcp.tcp_listener import PeerListener
from shoal.wire.messages import (
    Beat,
    Briefing,
    Calls,
    CheckpointSettled,
    Done,
    Ended,
    ExchangeBroken,
    Expelled,
    Formed,
    Heartbeat,
    Inject,
    Leave,
    PartWritten,
    Ready,
    RegroupWish,
    Released,
    Report,
    StopNotice,
    Turned,
    WrittenDown,
)
from support.collectives import in_threads, succeed
from support.fake_coordinator import PATIENCE, TOKEN, Conversation, FakeCoordinator, generation, join, meanwhile

BROKEN = ExchangeBroken(generation=1, step=3, operation="all-reduce", peer=1, reason="reset")
PART = PartWritten(
    checkpoint="step-00000003-g1", generation=1, step=3, file="part-0", size=1, seconds=0.1, blocked=0.0, reason="due"
)


class Pair:
    """A client and the coordinator it talks to."""

    def __init__(self, stack: ExitStack, **settings: object) -> None:
        self.coordinator = FakeCoordinator(**settings)
        stack.callback(self.coordinator.close)
        self.conversation: Conversation
        self.client: CoordinatorClient
        self.interruptions: list[tuple[str, int | None]] = []

        def connect() -> CoordinatorClient:
            return CoordinatorClient.connect(self.coordinator.address, TOKEN, join(0), timeout=PATIENCE)

        self.client, self.conversation = succeed(connect, lambda: self.coordinator.accept(heartbeat=0.05))
        stack.callback(self.client.close)
        stack.callback(self.coordinator.go_away)  # so that closing need not wait for its answer
        self.client.on_interrupt = lambda reason, below: self.interruptions.append((reason, below))

    def tell(self, *messages: Any) -> None:
        self.conversation.send(*messages)

    def break_off(self, **welcome: Any) -> None:
        """The connection breaks and the client comes back."""
        self.conversation.close()
        self.conversation = self.coordinator.accept(heartbeat=0.05, **welcome)

    def interrupted(self) -> tuple[str, int | None]:
        limit = time.monotonic() + PATIENCE
        while not self.interruptions:
            assert time.monotonic() < limit, "nothing was interrupted"
            time.sleep(0.01)
        return self.interruptions.pop(0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_a_broken_connection_is_made_again_and_the_generation_goes_on(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.break_off(current=generation(4, 0, 1), is_member=True)
    assert pair.conversation.join is not None
    assert pair.conversation.join.generation == 4
    assert pair.conversation.expect(Heartbeat).generation == 4
    assert pair.client.interruption(4) is None
    assert pair.interruptions == []
    pair.tell(StopNotice(reason="enough"), Formed(generation=generation(5, 0)))
    assert pair.client.wait_for_generation(4).number == 5
    assert pair.client.stop_reason == "enough"


def test_a_coordinator_that_is_away_for_a_while_is_found_again(pair: Pair) -> None:
    pair.coordinator.go_away()
    limit = time.monotonic() + PATIENCE
    while pair.client._line._connection is not None:  # what a connection takes before it is known to be gone is lost
        assert time.monotonic() < limit
        time.sleep(0.01)
    pair.client.report(Advised(worker=0, text="said while it was away"))
    time.sleep(0.3)  # a few tries fail
    pair.coordinator.listen()
    pair.conversation = pair.coordinator.accept()
    (event,) = pair.conversation.expect(Report).events
    assert event == Advised(worker=0, text="said while it was away")


def test_a_worker_that_was_put_out_meanwhile_learns_it_and_comes_back_as_a_newcomer(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.break_off(current=generation(5, 1))
    reason, below = pair.interrupted()
    assert below == 5
    assert "went on without this worker" in reason
    assert pair.client.interruption(4) == reason
    pair.break_off(current=generation(5, 1))
    assert pair.conversation.join is not None
    assert pair.conversation.join.generation == 0
    pair.client.tell(Ready(generation=4))
    assert pair.conversation.expect(Ready) == Ready(generation=4)
    pair.tell(Formed(generation=generation(6, 0, 1, holders=(1,))))
    assert pair.client.wait_for_generation(4).number == 6
    assert pair.client.interruption(6) is None


def test_a_generation_that_formed_while_the_connection_was_broken_is_learnt_with_the_welcome(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(1, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.client.tell(BROKEN)
    pair.conversation.expect(ExchangeBroken)
    pair.break_off(current=generation(2, 0), is_member=True)
    assert pair.client.wait_for_generation(1).number == 2
    leaving = meanwhile(lambda: pair.client.leave(step=3, reason="done"))
    pair.conversation.expect(Leave)  # and no second report about generation 1 before it
    pair.tell(WrittenDown())
    leaving.join(PATIENCE)
    assert not leaving.is_alive()


def test_who_waits_for_a_generation_says_so_again_on_every_connection(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(1, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.client.tell(BROKEN)
    assert pair.conversation.expect(ExchangeBroken) == BROKEN
    for _ in range(2):
        pair.break_off(current=generation(1, 0, 1), is_member=True)
        assert pair.conversation.expect(ExchangeBroken) == BROKEN


MADE = Made(ScriptCall.of("loop", [("batch size", 4)]))
GAVE = Made(ScriptCall.of("mean"), b"result")


def test_the_member_that_tells_calls_tells_all_of_them_on_every_connection(pair: Pair) -> None:
    """Worker 0 tells in the first generation, is told off in the second, and tells again in the third."""
    pair.tell(Formed(generation=generation(1, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.client.call_made(0, MADE)
    assert pair.conversation.expect(Calls) == Calls(first=0, calls=(MADE,))
    pair.client.call_made(1, GAVE)
    assert pair.conversation.expect(Calls) == Calls(first=1, calls=(GAVE,))
    pair.break_off(current=generation(1, 0, 1), is_member=True)
    assert pair.conversation.expect(Calls) == Calls(first=0, calls=(MADE, GAVE))
    pair.tell(Formed(generation=generation(2, 0, 1, holders=(1,))))
    pair.client.wait_for_generation(1)
    pair.client.call_made(2, MADE)
    pair.tell(Formed(generation=generation(3, 0, 1, holders=(0, 1))))
    assert pair.conversation.expect(Calls) == Calls(first=0, calls=(MADE, GAVE, MADE))
    # All start anew: what was called before is void.
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(3)
    pair.client.call_made(3, GAVE)
    pair.client.call_made(0, GAVE)
    assert pair.conversation.expect(Calls) == Calls(first=0, calls=(GAVE,))


def test_a_message_that_a_broken_connection_cut_in_two_does_not_spoil_what_is_told_on_the_next(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(1, 0, 1)))
    pair.client.wait_for_generation(0)
    pair.client.call_made(0, MADE)
    pair.conversation.expect(Calls)
    filling = [Advised(worker=0, text=f"{number} " + "x" * 400_000) for number in range(40)]
    for event in filling:  # more than the socket takes while nobody reads
        pair.client.report(event)
    pair.break_off(current=generation(1, 0, 1), is_member=True)
    pair.client.part_written(PART)
    awaited: list[object] = [PART, Calls(first=0, calls=(MADE,))]
    while awaited:  # everything that comes can be read
        message = pair.conversation.next()
        awaited = [one for one in awaited if one != message]


def test_a_newcomer_is_briefed_in_place_of_a_generation_and_is_not_ready_then(pair: Pair) -> None:
    pair.client.tell(Ready(generation=0, seen=0))
    pair.conversation.expect(Ready)
    briefing = Briefing(generation=generation(3, 1, 2), first=0, calls=(MADE,))
    pair.tell(briefing)
    assert pair.client.wait_for_word(0) == briefing
    pair.break_off(current=generation(3, 1, 2))
    pair.client.tell(Ready(generation=0, seen=1))
    assert pair.conversation.expect(Ready).seen == 1, "what it said before is not said again"


def test_a_part_of_a_checkpoint_is_said_again_until_it_is_settled(pair: Pair) -> None:
    pair.client.part_written(PART)
    assert pair.conversation.expect(PartWritten) == PART
    pair.break_off()
    assert pair.conversation.expect(PartWritten) == PART
    pair.tell(CheckpointSettled(checkpoint=PART.checkpoint, published=True))
    assert pair.client.wait_settled(PART.checkpoint, PATIENCE) is True
    pair.break_off()
    pair.client.report(Advised(worker=0, text="the next word"))
    pair.conversation.expect(Report)


def test_an_expulsion_interrupts_and_is_handed_to_whoever_waits(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(3, 0, 1)), Expelled(generation=3, reason="it hung"))
    assert pair.interrupted() == ("it hung", 4)
    words: list[object] = []
    assert isinstance(pair.client.wait_for_word(3), Expelled)
    pair.client.tell(Ready(generation=3))  # that was the answer: it is not handed out again
    waiting = meanwhile(lambda: words.append(pair.client.wait_for_word(3)))
    pair.tell(Formed(generation=generation(5, 0, 1)))
    waiting.join(PATIENCE)
    assert words == [generation(5, 0, 1)]


def test_an_expulsion_from_an_older_generation_is_late(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(3, 0, 1)), Expelled(generation=2, reason="it hung"), StopNotice(reason="x"))
    pair.client.wait_for_generation(0)
    pair.tell(Formed(generation=generation(4, 0, 1)))
    assert pair.interrupted() == ("a test", 4)


def test_a_wish_to_regroup_counts_until_the_next_generation(pair: Pair) -> None:
    wish = RegroupWish(generation=1, reason="worker 2 waits")
    pair.tell(Formed(generation=generation(1, 0, 1)), wish, CheckpointSettled(checkpoint="a", published=False))
    pair.client.wait_settled("a", PATIENCE)
    assert pair.client.regroup_wish == "worker 2 waits"
    pair.tell(Formed(generation=generation(2, 0, 1, 2)))
    pair.client.wait_for_generation(1)
    assert pair.client.regroup_wish is None


def test_the_lease_runs_while_nothing_is_heard_and_again_from_the_next_word(pair: Pair) -> None:
    pair.client.wait_heard(PATIENCE)
    time.sleep(0.1)
    waiting = meanwhile(lambda: pair.client.wait_heard(0.05))
    time.sleep(0.1)
    assert waiting.is_alive()
    pair.tell(Beat())
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_waiting_for_the_lease_ends_with_the_job(pair: Pair) -> None:
    time.sleep(0.05)

    def end() -> None:
        time.sleep(0.05)
        # With the end something is heard, and the wait may return; what matters is that it does not go on.
        pair.tell(Ended(exit_code=1, error="ScriptFailed", text="it raised"))

    in_threads(lambda: pair.client.wait_heard(0.01), end)
    with pytest.raises(ScriptFailed, match="it raised"):
        pair.client.wait_for_generation(0)
    assert pair.interrupted() == ("it raised", None)


def test_heartbeats_carry_where_the_script_is_and_for_how_long_it_has_been_blocked(pair: Pair) -> None:
    pair.client.set_position(7, "all-reduce of gradients")
    pair.client.stalled = lambda: 2.5
    limit = time.monotonic() + PATIENCE
    while (beat := pair.conversation.expect(Heartbeat)).step != 7 or beat.stalled != 2.5:
        assert time.monotonic() < limit
    assert beat.operation == "all-reduce of gradients"


def test_faults_on_purpose_reach_those_who_suffer_them(pair: Pair) -> None:
    suffered: list[Inject] = []
    pair.client.on_fault = suffered.append
    cut = Inject(worker=0, fault="cut", seconds=5.0, peer=1)
    pair.tell(cut, Inject(worker=0, fault="fill-disk", seconds=50.0), CheckpointSettled(checkpoint="a", published=True))
    pair.client.wait_settled("a", PATIENCE)
    assert suffered == [cut]
    assert pair.client.disk_full_until > time.monotonic()


def test_a_coordinator_that_stays_away_is_lost_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "AWAY_SECONDS", -0.9)
    with ExitStack() as stack:
        pair = Pair(stack, lease=1.0)
        pair.coordinator.go_away()
        with pytest.raises(AddressUnavailable, match=re.escape(texts.coordinator_gone(pair.coordinator.address, ""))):
            pair.client.wait_for_generation(0)
        reason, below = pair.interrupted()
        assert "is gone" in reason
        assert below is None
        with pytest.raises(AddressUnavailable):
            pair.client.wait_heard(0.0)


def test_being_turned_away_is_final(pair: Pair) -> None:
    pair.tell(Turned(reason="its number is another's now"))
    with pytest.raises(AddressUnavailable, match="its number is another's now"):
        pair.client.wait_for_generation(0)


def test_garbage_from_the_coordinator_is_final(pair: Pair) -> None:
    pair.conversation._socket.sendall(b"\x00\x00\x00\x03abc")
    with pytest.raises(AddressUnavailable, match="not a message of the coordinator"):
        pair.client.wait_for_generation(0)


def test_a_last_word_waits_for_a_coordinator_that_is_away(pair: Pair) -> None:
    pair.coordinator.go_away()
    leaving = meanwhile(lambda: pair.client.leave(step=9, reason="done"))
    time.sleep(0.2)
    pair.coordinator.listen()
    conversation = pair.coordinator.accept()
    assert conversation.expect(Leave).step == 9
    conversation.send(WrittenDown())
    leaving.join(PATIENCE)
    assert not leaving.is_alive()


def test_closing_does_not_wait_for_a_coordinator_that_is_away(pair: Pair) -> None:
    pair.coordinator.go_away()
    closing = meanwhile(pair.client.close)
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_many_broken_connections_leave_no_descriptor_behind(pair: Pair) -> None:
    before = psutil.Process().num_fds()
    for _ in range(20):
        pair.break_off()
        pair.conversation.expect(Heartbeat)
    assert psutil.Process().num_fds() <= before + 2


# At the end of the script

DONE = Done(generation=4, step=9, reason="the script is done", is_through=True)


def nobody_wants_it_to_go() -> None:
    return None


def test_one_that_is_done_says_so_on_every_connection_until_it_is_released(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    answers: list[object] = []
    waiting = meanwhile(lambda: answers.append(pair.client.finish(DONE, nobody_wants_it_to_go, pair.client.tell)))
    assert pair.conversation.expect(Done) == DONE
    pair.break_off(current=generation(4, 0, 1), is_member=True)
    assert pair.conversation.expect(Done) == DONE
    pair.tell(Released(), Ended(exit_code=0, error="", text="all 2 workers finished"))
    waiting.join(PATIENCE)
    assert answers == [None]


def test_one_that_is_done_is_needed_again_by_a_later_generation(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    answers: list[object] = []
    waiting = meanwhile(lambda: answers.append(pair.client.finish(DONE, nobody_wants_it_to_go, pair.client.tell)))
    pair.conversation.expect(Done)
    pair.tell(Formed(generation=generation(5, 0)))
    waiting.join(PATIENCE)
    assert answers == [generation(5, 0)]


def test_one_that_is_done_and_hears_of_its_release_late_does_not_wait_for_members_that_are_gone(pair: Pair) -> None:
    """It was released while its connection was broken: the others' processes may have ended, and never answer."""
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    is_outside = threading.Event()

    def wait_outside(ready: Ready) -> None:
        is_outside.set()
        tell_from_outside(pair.client, listener, 0, ready, lambda: False)

    with closing(PeerListener("127.0.0.1", TOKEN)) as listener:
        waiting = meanwhile(lambda: pair.client.finish(DONE, nobody_wants_it_to_go, wait_outside))
        pair.conversation.expect(Done)
        pair.break_off(current=generation(4, 0, 1), is_member=False)
        assert is_outside.wait(PATIENCE)
        pair.tell(Released())
        waiting.join(PATIENCE)
        is_waiting = waiting.is_alive()
        pair.tell(Ended(exit_code=0, error="", text="all 2 workers finished"))
        waiting.join(PATIENCE)
    assert not is_waiting


def test_one_that_is_done_and_told_to_go_asks_for_its_release(pair: Pair) -> None:
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    waiting = meanwhile(lambda: pair.client.finish(DONE, lambda: "worker 0 got SIGTERM", pair.client.tell))
    assert not pair.conversation.expect(Done).is_leaving
    asked = pair.conversation.expect(Done)
    assert (asked.is_leaving, asked.reason) == (True, "worker 0 got SIGTERM")
    pair.tell(Released())
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


@pytest.mark.parametrize("is_through", [True, False])
def test_being_turned_away_is_a_good_end_only_for_one_that_is_through(pair: Pair, is_through: bool) -> None:
    """The job may have ended well while its connection was broken; with something left to run, that is unlikely."""
    pair.tell(Formed(generation=generation(4, 0, 1)))
    pair.client.wait_for_generation(0)
    answers: list[object] = []

    def wait() -> None:
        try:
            done = msgspec.structs.replace(DONE, is_through=is_through)
            answers.append(pair.client.finish(done, lambda: None, pair.client.tell))
        except AddressUnavailable as error:
            answers.append(type(error))

    waiting = meanwhile(wait)
    pair.conversation.expect(Done)
    pair.tell(Turned(reason="the job has ended: all 2 workers finished"))
    waiting.join(PATIENCE)
    assert answers == [None if is_through else AddressUnavailable]


def test_how_far_the_script_has_got_is_said_at_once(pair: Pair) -> None:
    pair.client.set_position(9, "the code behind loop 1")
    pair.client.reach(5)
    while (beat := pair.conversation.expect(Heartbeat)).point != 5:
        assert beat.point == 0
    assert (beat.step, beat.operation) == (9, "the code behind loop 1")
