"""Which truncated files are worth a warning: two workers, one machine, one path, one generation; once per path."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.events import FileTruncated, Record, ScriptDoubtful
from shoal.membership.record import truncations
from shoal.membership.record.bookkeeping import Bookkeeping
from shoal.membership.record.truncations import Truncations
from shoal.membership.texts import both_write

found = st.builds(
    FileTruncated,
    worker=st.integers(0, 3),
    generation=st.integers(1, 3),
    host=st.sampled_from(("one", "two")),
    path=st.sampled_from(("/a", "/b")),
    name=st.just("a"),
    place=st.just("train.py line 3"),
)


def truncated(
    worker: int, path: str = "/job/results.json", *, generation: int = 1, host: str = "here"
) -> FileTruncated:
    return FileTruncated(
        worker=worker,
        generation=generation,
        host=host,
        path=path,
        name=path.rpartition("/")[2],
        place="train.py line 31",
    )


def test_two_workers_that_write_one_file_are_told_once() -> None:
    judge = Truncations()
    assert judge.observe(truncated(1)) is None
    assert judge.observe(truncated(1)) is None
    doubt = judge.observe(truncated(0))
    assert doubt is not None
    assert doubt.text == both_write(0, 1, "results.json", "train.py line 31")
    assert doubt.text.startswith(
        "workers 0 and 1 both write results.json (train.py line 31); write it under `if run.is"
    )
    for worker in (1, 2, 0):
        assert judge.observe(truncated(worker)) is None


def test_other_files_machines_and_generations_are_fine() -> None:
    judge = Truncations()
    fine = [
        truncated(0, "/job/log-0"),
        truncated(1, "/job/log-1"),
        truncated(0, host="one"),
        truncated(1, host="two"),
        truncated(0, "/job/best.pt", generation=1),
        truncated(1, "/job/best.pt", generation=2),  # worker 0 is gone, and worker 1 is the first
        truncated(2, "/job/best.pt", generation=3),
    ]
    assert [judge.observe(each) for each in fine] == [None] * len(fine)


@given(story=st.lists(found, max_size=30))
def test_every_warning_has_its_two_workers_and_no_file_has_two(story: list[FileTruncated]) -> None:
    judge = Truncations()
    warned = set()
    for number, event in enumerate(story):
        key = event.host, event.path
        if judge.observe(event) is not None:
            before = [each for each in story[:number] if (each.host, each.path) == key]
            assert before[-1].worker != event.worker
            assert before[-1].generation == event.generation
            assert key not in warned
            warned.add(key)
    for host, path in {(each.host, each.path) for each in story} - warned:
        pairs = [(each.generation, each.worker) for each in story if (each.host, each.path) == (host, path)]
        assert all(one[0] != other[0] or one[1] == other[1] for one, other in pairwise(pairs))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncations, "MOST", 5)
    judge = Truncations()
    for number in range(100):
        judge.observe(truncated(0, f"/{number}"))
        judge.observe(truncated(1, f"/{number}"))
    assert len(judge._newest) == len(judge._told) == 5


def test_the_record_has_the_warning_and_not_what_led_to_it() -> None:
    books = Bookkeeping()
    assert books.take(Record(1.0, truncated(0))).shown == []
    written = books.take(Record(2.0, truncated(1)))
    (shown,) = written.shown
    assert isinstance(shown.event, ScriptDoubtful)
    assert written.events == [shown]
    assert books.take(Record(3.0, truncated(2))).events == []
