"""Invariants of the membership core under any order of messages, closed connections and ticks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.events import Advised, JobEnded, StepsApplied, StopAgreed
from shoal.job_config import JobConfig
from shoal.membership.core.core import MembershipCore
from shoal.membership.core.decisions import (
    CheckpointDecided,
    Decision,
    EndDecided,
    GenerationDecided,
    NumberGiven,
    add_up,
)
from shoal.membership.core.protocol import (
    Arrived,
    Close,
    Closed,
    DiscardCheckpoint,
    End,
    Input,
    Instruction,
    Interrupt,
    Publish,
    Published,
    PublishFailed,
    RecordEvent,
    Send,
    Tick,
    WriteDecision,
)
from shoal.membership.publisher import PublishOutcome
from shoal.membership.verdicts.job_end import PUBLISHING_WAIT
from shoal.terms import Made, ScriptCall
from shoal.values import THROUGH, Generation, TimeShares
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    Beat,
    Calls,
    CheckpointSettled,
    ClientMessage,
    Done,
    Ended,
    Enlist,
    Enlisted,
    ExchangeBroken,
    Failed,
    Formed,
    Heartbeat,
    Inject,
    Leave,
    ProcessExited,
    Ready,
    Report,
    StopRequest,
    Turned,
    Watch,
    Welcome,
)
from support.examples import scaled
from support.membership import Scenario, join, part

WORKERS = 3

ERRORS = ("ScriptFailed", "Interrupted", "TermsDiffer", "", "what")
small = st.integers(-1, WORKERS)
texts = st.sampled_from(["", "a reason"])
messages: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(
        join, small, version=st.sampled_from([PROTOCOL_VERSION] * 3 + [1]), port=st.sampled_from([7000, 7000, 0])
    ),
    st.builds(
        join, st.integers(0, WORKERS + 1), generation=st.integers(0, 3), torch=st.sampled_from(["", "2.13.0", "2"])
    ),
    st.builds(Watch, version=st.just(PROTOCOL_VERSION), is_launcher=st.booleans()),
    st.builds(Heartbeat, generation=small, step=small, operation=texts, stalled=st.sampled_from([0.0, 700.0])),
    st.builds(Heartbeat, generation=st.just(1), step=small, operation=texts, point=st.sampled_from([0, 3, THROUGH])),
    st.builds(
        Done,
        generation=st.sampled_from([1, 1, 2]),
        step=small,
        reason=texts,
        points=small,
        is_through=st.booleans(),
        is_leaving=st.sampled_from([False, False, True]),
    ),
    st.builds(Ready, generation=st.integers(0, 4), seen=st.none() | st.integers(-1, 4), is_ahead=st.booleans()),
    st.builds(
        Calls, first=st.integers(-1, 4), calls=st.lists(st.just(Made(ScriptCall.of("mean"))), max_size=3).map(tuple)
    ),
    st.just(Enlist()),
    st.builds(Inject, worker=small, fault=st.just("cut"), seconds=st.just(1.0)),
    st.builds(
        Report,
        events=st.lists(
            st.sampled_from(
                [
                    Advised(worker=0, text="slow"),
                    StopAgreed(step=3, reason="enough"),
                    JobEnded(outcome="finished", exit_code=0, reason="", seconds=0.0),
                ]
            ),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(
        ExchangeBroken,
        generation=st.integers(0, 4),
        step=small,
        operation=st.sampled_from(["", "connecting"]),
        peer=st.none() | small,
        reason=texts,
        holds=st.integers(0, 3),
        is_planned=st.booleans(),
        must_restore=st.sampled_from([False, False, True]),
    ),
    st.builds(Failed, step=small, error=st.sampled_from(ERRORS), text=texts),
    st.builds(Leave, step=small, reason=texts, is_handover=st.booleans()),
    st.builds(StopRequest, reason=texts),
    st.builds(ProcessExited, worker=small, code=st.sampled_from([0, 0, 1, -9, -99]), reason=texts),
    st.builds(part, small, step=st.just(1), generation=st.sampled_from([0, 1, 1, 2]), failed=texts),
    st.builds(part, st.integers(0, WORKERS - 1), step=st.just(1)),
)
clients = st.integers(1, 6)
inputs: st.SearchStrategy[Input] = st.one_of(
    st.builds(Arrived, clients, messages),
    st.builds(Arrived, clients, messages),
    st.builds(Arrived, clients, messages),
    st.builds(Closed, clients, texts),
    st.just(Tick()),
    st.builds(Interrupt, texts),
    st.just(Published("step-00000001-g1", PublishOutcome(size=1, removed=()))),
    st.just(PublishFailed("step-00000001-g1", "no space left on device")),
)
# A job that is under way: without it, random messages rarely get as far as a generation.
START: tuple[Input, ...] = (
    Arrived(1, Watch(version=PROTOCOL_VERSION)),
    *(Arrived(2 + worker, join(worker)) for worker in range(WORKERS)),
)
histories = st.builds(
    lambda start, rest: (*START[:start], *rest),
    st.integers(0, len(START)),
    st.lists(inputs, max_size=30),
)
steps_of_time = st.sampled_from([0.0, 0.1, 0.1, 0.6, 6.0])


@dataclass
class Checker:
    """Follows the instructions as a shell would, and fails on the first that breaks an invariant."""

    closed: set[int] = field(default_factory=set)
    welcomed: list[int] = field(default_factory=list)
    told_end: set[int] = field(default_factory=set)
    generations: list[int] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    ended: int = 0
    over: bool = False

    def check(self, happened: Input, instructions: Iterable[Instruction]) -> None:
        if isinstance(happened, Closed):
            self.closed.add(happened.client)
        for instruction in instructions:
            if self.over:
                turning_away = isinstance(instruction, Send) and isinstance(instruction.message, Turned)
                assert turning_away or isinstance(instruction, Close), instruction
            self._follow(instruction)

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Send(to, message):
                assert to
                assert not self.closed & set(to), instruction
                self._message(to, message)
            case WriteDecision(decision):
                self.decided.append(decision)
            case RecordEvent(event, watchers):
                assert not self.closed & set(watchers)
                assert not self.ended, "an event after JobEnded"
                self.ended += isinstance(event, JobEnded)
            case Close(client):
                assert client not in self.closed
                self.closed.add(client)
            case Publish(request):
                assert request.checkpoint not in self.published
                self.published.append(request.checkpoint)
            case DiscardCheckpoint(name):
                assert name.startswith("step-00000001-g")
            case End():
                assert self.ended == 1
                assert set(self.welcomed) - self.closed <= self.told_end
                self.over = True

    def _message(self, to: tuple[int, ...], message: object) -> None:
        if isinstance(message, Welcome):
            assert not set(self.welcomed) & set(to)
            self.welcomed += to
        elif isinstance(message, Ended):
            assert any(isinstance(decision, EndDecided) for decision in self.decided)
            self.told_end.update(to)
        elif isinstance(message, Enlisted):
            assert message.worker in (one.worker for one in self.decided if isinstance(one, NumberGiven))
        elif isinstance(message, CheckpointSettled):
            assert CheckpointDecided(message.checkpoint, message.published) in self.decided
        elif isinstance(message, Formed):
            self._formed(to, message.generation)

    def _formed(self, to: tuple[int, ...], generation: Generation) -> None:
        assert GenerationDecided(generation) in self.decided, "told before it was written down"
        assert [member.rank for member in generation.members] == list(range(generation.size))
        numbers = [member.worker for member in generation.members]
        assert numbers == sorted(set(numbers))
        guests = {one.worker for one in self.decided if isinstance(one, NumberGiven) and one.is_guest}
        assert len(set(numbers) - guests) <= WORKERS
        assert set(generation.holders) <= set(numbers)
        assert generation.reason
        if generation.number in self.generations:  # said again, to one that had not heard it
            assert generation.number == self.generations[-1]
            assert len(to) == 1
        else:
            self.generations.append(generation.number)
            assert self.generations == sorted(self.generations)


@settings(max_examples=scaled(400), deadline=None)
@given(histories, st.data())
def test_invariants_hold_for_any_order_of_messages(history: tuple[Input, ...], data: st.DataObject) -> None:
    core = MembershipCore(JobConfig(workers=WORKERS), now=0.0)
    checker = Checker()
    now = 0.0
    for happened in history:
        now += data.draw(steps_of_time)
        checker.check(happened, core.handle(happened, now))
    # Everybody goes away, at last a launcher: whatever went before, the job comes to an end, and exactly once.
    last: tuple[Input, ...] = (Arrived(7, Watch(version=PROTOCOL_VERSION)), *(Closed(client) for client in range(1, 8)))
    for happened in (*last, *[Tick()] * 20):
        now += 0.1
        checker.check(happened, core.handle(happened, now))
    checker.check(Tick(), core.handle(Tick(), now + PUBLISHING_WAIT))  # for a checkpoint that nobody answers for
    assert checker.over


@settings(max_examples=scaled(50), deadline=None)
@given(histories)
def test_the_same_history_gives_the_same_instructions(history: tuple[Input, ...]) -> None:
    cores = [MembershipCore(JobConfig(workers=WORKERS), now=0.0) for _ in range(2)]
    for position, happened in enumerate(history):
        first, second = (core.handle(happened, position * 0.1) for core in cores)
        assert first == second


@settings(max_examples=scaled(200), deadline=None)
@given(histories, st.sets(st.integers(0, 33), max_size=3), st.data())
def test_a_coordinator_that_is_started_again_contradicts_nothing(
    history: tuple[Input, ...], restarts: set[int], data: st.DataObject
) -> None:
    """It knows what was written down and nothing else, and its clients have to come anew."""
    config = JobConfig(workers=WORKERS)
    core, checker, now = MembershipCore(config, now=0.0), Checker(), 0.0
    for position, happened in enumerate(history):
        if position in restarts:
            core = MembershipCore(config, now=now, remembered=add_up(checker.decided))
            checker = Checker(decided=checker.decided, generations=checker.generations)
        now += data.draw(steps_of_time)
        checker.check(happened, core.handle(happened, now))
    assert len([decision for decision in checker.decided if isinstance(decision, EndDecided)]) <= 1
    given = [decision.worker for decision in checker.decided if isinstance(decision, NumberGiven)]
    assert given == sorted(set(given))


@settings(max_examples=scaled(100), deadline=None)
@given(st.permutations(range(5)), st.integers(0, 4))
def test_one_kill_makes_the_next_generation_and_names_the_worker(order: list[int], victim: int) -> None:
    """In whatever order the news of a death arrive, the text is the same, and nobody waits longer than for the last."""
    core = MembershipCore(JobConfig(workers=5), now=0.0)
    core.handle(Arrived(99, Watch(version=PROTOCOL_VERSION)), 0.0)
    for worker in order:
        core.handle(Arrived(worker, join(worker)), 0.0)
    broken = ExchangeBroken(
        generation=1, step=7, operation="all-reduce of gradients", peer=victim, reason="reset", holds=1
    )
    news: list[Input] = [
        Closed(victim),
        Arrived(99, ProcessExited(worker=victim, code=-9, reason="")),
        *(Arrived(worker, broken) for worker in range(5) if worker != victim),
    ]
    news = [news[position] for position in order] + news[5:]
    answers = [core.handle(happened, 0.1) for happened in news]
    assert not [i for answer in answers[:-1] for i in answer if isinstance(i, Send) and isinstance(i.message, Formed)]
    [formed] = [i.message for i in answers[-1] if isinstance(i, Send) and isinstance(i.message, Formed)]
    survivors = tuple(worker for worker in range(5) if worker != victim)
    assert tuple(member.worker for member in formed.generation.members) == survivors
    assert formed.generation.holders == survivors
    assert formed.generation.reason == (
        f"worker {victim} (process {100 + victim} on host-{victim}) was killed by SIGKILL in step 7, "
        "during all-reduce of gradients"
    )


@pytest.mark.parametrize(
    "message",
    [Heartbeat(generation=0, step=0, operation=""), StopRequest(reason=""), Leave(step=0, reason="")],
    ids=lambda message: type(message).__name__,
)
def test_a_first_message_that_says_nothing_of_the_sender_is_turned_away(message: ClientMessage) -> None:
    core = MembershipCore(JobConfig(), now=0.0)
    turned, close = core.handle(Arrived(1, message), 0.0)
    assert isinstance(turned, Send)
    assert isinstance(turned.message, Turned)
    assert "not join or watch" in turned.message.reason
    assert close == Close(1)


def test_a_huge_traceback_is_cut_to_what_can_be_sent_on() -> None:
    core = MembershipCore(JobConfig(), now=0.0)
    core.handle(Arrived(1, join(0)), 0.0)
    text = "first line\n" + "x" * 3_000_000 + "\nlast line"
    instructions = core.handle(Arrived(1, Failed(step=0, error="ScriptFailed", text=text)), 0.0)
    ended = next(i.message for i in instructions if isinstance(i, Send) and isinstance(i.message, Ended))
    assert len(ended.text) < 100_000
    assert "first line" in ended.text
    assert ended.text.endswith("last line")


def test_a_worker_that_is_not_heard_of_gets_no_beats() -> None:
    """Its absence limit runs from the last one that it got, that of others from when it was last heard."""
    core = MembershipCore(JobConfig(workers=2, heartbeat_limit=5.0), now=0.0)
    for worker in range(2):
        core.handle(Arrived(1 + worker, join(worker)), 0.0)
    told: list[tuple[float, tuple[int, ...]]] = []
    for tenth in range(1, 101):
        now = tenth / 10
        core.handle(Arrived(1, Heartbeat(generation=1, step=0, operation="forward", stalled=0.0)), now)
        sent = [one for one in core.handle(Tick(), now) if isinstance(one, Send) and isinstance(one.message, Beat)]
        told += [(now, one.clients) for one in sent]
    assert {clients for now, clients in told if now <= 5.0} == {(1, 2)}
    assert {clients for now, clients in told if now > 5.0} == {(1,)}


@pytest.mark.parametrize(("strategy", "late"), [("all-reduce", []), ("parameter-server", [2])])
def test_steps_that_are_heard_of_only_when_their_worker_is_out_may_have_been_redone(
    strategy: str, late: list[int]
) -> None:
    """They were on their way while its machine was cut off. What servers have taken in nobody redoes."""
    scenario = Scenario()
    for command in (f"job workers=2 heartbeat-limit=2 strategy='\"{strategy}\"'", "join 0", "join 1"):
        scenario.run(command)

    def noted(step: int) -> list[int]:
        applied = StepsApplied(
            worker=1, generation=1, step=step, epoch=0, samples=4, seconds=0.1, shares=TimeShares(), bytes_sent=0,
            values={},
        )  # fmt: skip
        told = scenario.core.handle(Arrived(scenario.clients["worker-1"], Report(events=(applied,))), scenario.now)
        return [one.event.step for one in told if isinstance(one, RecordEvent) and isinstance(one.event, StepsApplied)]

    assert noted(1) == [1]
    assert any("worker-expelled worker=1" in line for line in scenario.run("idle 4 0"))
    assert noted(2) == late


def test_a_report_without_a_new_step_does_not_make_failed_starts_begin_anew() -> None:
    """A member reports when it enters a generation: a job that waits for replacements would wait for ever."""
    scenario = Scenario()
    for command in ("job workers=2 min-workers=2 max-failures=2", "watch", "join 0", "join 1", "close worker-1"):
        scenario.run(command)
    scenario.run("exit 1 code=-9")
    scenario.run("broken 0 peer=1 step=60 operation=evaluation")
    for generation, newcomer in ((2, 2), (3, 3)):
        for command in ("enlist", f"join {newcomer}", f"ready {newcomer}"):
            said = scenario.run(command)
        assert any(f"decided generation {generation}" in line for line in said), said
        applied = StepsApplied(
            worker=0, generation=generation, step=60, epoch=0, samples=40, seconds=0.1, shares=TimeShares(),
            bytes_sent=0, values={},
        )  # fmt: skip
        scenario.core.handle(Arrived(scenario.clients["worker-0"], Report(events=(applied,))), scenario.now)
        said = scenario.run(f'failed {newcomer} step=0 error="TermsDiffer" text="loop 1: batch size is 4 and 8"')
        scenario.run(f"broken 0 peer={newcomer} step=60 generation={generation} operation=evaluation")
    assert any("decided end with exit code 8" in line for line in said), said
