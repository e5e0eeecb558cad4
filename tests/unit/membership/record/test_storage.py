"""What is said about files that cannot be written: at once, again while it lasts, and when it is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.events import StorageFailed, StorageRestored
from shoal.membership.core.job_clock import JobClock
from shoal.membership.record.storage import REPEAT, StorageNews, Trouble

FULL = Trouble(file="run/decisions.sqlite", error="disk is full", holds_up=True, free=0)
RECORD = Trouble(file="run/events.jsonl", error="No space left on device", free=12_345)


def test_a_trouble_is_said_at_once_and_again_while_it_lasts() -> None:
    news = StorageNews()
    [said] = news.look([FULL], 1.0)
    assert isinstance(said, StorageFailed)
    assert said.holds_up and said.free == 0
    assert said.reason.startswith("run/decisions.sqlite cannot be written: disk is full (0 bytes are free")
    assert "make room" in said.reason and "Ctrl-C" in said.reason
    assert news.look([FULL], 1.1) == []
    [again] = news.look([FULL], 1.0 + REPEAT)
    assert isinstance(again, StorageFailed)
    [over] = news.look([], 100.0)
    assert over == StorageRestored(
        file="run/decisions.sqlite",
        seconds=99.0,
        holds_up=True,
        reason="run/decisions.sqlite can be written again after 99.0 s; decisions that waited are carried out now",
    )
    assert news.is_quiet


def test_a_trouble_that_gets_worse_is_said_again() -> None:
    news = StorageNews()
    mild = Trouble(file="f", error="e")
    assert len(news.look([mild], 0.0)) == 1
    [worse] = news.look([Trouble(file="f", error="e", holds_up=True)], 0.1)
    assert isinstance(worse, StorageFailed) and worse.holds_up
    assert news.look([Trouble(file="f", error="e", holds_up=True)], 0.2) == []
    [lost] = news.look([Trouble(file="f", error="e", holds_up=True, lost=1)], 0.3)
    assert isinstance(lost, StorageFailed)


def test_lost_lines_are_said_and_counted() -> None:
    news = StorageNews()
    assert "what is to be written waits" in news.look([RECORD], 0.0)[0].reason
    assert "1 line of it is lost" in news.look([Trouble(RECORD.file, "full", lost=1)], 1.0)[0].reason
    assert news.look([Trouble(RECORD.file, "full", lost=500)], 2.0) == []
    assert "500 lines of it are lost" in news.look([], 3.0)[0].reason


def test_a_file_that_somebody_reads_for_a_moment_is_not_worth_a_word() -> None:
    news = StorageNews()
    busy = Trouble(file="f", error="database is locked", holds_up=True, patience=1.0)
    assert news.look([busy], 0.0) == []
    assert news.look([], 0.5) == []
    assert news.look([busy], 1.0) == []
    assert len(news.look([busy], 2.0)) == 1
    assert len(news.look([], 2.5)) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.sets(st.sampled_from([FULL, RECORD])))))
def test_whatever_was_said_to_fail_is_said_to_work_again_and_nothing_else(
    looks: list[tuple[float, set[Trouble]]],
) -> None:
    news, now = StorageNews(), 0.0
    failing: set[str] = set()
    for later, troubles in looks:
        now += later
        for event in news.look(sorted(troubles, key=str), now):
            if isinstance(event, StorageFailed):
                failing.add(event.file)
            else:
                failing.remove(event.file)
        assert failing == {trouble.file for trouble in troubles}


def test_the_jobs_clock_stands_still_while_decisions_wait() -> None:
    clock = JobClock()
    failed, restored = StorageNews(), StorageNews()
    [full] = failed.look([FULL], 0.0)
    restored.look([FULL], 0.0)
    [room] = restored.look([], 1.0)
    [record] = StorageNews().look([RECORD], 0.0)
    assert clock.at(5.0) == 5.0
    clock.heed(record, 6.0)
    assert clock.at(7.0) == 7.0, "a record that waits holds nobody up"
    clock.heed(full, 10.0)
    clock.heed(full, 20.0)
    assert clock.at(30.0) == 10.0
    clock.heed(room, 40.0)
    assert clock.at(41.0) == 11.0
    assert clock.stood_still == 30.0
    clock.go_on(50.0)
    assert clock.at(51.0) == 21.0
