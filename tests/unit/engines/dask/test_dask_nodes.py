"""Which Dask workers get an agent: one each, again after a pause if it ended, and every loss is reported once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engines import texts
from shoal.engines.dask.dask_nodes import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    AgentEnd,
    Changes,
    DaskNodes,
    DaskWorker,
    workers_in,
)
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, NodeGone

ENDED = AgentEnd(1, "Traceback")


def worker(name: str, process: int = 1, *, threads: int = 1) -> DaskWorker:
    """`process` counts the processes that a nanny has started for this worker."""
    return DaskWorker(name, f"tcp://10.0.0.1:{process}", "10.0.0.1", threads, is_busy=False)


def looked(nodes: DaskNodes, workers: list[DaskWorker], now: float) -> Changes:
    """What there is to do, where all agents that are to be started are."""
    changes = nodes.look(workers, now)
    for new in changes.new:
        nodes.began(new, now)
    return changes


def test_workers_that_come_get_an_agent_once() -> None:
    nodes = DaskNodes()
    assert looked(nodes, [worker("a"), worker("b")], 0.0).new == (worker("a"), worker("b"))
    changes = looked(nodes, [worker("a"), worker("b"), worker("c")], 1.0)
    assert (changes.gone, changes.left, changes.new) == ((), (), (worker("c"),))


def test_a_worker_whose_agent_could_not_be_started_is_tried_at_the_next_look() -> None:
    nodes = DaskNodes()
    assert nodes.look([worker("a"), worker("b")], 0.0).new == (worker("a"), worker("b"))
    nodes.began(worker("a"), 0.0)
    changes = nodes.look([worker("a"), worker("b")], 1.0)
    assert (changes.gone, changes.left, changes.new) == ((), (), (worker("b"),))
    assert nodes.look([worker("a")], 2.0).gone == (), "nobody has heard of b"


def test_a_worker_that_its_nanny_has_started_again_is_lost_and_comes() -> None:
    nodes = DaskNodes()
    looked(nodes, [worker("a", 1)], 0.0)
    changes = looked(nodes, [worker("a", 2)], 1.0)
    assert [gone.node for gone in changes.gone] == ["a"]
    assert (changes.left, changes.new) == ((worker("a", 1),), ())
    assert looked(nodes, [worker("a", 2)], 2.0).new == (worker("a", 2),)
    assert nodes.ended(worker("a", 1), ENDED, 2.0) is None, "the task of the process that is gone says nothing"


def test_an_agent_that_ends_again_and_again_is_tried_less_and_less_often() -> None:
    nodes, now, pauses = DaskNodes(), 0.0, []
    assert looked(nodes, [worker("a")], now).new
    for _ in range(6):
        assert nodes.ended(worker("a"), ENDED, now) is not None
        ended = now
        while not looked(nodes, [worker("a")], now).new:
            now += 1.0
        pauses.append(now - ended)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    now += LONGEST_PAUSE + 1
    nodes.ended(worker("a"), ENDED, now)
    assert not looked(nodes, [worker("a")], now + FIRST_PAUSE - 1).new
    assert looked(nodes, [worker("a")], now + FIRST_PAUSE).new, "it had run for long"


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from("abcd"), st.integers(1, 2)),  # workers that are there, and their processes
            st.sampled_from("abcd"),  # whose agent ends
        ),
        max_size=40,
    )
)
def test_every_agent_ends_in_one_way_and_no_node_has_two(steps: list[dict[str, int] | str]) -> None:
    nodes = DaskNodes()
    tasks: dict[str, DaskWorker] = {}  # by node
    for now, step in enumerate(steps):
        if isinstance(step, str):
            if step in tasks:
                gone = nodes.ended(tasks.pop(step), ENDED, float(now))
                assert gone is not None and gone.node == step
            continue
        there = [worker(name, process) for name, process in step.items()]
        changes = looked(nodes, there, float(now))
        assert not {new.name for new in changes.new} & {left.name for left in changes.left}
        assert [gone.node for gone in changes.gone] == [left.name for left in changes.left]
        for left in changes.left:
            assert tasks.pop(left.name) == left and left not in there
        for new in changes.new:
            assert new in there and new.name not in tasks
            tasks[new.name] = new
        assert all(task in there for task in tasks.values())


# What Dask and agents say


def told(**facts: Any) -> dict[str, Any]:
    known = {"name": 0, "host": "10.0.0.7", "nthreads": 2, "status": "running", "metrics": {"task_counts": {}}}
    return {"workers": {"tcp://10.0.0.7:1": {**known, **facts}}}


def test_workers_are_read_from_what_the_scheduler_tells() -> None:
    assert workers_in(told()) == (DaskWorker("0", "tcp://10.0.0.7:1", "10.0.0.7", 2, is_busy=False),)
    assert workers_in({"type": "Scheduler"}) == ()
    assert workers_in(told(status="closing_gracefully")) == ()
    (paused,) = workers_in(told(status="paused"))
    assert paused.name == "0"


@pytest.mark.parametrize("metrics", [{"task_counts": {"executing": 2}}, {"executing": 2}])
def test_a_worker_whose_threads_are_all_in_use_is_busy(metrics: dict[str, Any]) -> None:
    assert [one.is_busy for one in workers_in(told(metrics=metrics))] == [True]
    assert [one.is_busy for one in workers_in(told(metrics=metrics, nthreads=3))] == [False]


@pytest.mark.parametrize(
    ("end", "reason", "lost"),
    [
        (
            AgentEnd(AGENT_HAS_NO_WAY, "the agent of node a cannot reach the launcher at x: refused"),
            texts.no_way_back("the agent of node a cannot reach the launcher at x: refused"),
            None,
        ),
        (AgentEnd(said="ModuleNotFoundError: No module named 'shoal'"), texts.no_shoal_on_dask("a"), None),
        (AgentEnd(1, "/usr/bin/python: No module named shoal.engines"), texts.no_shoal_on_dask("a"), None),
        (
            AgentEnd(said="KilledWorker: x"),
            texts.no_dask_task("a", "KilledWorker: x"),
            texts.dask_task_ended("KilledWorker: x"),
        ),
        (AgentEnd(1, "Traceback"), texts.agent_ended("a", 1, "Traceback"), texts.agent_failed(1, "Traceback")),
        (AgentEnd(0, "nothing"), texts.agent_ended("a", 0, "nothing"), texts.AGENT_ENDED),
    ],
)
def test_the_end_of_an_agent_is_explained(end: AgentEnd, reason: str, lost: str | None) -> None:
    nodes = DaskNodes()
    looked(nodes, [worker("a")], 0.0)
    gone = nodes.ended(worker("a"), end, 1.0)
    assert gone is not None
    assert gone.reason == reason
    assert lost is None or gone == NodeGone("a", reason, lost)
