"""The harness of the benchmarks: whose turn it is, and processes that answer or fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.bench.harness import Crew, in_turns
from shoal.errors import ScriptFailed

ECHO = """
from shoal.bench.harness import OrderLine
orders = OrderLine()
print("a library's chatter")
for order in orders:
    if order == "fail":
        sys.exit("out of luck")
    orders.answer(order * 2)
"""


@given(some.integers(1, 5), some.integers(1, 12), some.integers(0, 3))
def test_every_variant_has_its_turn_and_warm_ups_do_not_count(variants: int, turns: int, uncounted: int) -> None:
    order: list[str] = []

    def call(name: str) -> int:
        order.append(name)
        return order.count(name)

    names = [f"variant {number}" for number in range(variants)]
    found = in_turns({name: lambda name=name: call(name) for name in names}, turns, uncounted=uncounted)
    assert found == {name: list(range(uncounted + 1, uncounted + turns + 1)) for name in names}
    firsts = order[::variants]
    assert firsts == [names[turn % variants] for turn in range(uncounted + turns)]


def test_processes_answer_orders_and_nothing_else_is_an_answer(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    with Crew() as crew:
        first, second = (crew.start(f"process {number}", str(script)) for number in range(2))
        for process, order in ((first, 4), (second, "ab"), (first, [1])):
            process.order(order)
        assert (first.answer(), second.answer(), first.answer()) == (8, "abab", [1, 1])
        first.finish(60.0)


def test_the_error_of_a_process_that_failed_names_it_and_quotes_it(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    with (
        pytest.raises(ScriptFailed, match=r"(?s)rank 3 of the benchmark ended with exit code 1 .*out of luck"),
        Crew() as crew,
    ):
        process = crew.start("rank 3", str(script))
        process.order("fail")
        process.answer()


def test_processes_end_with_the_block() -> None:
    with Crew(grace=60.0) as crew:
        process = crew.start("a sleeper", "-c", "import time; time.sleep(600)")
    assert process._popen.returncode is not None
