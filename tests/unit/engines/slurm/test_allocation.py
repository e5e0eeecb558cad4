"""What an allocation has, from Slurm's variables; the commands that ask for one and start a step on each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engines import texts
from shoal.engines.slurm.allocation import (
    MOST_SLOTS,
    Allocation,
    AllottedNode,
    Wish,
    allocation_in,
    job_in,
    salloc_command,
    srun_command,
    srun_variables,
)
from shoal.errors import UsageError

HELD = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}
NAMES = ("node1", "node2")


def slots(variables: dict[str, str]) -> list[int]:
    return [node.slots for node in allocation_in({**HELD, **variables}, NAMES).nodes]


def test_an_allocation_has_its_nodes_with_the_cores_that_they_give() -> None:
    assert job_in(HELD) == "7"
    assert job_in({"SLURM_JOB_ID": "7"}) == job_in({}) == ""
    assert allocation_in(HELD, NAMES) == Allocation("7", (AllottedNode("node1", 4), AllottedNode("node2", 4)))


def test_tasks_that_the_user_asked_for_go_before_gpus_and_gpus_before_cores() -> None:
    gpus = {"SLURM_GPUS_PER_NODE": "a100:3"}
    unasked = {"SLURM_TASKS_PER_NODE": "1(x2)"}  # Slurm sets it in any case
    assert slots(unasked) == [4, 4]
    assert slots({**unasked, **gpus}) == [3, 3]
    assert slots({**gpus, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}) == [2, 1]
    assert slots({"SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)"}) == [2, 2]


@given(st.lists(st.tuples(st.integers(1, MOST_SLOTS), st.integers(1, 5)), min_size=1, max_size=6))
def test_numbers_for_each_node_are_read_as_slurm_writes_them(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)
    wanted = [count for count, times in runs for _ in range(times)]
    names = [f"node{number}" for number in range(len(wanted))]
    found = allocation_in({**HELD, "SLURM_JOB_CPUS_PER_NODE": text}, names)
    assert [(node.name, node.slots) for node in found.nodes] == list(zip(names, wanted, strict=True))


@pytest.mark.parametrize("text", ["", "4", "4(x3)", "four(x2)", "4(x2"])
def test_variables_that_do_not_fit_are_an_error(text: str) -> None:
    counts = {"4": 1, "4(x3)": 3}.get(text, 0)
    with pytest.raises(UsageError) as raised:
        slots({"SLURM_JOB_CPUS_PER_NODE": text})
    assert str(raised.value) == texts.odd_allocation("7", 2, counts)


def test_all_workers_fit_on_the_fewest_nodes_and_the_end_is_announced() -> None:
    wish = Wish(fewest=2, most=8, workers=9, threads=0, seconds=1800, time="0-00:30:00", options=("--partition=a b",))
    command = salloc_command("salloc", wish, ("holder",))
    assert {"--nodes=2-8", "--ntasks-per-node=5", "--cpus-per-task=1", "--time=0-00:30:00"} <= set(command)
    assert {"--signal=TERM@90", "--no-kill", "--kill-command=TERM"} <= set(command)
    assert command[-2:] == ("--partition=a b", "holder")
    short = Wish(fewest=2, most=2, workers=2, threads=3, seconds=60, time="0-00:01:00")
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=3", "--signal=TERM@6"} <= set(
        salloc_command("salloc", short, ())
    )
    endless = Wish(fewest=1, most=1, workers=1, threads=0, seconds=0, time="")
    assert not [word for word in salloc_command("salloc", endless, ()) if word.startswith(("--time", "--signal"))]


def test_a_step_is_for_one_node_and_takes_no_option_from_a_variable() -> None:
    command = srun_command("srun", "7", "node2", ("python", "agent"))
    assert {"--jobid=7", "--nodes=1", "--nodelist=node2", "--overlap", "--cpu-bind=none"} <= set(command)
    assert command[-2:] == ("python", "agent")
    variables = {**HELD, "SLURM_GPUS_PER_TASK": "1", "SRUN_CPUS_PER_TASK": "2", "SLURM_CONF": "/c", "PATH": "/bin"}
    assert srun_variables(variables) == {"SLURM_CONF": "/c", "PATH": "/bin"}
