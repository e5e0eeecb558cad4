"""The cost model against the programs that really run, replayed with the same links."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.collectives.schedules.choice import Chooser
from shoal.collectives.schedules.schedule import Action, Program
from shoal.links import cost
from shoal.links.cost import REDUCE_SECONDS_PER_BYTE, TRANSFER_SECONDS
from shoal.links.matrix import Hosts, Link, LinkMatrix, uniform
from shoal.links.plan import FIXED, LinkPlan, make_plan
from support.examples import scaled

links = some.builds(Link, some.floats(1e-6, 1e-2), some.floats(1e-11, 1e-6))
byte_sizes = some.sampled_from([64, 4096, 100_000, 1 << 20, 3 << 20, 64 << 20])


def replayed_seconds(programs: Sequence[Program], matrix: LinkMatrix, size: int) -> float:
    """Until the last rank is done. A rank sends one frame at a time and takes one at a time."""
    clocks = [0.0] * len(programs)
    free = defaultdict(float)  # by rank and direction: when it can move the next frame
    streams: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    steps = [
        deque(each for step in program.rounds for part in (step.sends, step.receives) for each in part)
        for program in programs
    ]
    bounds = [program.bounds(size) for program in programs]
    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            while steps[rank]:
                each = steps[rank][0]
                start, stop = bounds[rank][each.segment]
                if each.action is Action.SEND:
                    link = matrix.link(rank, each.peer)
                    busy = (stop - start) * link.per_byte + TRANSFER_SECONDS
                    free[rank, "out"] = max(clocks[rank], free[rank, "out"]) + busy
                    streams[rank, each.peer].append(free[rank, "out"] + link.latency)
                elif streams[each.peer, rank]:
                    link = matrix.link(each.peer, rank)
                    busy = (stop - start) * link.per_byte + TRANSFER_SECONDS
                    arrived = max(streams[each.peer, rank].popleft(), free[rank, "in"] + busy)
                    work = (stop - start) * REDUCE_SECONDS_PER_BYTE if each.action is Action.REDUCE else 0.0
                    clocks[rank] = max(clocks[rank], arrived) + work
                    free[rank, "in"] = clocks[rank]
                else:
                    break
                steps[rank].popleft()
                moved = True
    return max([*clocks, *free.values()])


def _programs(schedule: str, size: int, ranks: int, plan: LinkPlan = FIXED) -> list[Program]:
    return [Chooser(schedule, ranks, rank, plan).all_reduce(size) for rank in range(ranks)]


MODELS: dict[str, Callable[[LinkMatrix, int], float]] = {
    "ring": lambda matrix, size: cost.ring(matrix, size, range(matrix.size)),
    "tree": cost.tree,
    "double-tree": cost.double_tree,
    "halving-doubling": cost.halving_doubling,
}


@pytest.mark.parametrize("schedule", MODELS)
def test_the_model_is_close_to_the_programs_on_equal_links(schedule: str) -> None:
    @settings(max_examples=scaled(40), deadline=None)
    @given(some.integers(2, 17), byte_sizes, links)
    def check(ranks: int, size: int, link: Link) -> None:
        matrix = uniform(ranks, link)
        found = replayed_seconds(_programs(schedule, size, ranks), matrix, size)
        assert 0.6 < MODELS[schedule](matrix, size) / found < 1.6

    check()


def _clusters(seed: int, ranks: int, *, shuffled: bool) -> tuple[LinkMatrix, Hosts]:
    """Hosts of several ranks with fast links inside and slow ones between, figures varied a little."""
    draw = random.Random(seed)
    order = list(range(ranks))
    if shuffled:
        draw.shuffle(order)
    count = draw.randint(2, ranks)
    hosts = tuple(tuple(order[number::count]) for number in range(count))
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    slow = Link(draw.choice([5e-5, 1e-3]), draw.choice([1e-9, 1e-8, 1e-7]))
    rows = []
    for source in range(ranks):
        base = [Link(1.5e-5, 3e-10) if host_of[source] == host_of[target] else slow for target in range(ranks)]
        rows.append(tuple(Link(b.latency * draw.uniform(0.9, 1.1), b.per_byte * draw.uniform(0.9, 1.1)) for b in base))
    return LinkMatrix(tuple(rows)), hosts


@settings(max_examples=30, deadline=None)
@given(some.integers(0, 10**6), some.integers(3, 12), byte_sizes, some.booleans())
def test_what_a_plan_takes_is_among_the_fastest_of_the_real_programs(
    seed: int, ranks: int, size: int, shuffled: bool
) -> None:
    matrix, hosts = _clusters(seed, ranks, shuffled=shuffled)
    plan = make_plan(matrix, hosts)
    taken = replayed_seconds(_programs("auto", size, ranks, plan), matrix, size)
    others = {
        name: replayed_seconds(_programs(name, size, ranks, plan), matrix, size) for name in (*MODELS, "hierarchical")
    }
    assert taken <= 2 * min(others.values()), (plan.all_reduce.at(size), others)
