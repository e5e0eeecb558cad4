"""Processor and memory of workers over time, from totals that they report; what they run on."""

from __future__ import annotations

import msgspec
import pytest

from shoal import events
from shoal.values import ProcessUse
from shoal.watch.record.machine_use import MOST_WORKERS, UseOverTime
from shoal.watch.record.machines import Machines, NodeUse
from support.records import applied, equipped


def report(worker: int, step: int, age: float, processor: float, memory: float = 1e9) -> events.StepsApplied:
    return applied(worker, step, use=ProcessUse(age=age, processor=processor, memory=int(memory)))


def shown(use: UseOverTime, worker: int) -> list[float | None]:
    return [point.mean for point in use.cores[worker].points()]


def test_cores_are_processor_time_over_time() -> None:
    use = UseOverTime()
    use.regroup((0, 1))
    for step, age, busy in ((10, 1.0, 3.0), (20, 6.0, 8.0), (30, 11.0, 20.5)):
        use.add(report(0, step, age, busy), float(step))
        use.add(report(1, step, age, age, memory=2e9), float(step))
    assert shown(use, 0) == [pytest.approx(1.0), pytest.approx(2.5)]
    assert shown(use, 1) == [pytest.approx(1.0), pytest.approx(1.0)]
    assert [point.mean for point in use.memory[1].points()] == [2.0, 2.0, 2.0], "in gigabytes"
    assert [point.mean for point in use.all_cores.points()] == [pytest.approx(2.0), pytest.approx(3.5)]
    assert [point.mean for point in use.all_memory.points()] == [3.0, 3.0, 3.0]


def test_a_repeated_measurement_and_a_new_process_give_no_cores() -> None:
    use = UseOverTime()
    for step, age, busy in ((10, 5.0, 5.0), (20, 5.0, 5.0), (30, 1.0, 0.5), (40, 2.0, 1.5)):
        use.add(report(0, step, age, busy), float(step))
    assert [(point.step, point.mean) for point in use.cores[0].points()] == [(40, pytest.approx(1.0))]


def test_workers_that_have_left_are_not_in_the_sum() -> None:
    use = UseOverTime()
    use.regroup((0, 1))
    use.add(report(0, 10, 1.0, 1.0), 1.0)
    use.add(report(1, 10, 1.0, 1.0), 1.0)
    use.regroup((0,))
    use.add(report(0, 20, 6.0, 6.0), 6.0)
    last = use.all_memory.last
    assert last is not None
    assert last.mean == 1.0


def test_records_without_measurements_have_no_curves() -> None:
    use = UseOverTime()
    use.add(applied(0, 10), 1.0)
    assert not use.memory
    assert use.all_memory.points() == []


def test_curves_of_many_workers_are_bounded() -> None:
    use = UseOverTime()
    for worker in range(2 * MOST_WORKERS):
        use.add(report(worker, 10, 1.0, 1.0), 1.0)
    assert len(use.memory) == MOST_WORKERS
    last = use.all_memory.last
    assert last is not None
    assert last.mean == 2 * MOST_WORKERS


def test_workers_of_one_machine_are_one_row() -> None:
    machines = Machines()
    for told in (equipped(0), equipped(1), equipped(2, "barn"), msgspec.structs.replace(equipped(3), torch="2.12.0")):
        machines.add(told, 0.0)
    assert [(told.host, workers) for told, workers in machines.by_kind()] == [("hut", [0, 1, 3]), ("barn", [2])]
    assert machines.versions()["torch"] == ["2.12.0", "2.13.0+cpu"]


def test_nodes_have_the_workers_and_servers_that_were_put_there() -> None:
    machines = Machines()
    for process, node in (("worker 0", "a"), ("server 0", "b"), ("worker 1", "b"), ("worker 2", "a"), ("spare 1", "a")):
        kind, number = process.split()
        machines.add(
            events.ProcessPlaced(
                process=process,
                node=node,
                host=f"host-{node}",
                reason="it had room",
                worker=int(number) if kind == "worker" else None,
                server=int(number) if kind == "server" else None,
            ),
            0.0,
        )
    assert machines.nodes == {"a": NodeUse("host-a", [0, 2], []), "b": NodeUse("host-b", [1], [0])}
