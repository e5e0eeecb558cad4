"""`--chaos`: what its text means, what is no such text, and that the same seed does the same again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.launching.chaos import texts
from shoal.launching.chaos.clauses import VERBS, Clause, doubts, parse
from shoal.launching.chaos.fault_timetable import JITTER, FaultTimetable, Present, Strike
from shoal.settings.setting_checks import nearest

ALL = Present(here=(0, 1, 2, 3), members=(0, 1, 2, 3), step=0)


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("kill worker every 15s", Clause("", "kill", every=15.0)),
        ("KILL  2 workers every 500ms", Clause("", "kill", count=2, every=0.5)),
        ("kill server every 15s", Clause("", "kill", target="server", every=15.0)),
        ("kill 2 servers at step 100", Clause("", "kill", target="server", count=2, step=100)),
        ("stop server 1 at 3s for 2s", Clause("", "stop", target="server", number=1, at=3.0, seconds=2.0)),
        ("kill worker 3 at step 100", Clause("", "kill", number=3, step=100)),
        ("stop worker at 2min for 1.5s", Clause("", "stop", at=120.0, seconds=1.5)),
        ("stop worker at 10s", Clause("", "stop", at=10.0, seconds=8.0)),
        ("cut worker every 30s for 5s", Clause("", "cut", every=30.0, seconds=5.0)),
        ("slow worker to 500KB/s at 1s for 3s", Clause("", "slow", at=1.0, seconds=3.0, rate=5e5)),
        ("slow worker at 1s", Clause("", "slow", at=1.0, seconds=5.0, rate=1e6)),
        ("fill-disk at 1h", Clause("", "fill-disk", at=3600.0, seconds=5.0)),
        ("kill-coordinator every 20s", Clause("", "kill-coordinator", every=20.0)),
    ],
)
def test_clauses(text: str, clause: Clause) -> None:
    [read] = parse(text)
    assert Clause(**{**vars(read), "text": ""}) == clause
    assert read.text.lower() == " ".join(text.lower().split())


def test_several_clauses() -> None:
    assert [clause.verb for clause in parse("kill worker every 9s; kill-coordinator at 5s, fill-disk at 3s")] == [
        "kill",
        "kill-coordinator",
        "fill-disk",
    ]
    assert parse("") == parse("  ") == ()


WORKERS, EITHER = ("worker",), ("worker", "server")


@pytest.mark.parametrize(
    ("text", "word", "instead"),
    [
        ("kil worker every 15s", "kil", nearest("kil", tuple(VERBS))),
        ("explode", "explode", nearest("explode", tuple(VERBS))),
        ("kill 2 nodes every 15s", "nodes", texts.wrong_nouns(EITHER)),
        ("kill node every 15s", "node", texts.wrong_target(EITHER)),
        ("cut server every 15s", "server", texts.wrong_target(WORKERS)),
        ("kill 0 workers every 15s", "0", texts.wrong_count(256)),
        ("kill worker every 15s every 3s", "every", texts.TWICE),
        ("kill worker every 15", "15", texts.should_be(texts.TIME)),
        ("kill worker every 0s", "0s", texts.should_be(texts.TIME)),
        ("kill worker every 800h", "800h", texts.TOO_LONG),
        ("kill worker at step x", "x", texts.NO_STEPS),
        ("kill worker at step 0", "0", texts.NO_STEPS),
        ("kill worker every 15s for 3s", "for", texts.no_part("kill", "for", "how long it lasts")),
        (
            "stop worker at 1s to 1MB/s",
            "to",
            texts.wrong_part(["every", "at", "for"], lacking=texts.no_part("stop", "to", "a rate")),
        ),
        ("kill-coordinator at 1s for 2s", "for", texts.no_part("kill-coordinator", "for", "how long it lasts")),
        ("kill worker every 5s and stop worker every 9s", "and", texts.JOIN),
        ("kill worker every 5s stop worker every 9s", "stop", texts.JOIN),
        ("kill worker every 5s when idle", "when", texts.wrong_part(["every", "at"])),
        ("slow worker at 1s to 3", "3", texts.should_be(texts.RATE)),
        ("kill-coordinator worker at 1s", "worker", texts.wrong_part(["every", "at"])),
    ],
)
def test_mistakes_name_the_word_and_what_is_allowed(text: str, word: str, instead: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value).startswith(texts.wrong_word(word, text, instead))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill", texts.too_short("kill", texts.TARGET)),
        ("kill worker every", texts.too_short("kill worker every", texts.TIME)),
        ("kill worker every 15s;", texts.too_short("", " or ".join(VERBS))),
        ("kill worker", texts.wrong_times("kill worker", 0)),
        ("kill worker every 15s at 3s", texts.wrong_times("kill worker every 15s at 3s", 2)),
    ],
)
def test_clauses_that_lack_something_say_what(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == said


def test_a_worker_that_the_job_does_not_start_with_is_doubted() -> None:
    clauses = parse("kill worker 9 at 5s; kill worker 3 at 5s; kill worker every 5s; stop worker 4 at 9s")
    first, second = doubts(clauses, workers=4)
    assert first == texts.nobody_yet("kill worker 9 at 5s", "worker", 9, 4)
    assert second == texts.nobody_yet("stop worker 4 at 9s", "worker", 4, 4)
    assert doubts(clauses, workers=10) == ()


def test_servers_that_the_job_does_not_start_are_doubted() -> None:
    clauses = parse("kill server every 5s; kill server 2 at 5s; kill worker every 5s")
    assert doubts(clauses, workers=1) == tuple(
        texts.no_servers(clause) for clause in ("kill server every 5s", "kill server 2 at 5s")
    )
    assert doubts(clauses, workers=1, servers=2) == (texts.nobody_yet("kill server 2 at 5s", "server", 2, 2),)
    assert doubts(clauses, workers=1, servers=3) == ()


def test_servers_are_struck_like_workers() -> None:
    present = Present(here=(0, 1), members=(0, 1), step=0, servers=(4, 6))
    faults = [fault for _, fault in struck("kill server every 1s", seed=1, present=present)]
    assert {fault.server for fault in faults} == {4, 6}
    assert {fault.worker for fault in faults} == {None}
    assert struck("kill server every 1s", seed=1) == []


@given(st.text(max_size=60) | st.lists(st.sampled_from([*VERBS, "worker", "2", "every", "at", "5s"])).map(" ".join))
def test_every_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except UsageError as error:
        assert "\n" not in str(error).replace(text, "")


def struck(text: str, *, seed: int, seconds: float = 100.0, present: Present = ALL) -> list[tuple[float, Strike]]:
    timetable = FaultTimetable(parse(text), seed=seed)
    timetable.begin(1000.0)
    found = []
    while (due := timetable.next_due) is not None and due <= 1000.0 + seconds:
        found += [(due - 1000.0, fault) for fault in timetable.take_due(due, present)]
    return found


def test_the_same_seed_strikes_the_same_and_another_does_not() -> None:
    text = "kill worker every 5s; cut worker every 7s; fill-disk at 30s"
    assert struck(text, seed=3) == struck(text, seed=3)
    assert struck(text, seed=3) != struck(text, seed=4)
    alone = struck("kill worker every 5s", seed=3)
    assert [one for one in struck(text, seed=3) if one[1].verb == "kill"] == alone, "clauses do not disturb each other"


def test_faults_come_about_as_often_as_asked_for_and_hit_everybody_in_time() -> None:
    times = [time for time, _ in struck("kill worker every 5s", seed=1)]
    assert len(times) in (19, 20)
    assert all(abs(time - 5.0 * number) <= 5.0 * JITTER for number, time in enumerate(times, start=1))
    assert {fault.worker for _, fault in struck("kill worker every 1s", seed=1)} == {0, 1, 2, 3}


def test_several_victims_are_different_ones_and_never_more_than_there_are() -> None:
    [(_, one), (_, two)] = struck("kill 2 workers at 5s", seed=1)
    assert one.worker != two.worker
    assert len(struck("kill 9 workers at 5s", seed=1)) == 4
    assert struck("kill worker 7 at 5s", seed=1) == []


def test_a_link_has_two_ends() -> None:
    assert all(fault.peer not in (None, fault.worker) for _, fault in struck("cut worker every 3s", seed=2))
    assert struck("cut worker every 3s", seed=2, present=Present(here=(1,), members=(1,), step=0)) == []


def test_steps_are_waited_for_and_happen_once() -> None:
    timetable = FaultTimetable(parse("kill worker at step 10"), seed=0)
    late = Present(here=(0,), members=(0,), step=12)
    assert timetable.take_due(0.0, late) == [], "nothing strikes before the first generation"
    timetable.begin(0.0)
    assert timetable.take_due(1.0, ALL) == []
    assert [fault.worker for fault in timetable.take_due(2.0, late)] == [0]
    assert timetable.take_due(3.0, late) == []


def test_what_was_missed_is_not_made_up_for() -> None:
    timetable = FaultTimetable(parse("kill worker every 1s"), seed=0)
    timetable.begin(0.0)
    assert len(timetable.take_due(50.3, ALL)) == 1
    assert timetable.take_due(50.4, ALL) == []
