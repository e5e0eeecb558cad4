"""How far a server's units are, against a plain list of what was applied to each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.ledger.effects import Begun, Replace, Update
from shoal.parameters.server.space.work_queue import WorkQueue
from shoal.wire.tables import PushId

UNITS = 3


def work_of(kind: str, number: int, updates: int) -> Update | Replace | Begun:
    if kind == "update":
        return Update(number=number, pushes=(), terms=(), scales=(), lr_factor=1.0, updates=updates)
    if kind == "replace":
        return Replace(number=number, push=PushId(0, number), updates=updates)
    return Begun(number=number, view=number)


@given(st.lists(st.sampled_from(["update", "replace", "begun", "entry", "unit", "unit", "unit"]), max_size=60))
def test_units_are_as_far_as_what_was_done_to_them(happenings: list[str]) -> None:
    queue, newest, updates = WorkQueue(), 0, 0
    waiting: list[Update | Replace | Begun] = []  # oldest first
    for happening in happenings:
        if happening == "unit" and waiting:
            head = waiting[0]
            if not isinstance(head, Begun):
                queue.done += 1
            if isinstance(head, Begun) or queue.done == UNITS:
                assert queue.finish() is waiting.pop(0)
        elif happening != "unit":
            newest += 1
            if happening != "entry":
                updates += happening != "begun"
                waiting.append(work_of(happening, newest, updates))
                queue.add(waiting[-1])
        assert (queue.head is None) == (not waiting)
        for unit in range(UNITS):
            missing = waiting[1:] if unit < queue.done else waiting
            assert queue.unit_applied(unit, newest) == (missing[0].number - 1 if missing else newest)
            assert queue.unit_updates(unit) == updates - sum(not isinstance(work, Begun) for work in missing)
        assert queue.applied(newest) == (waiting[0].number - 1 if waiting else newest)
        assert queue.touched(newest) == (waiting[0].number if queue.done else queue.applied(newest))
