"""The record and the checkpoints of a script that runs alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.events import Advised, AnyEvent, CheckpointLost, CheckpointPublished, JobEnded, Record
from shoal.membership.inner_coordinator import InnerCoordinator
from shoal.membership.publisher import Publisher, PublishOutcome, PublishRequest
from shoal.membership.record import event_writer
from shoal.values import Address, Generation, Member
from shoal.wire.messages import PartFailed, PartWritten

ME = Member(rank=0, worker=0, host="here", process=1, address=Address("127.0.0.1", 0))
ALONE = Generation(number=1, members=(ME,), schedule="auto", codec="identity", reason="a test")
ENDED = JobEnded(outcome="finished", exit_code=0, reason="done", seconds=1.0)


class FakePublisher(Publisher):
    def __init__(self, error: OSError | None = None) -> None:
        self.published: list[PublishRequest] = []
        self.discarded: list[str] = []
        self._error = error

    def publish(self, request: PublishRequest) -> PublishOutcome:
        if self._error is not None:
            raise self._error
        self.published.append(request)
        return PublishOutcome(size=7, removed=())

    def discard(self, checkpoint: str) -> None:
        self.discarded.append(checkpoint)

    def clean(self) -> None:
        raise AssertionError("nobody asked for it")


def part(step: int, mark: str = "") -> PartWritten:
    name = f"step-{step:08}-g1"
    return PartWritten(
        checkpoint=name,
        generation=1,
        step=step,
        file="part",
        size=7,
        seconds=0.1,
        blocked=0.0,
        reason="asked",
        mark=mark,
    )


def written(run_dir: Path) -> list[AnyEvent]:
    lines = (run_dir / event_writer.FILE_NAME).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Record).event for line in lines]


def said(text: str) -> Advised:
    return Advised(worker=0, text=text)


def test_events_wait_for_a_run_directory_and_are_shown_at_once(tmp_path: Path) -> None:
    shown: list[AnyEvent] = []
    coordinator = InnerCoordinator(ALONE, lambda event, _: shown.append(event))
    coordinator.record(said("before"))
    assert shown == [said("before")] and not list(tmp_path.iterdir())
    coordinator.keep_record_in(tmp_path)
    coordinator.record(said("after"))
    assert written(tmp_path) == [said("before"), said("after")]
    assert coordinator.end(ENDED) == []
    assert [type(event) for event in written(tmp_path)] == [Advised, Advised, JobEnded]


def test_without_a_run_directory_nothing_is_kept_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "MOST_WAITING", 300)
    shown: list[AnyEvent] = []
    coordinator = InnerCoordinator(ALONE, lambda event, _: shown.append(event))
    for number in range(100):
        coordinator.record(said(f"number {number}"))
    coordinator.keep_record_in(tmp_path)
    kept = written(tmp_path)
    assert len(kept) < 10
    [told] = shown[100:]
    assert told == Advised(worker=None, text=f"{100 - (len(kept) - 1)} lines of the record before this are lost")
    coordinator.end(ENDED)


def test_a_part_that_is_written_becomes_a_published_checkpoint(tmp_path: Path) -> None:
    publisher = FakePublisher()
    coordinator = InnerCoordinator(ALONE, lambda *_: None, tmp_path)
    coordinator.publish_with(publisher)
    coordinator.part_done(part(3, mark="best"))
    assert [(asked.checkpoint, asked.mark) for asked in publisher.published] == [("step-00000003-g1", "best")]
    assert coordinator.is_published("step-00000003-g1")
    coordinator.end(ENDED)
    [told] = [event for event in written(tmp_path) if isinstance(event, CheckpointPublished)]
    assert (told.step, told.mark, told.size) == (3, "best", 7)


def test_a_checkpoint_that_cannot_be_written_or_published_is_lost_and_cleared_away(tmp_path: Path) -> None:
    publisher = FakePublisher(OSError(28, "No space left on device"))
    coordinator = InnerCoordinator(ALONE, lambda *_: None, tmp_path)
    coordinator.publish_with(publisher)
    coordinator.part_done(PartFailed(checkpoint="step-00000002-g1", generation=1, step=2, reason="the disk is full"))
    coordinator.part_done(part(3))
    assert publisher.discarded == ["step-00000002-g1", "step-00000003-g1"]
    assert not coordinator.is_published("step-00000003-g1")
    coordinator.end(ENDED)
    lost = [(event.step, event.reason) for event in written(tmp_path) if isinstance(event, CheckpointLost)]
    assert lost == [(2, "the disk is full"), (3, "[Errno 28] No space left on device")]


def test_a_record_that_cannot_be_written_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / event_writer.FILE_NAME).mkdir()  # no file can be there
    coordinator = InnerCoordinator(ALONE, lambda *_: None, tmp_path / "run")
    assert coordinator.end(ENDED) == [str(tmp_path / "run" / event_writer.FILE_NAME)]
