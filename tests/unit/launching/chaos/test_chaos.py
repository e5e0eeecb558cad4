"""`--chaos`: what its text means, what is no such text, and that the same seed does the same again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.chaos.clauses import VERBS, Clause, doubts, parse
from shoal.launching.chaos.fault_timetable import JITTER, FaultTimetable, Present, Strike

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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil worker every 15s", "'kil' in 'kil worker every 15s': did you mean 'kill'?"),
        ("explode", "there is kill, stop, cut"),
        ("kill", "ends too early: there should be `worker` or `2 workers`"),
        ("kill 2 nodes every 15s", "it should be `workers` or `servers`"),
        ("kill node every 15s", "it should be `worker` or `server`, `worker 2` or `2 workers`"),
        ("cut server every 15s", "'server' in 'cut server every 15s': it should be `worker`"),
        ("kill 0 workers every 15s", "from 1 to 256"),
        ("kill worker", texts.when_is_unclear("kill worker", times=0)),
        ("kill worker every 15s at 3s", texts.when_is_unclear("kill worker every 15s at 3s", times=2)),
        ("kill worker every 15s every 3s", "it is said twice"),
        ("kill worker every", "there should be a time such as 15s"),
        ("kill worker every 15", "'15' in 'kill worker every 15': it should be a time such as 15s"),
        ("kill worker every 0s", "it should be a time"),
        ("kill worker every 800h", "30 days at most"),
        ("kill worker at step x", "it should be a number of steps such as 100"),
        ("kill worker at step 0", "it should be a number of steps"),
        ("kill worker every 15s for 3s", "'for' in 'kill worker every 15s for 3s': kill has no `for`"),
        ("stop worker at 1s to 1MB/s", "stop has no `to` (a rate); there may be every, at, for"),
        ("kill-coordinator at 1s for 2s", "kill-coordinator has no `for`"),
        ("kill worker every 5s and stop worker every 9s", "'and' in"),
        ("kill worker every 5s and stop worker every 9s", "join clauses with `;`"),
        ("kill worker every 5s stop worker every 9s", "join clauses with `;`"),
        ("kill worker every 5s when idle", "'when' in 'kill worker every 5s when idle': there may be every, at"),
        ("slow worker at 1s to 3", "it should be a rate such as 1MB/s"),
        ("kill-coordinator worker at 1s", "'worker' in"),
        ("kill worker every 15s;", texts.ends_too_early("", "")),
    ],
)
def test_mistakes_name_the_word_and_what_is_allowed(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("--chaos")


def test_a_worker_that_the_job_does_not_start_with_is_doubted() -> None:
    clauses = parse("kill worker 9 at 5s; kill worker 3 at 5s; kill worker every 5s; stop worker 4 at 9s")
    first, second = doubts(clauses, workers=4)
    assert "--chaos: 'kill worker 9 at 5s' strikes nobody until there is a worker 9" in first
    assert "workers 0 to 3" in first
    assert "'stop worker 4 at 9s'" in second
    assert doubts(clauses, workers=10) == ()


def test_servers_that_the_job_does_not_start_are_doubted() -> None:
    clauses = parse("kill server every 5s; kill server 2 at 5s; kill worker every 5s")
    assert ["strikes nobody: the job starts no servers itself" in doubt for doubt in doubts(clauses, workers=1)] == [
        True,
        True,
    ]
    [doubt] = doubts(clauses, workers=1, servers=2)
    assert "strikes nobody until there is a server 2: the job starts with servers 0 to 1" in doubt
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
