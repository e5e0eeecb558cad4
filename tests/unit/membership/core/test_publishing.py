"""Checkpoints on their way, under any order of parts, failures, departures, generations and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.events import CheckpointLost, CheckpointPublished
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import CheckpointDecided
from shoal.membership.core.protocol import DiscardCheckpoint, Instruction, Publish, RecordEvent, Send, WriteDecision
from shoal.membership.core.publishing import MOST_OPEN, Publishing
from shoal.membership.publisher import PublishOutcome
from shoal.values import Address, Generation, Member
from shoal.wire.messages import CheckpointSettled, PartFailed, PartWritten
from support.examples import scaled
from support.membership import part

WORKERS = 3


def generation(number: int) -> Generation:
    members = tuple(
        Member(rank=rank, worker=rank, host="here", process=rank, address=Address("127.0.0.1", 1))
        for rank in range(WORKERS)
    )
    return Generation(number=number, members=members, schedule="auto", codec="identity", reason="test")


def fresh() -> tuple[Publishing, Audience]:
    audience = Audience()
    for worker in range(WORKERS):
        audience.add_worker(worker, worker)
    return Publishing(audience, after_generation=0), audience


@dataclass
class Checker:
    """Follows the instructions and fails on the first that breaks a promise."""

    written: dict[str, set[int]] = field(default_factory=dict)  # by checkpoint: who has said so
    asked: list[str] = field(default_factory=list)  # publications
    done: dict[str, bool] = field(default_factory=dict)  # by checkpoint: published?
    decided: dict[str, bool] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)

    def follow(self, instructions: tuple[Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case Publish(request):
                    assert request.checkpoint not in [*self.asked, *self.done]
                    assert self.written[request.checkpoint] == set(range(WORKERS))
                    assert list(request.files) == [f"part-{rank}.safetensors" for rank in range(WORKERS)]
                    self.asked.append(request.checkpoint)
                case DiscardCheckpoint(name):
                    assert self.done[name] is False, "discarded before it was said to be lost, or although published"
                case RecordEvent(CheckpointPublished() as event):
                    assert event.checkpoint in self.asked
                    assert (event.seconds, event.blocked) >= (0.5, 0.25)
                    self.end(event.checkpoint, published=True)
                case RecordEvent(CheckpointLost() as event):
                    assert event.reason
                    self.end(event.checkpoint, published=False)
                case WriteDecision(CheckpointDecided() as decision):
                    self.decided[decision.checkpoint] = decision.is_published
                case Send(_, CheckpointSettled() as message):
                    assert self.decided[message.checkpoint] == message.published, "told before it was written down"
                    assert message.checkpoint not in self.settled
                    self.settled[message.checkpoint] = message.published
                    assert self.done[message.checkpoint] == message.published
                case _:
                    pytest.fail(f"unexpected {instruction}")

    def end(self, name: str, *, published: bool) -> None:
        assert name not in self.done
        self.done[name] = published


steps = st.integers(1, 4).map(lambda number: number * 10)
actions = st.one_of(
    st.tuples(st.just("written"), st.integers(0, WORKERS - 1), steps),
    st.tuples(st.just("written"), st.integers(0, WORKERS - 1), steps),
    st.tuples(st.just("failed"), st.integers(0, WORKERS - 1), steps),
    st.tuples(st.just("stale"), st.integers(0, WORKERS - 1), steps),
    st.tuples(st.just("gone"), st.integers(0, WORKERS - 1), st.just(0)),
    st.tuples(st.sampled_from(["answer", "no answer", "regroup"]), st.just(0), st.just(0)),
)


@settings(max_examples=scaled(400), deadline=None)
@given(st.lists(actions, max_size=40))
def test_every_checkpoint_is_published_or_lost_once_and_never_both(history: list[tuple[str, int, int]]) -> None:
    publishing, audience = fresh()
    checker = Checker()
    current = generation(1)
    reported: set[str] = set()
    gone: set[int] = set()
    for verb, worker, step in history:
        if verb in ("written", "failed", "stale") and worker not in gone:
            of = current.number if verb != "stale" else max(1, current.number - 1)
            said = part(worker, step=step, generation=of, failed="no space" if verb == "failed" else "")
            assert publishing.objection(said, current, was_member=True) == ""
            if isinstance(said, PartWritten):
                checker.written.setdefault(said.checkpoint, set()).add(worker)
            reported.add(said.checkpoint)
            publishing.part(worker, said, current, 1.0)
        elif verb == "gone":
            gone.add(worker)
        elif verb == "regroup":
            publishing.abandon("the members changed")
            current = generation(current.number + 1)
        elif verb.endswith("answer") and checker.asked:
            name = checker.asked[-1]
            if verb == "answer":
                publishing.published(name, PublishOutcome(size=1, removed=()), 2.0)
            else:
                publishing.not_published(name, "the store is gone")
        for left in gone:
            publishing.gone(left, "it left", 1.5)
        checker.follow(audience.take())
    publishing.abandon("the job ended")
    publishing.give_up("it took too long")
    checker.follow(audience.take())
    assert not publishing.is_publishing
    # A part that was said late or twice may be ignored; nothing else may be without an end.
    assert set(checker.done) <= reported
    assert set(checker.settled) <= set(checker.done)
    assert set(checker.asked) <= set(checker.done)


def test_a_checkpoint_takes_the_longest_part_and_the_publication() -> None:
    publishing, audience = fresh()
    for worker, seconds in enumerate((1.0, 5.0, 2.0)):
        said = part(worker, step=10, seconds=seconds, blocked=seconds / 10)
        publishing.part(worker, said, generation(1), 100.0 + worker)
    audience.take()
    publishing.published("step-00000010-g1", PublishOutcome(size=7, removed=("step-00000001-g1",)), 103.0)
    note = audience.take()[0]
    assert isinstance(note, RecordEvent)
    assert note.event == CheckpointPublished(
        checkpoint="step-00000010-g1",
        step=10,
        size=7,
        seconds=6.0,
        blocked=0.5,
        removed=("step-00000001-g1",),
        reason="every 10 steps",
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"generation": 0}, "none of this run's"),
        ({"generation": 3}, "none of this run's"),
        ({"step": -1}, "none of this run's"),
        ({"step": 10**15}, "none of this run's"),
        ({"checkpoint": "step-00000011-g1"}, "no checkpoint's name"),
        ({"checkpoint": "step-10-g1"}, "no checkpoint's name"),
        ({"checkpoint": "../step-00000010-g1"}, "no checkpoint's name"),
        ({"file": ""}, "with the name ''"),
        ({"file": "a/b"}, "with the name 'a/b'"),
        ({"file": ".hidden"}, "with the name '.hidden'"),
        ({"file": "x" * 200}, "with the name"),
        ({"file": "a\nb"}, "with the name"),
        ({"mark": "../best"}, "with the name '../best'"),
        ({"size": -1}, "-1 bytes"),
        ({"seconds": float("nan")}, "nan s"),
        ({"blocked": float("inf")}, "inf s"),
    ],
)
def test_what_is_no_part_of_this_run_is_refused_with_the_reason(fields: dict[str, Any], words: str) -> None:
    publishing, _ = fresh()
    said = part(0, **{"step": 10, **fields})
    assert words in publishing.objection(said, generation(2), was_member=True)
    assert publishing.objection(part(0, step=10), generation(2), was_member=True) == ""


def test_parts_of_a_stranger_or_before_the_first_generation_are_refused() -> None:
    publishing, _ = fresh()
    assert publishing.objection(part(0, step=10), None, was_member=True)
    assert publishing.objection(part(0, step=10), generation(1), was_member=False)


def test_a_worker_cannot_open_checkpoints_without_end() -> None:
    publishing, _ = fresh()
    for number in range(MOST_OPEN):
        publishing.part(0, part(0, step=10 + number), generation(1), 1.0)
    assert f"while {MOST_OPEN} are open" in publishing.objection(part(0, step=1000), generation(1), was_member=True)
    assert publishing.objection(part(1, step=10), generation(1), was_member=True) == ""


def test_two_parts_of_one_name_are_no_checkpoint() -> None:
    publishing, audience = fresh()
    for worker in range(WORKERS):
        said = part(worker, step=10, file="part.safetensors")
        publishing.part(worker, said, generation(1), 1.0)
    out = audience.take()
    assert not any(isinstance(instruction, Publish) for instruction in out)
    assert DiscardCheckpoint("step-00000010-g1") in out
    [lost] = [i.event for i in out if isinstance(i, RecordEvent) and isinstance(i.event, CheckpointLost)]
    assert lost.worker == 1
    assert "part.safetensors" in lost.reason


def test_a_long_reason_is_cut() -> None:
    publishing, audience = fresh()
    failed = part(0, step=10, failed="x" * 1_000_000)
    assert isinstance(failed, PartFailed)
    publishing.part(0, failed, generation(1), 1.0)
    note = audience.take()[0]
    assert isinstance(note, RecordEvent)
    assert isinstance(note.event, CheckpointLost)
    assert len(note.event.reason) < 100_000
