"""What `shoal bench collectives` makes of its measurements, and how its options are read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.bench.collectives.command import _cases, _options, _ranks, _sizes
from shoal.bench.collectives.figures import FREE, KB, MB, SHAPED, Measurement, bounds, line
from shoal.bench.verdict import Bound, table
from shoal.errors import UsageError


def measured(name: str, size: int, ranks: int = 2, where: str = "one machine", **milliseconds: float) -> Measurement:
    """Every library's seconds, three turns; `gloo_list` is gloo called with a list."""
    seconds = {library.replace("_", " "): [1e-3 * value] * 3 for library, value in milliseconds.items()}
    return Measurement(name, size, ranks, seconds, where)


def one(found: list[Bound], words: str) -> Bound:
    (bound,) = [bound for bound in found if words in bound.what]
    return bound


@pytest.mark.parametrize(("ranks", "gloo", "holds"), [(2, 4.0, True), (2, 3.9, False), (4, 3.0, True), (4, 2.9, False)])
def test_large_all_reduces_are_judged_by_the_number_of_ranks(ranks: int, gloo: float, holds: bool) -> None:
    found = bounds([measured("all-reduce", MB, ranks, gloo=gloo, shoal=1.0)])
    assert one(found, f"from 1 MB, {ranks} ranks").holds is holds


def test_each_bound_shows_its_worst_case() -> None:
    cases = [measured("all-reduce", size, gloo=gloo, shoal=1.0) for size, gloo in ((MB, 9.0), (4 * MB, 5.0))]
    bound = one(bounds(cases), "from 1 MB, 2 ranks")
    assert (bound.found, bound.remark, bound.holds) == (5.0, "all-reduce of 4 MB, 2 ranks", True)
    assert "holds  all-reduce from 1 MB, 2 ranks" in table([bound])


def test_a_librarys_fastest_call_counts_but_no_way_of_calling_may_be_slower() -> None:
    case = measured("all-gather", MB, gloo_tensor=4.0, gloo_list=3.0, shoal_tensor=1.0, shoal_list=4.0)
    assert case.ratio() == pytest.approx(3.0)
    found = bounds([case])
    assert one(found, "1 to 16 MB").holds
    assert one(found, "every call").found == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("milliseconds", "holds"),
    [
        ({"gloo": 1.5, "shoal": 1.0, "memcpy": 0.1}, True),
        ({"gloo": 1.4, "shoal": 1.0, "memcpy": 0.8}, True),
        ({"gloo": 1.4, "shoal": 1.0, "memcpy": 0.79}, False),
    ],
)
def test_above_16_mb_the_limit_of_memory_counts_too(milliseconds: dict[str, float], holds: bool) -> None:
    assert one(bounds([measured("broadcast", 100 * MB, **milliseconds)]), "above").holds is holds


def test_what_was_not_measured_is_not_judged() -> None:
    found = bounds([measured("all-reduce", 16 * KB, gloo=6.0, shoal=1.0)])
    assert [bound.what.partition(":")[0] for bound in found] == ["all-reduce, 4 to 64 KB", "every call"]


def test_links_are_judged_against_gloo_and_against_a_socket() -> None:
    cases = [
        measured("send", MB, where=FREE, gloo=1.0, shoal=1.1),
        measured("send", MB, where=SHAPED, gloo=1.0, shoal=1.0, socket=0.94),
    ]
    found = bounds(cases)
    assert not one(found, "between two machines").holds
    assert not one(found, "at 1 Gbit").holds
    assert len(found) == 2


def test_a_way_that_gloo_lacks_is_compared_with_nothing() -> None:
    case = measured("all-to-all", MB, gloo_tensor=2.0, shoal_tensor=1.0, shoal_list=9.0)
    assert case.worst_ratio() == pytest.approx(2.0)
    assert math.isinf(measured("barrier", 0, shoal=1.0).ratio())


@given(some.integers(0, 1 << 30), some.floats(1e-6, 10.0), some.floats(1e-6, 10.0))
def test_every_measurement_has_a_line(size: int, gloo: float, shoal: float) -> None:
    text = line(measured("reduce", size, gloo=gloo, shoal=shoal))
    assert "gloo" in text and "shoal" in text and text.endswith("x")


def test_sizes_and_ranks_are_read() -> None:
    assert _sizes("8,64k,16M") == (8, 64 * KB, 16 * MB)
    assert _ranks("2,4") == (2, 4)
    for wrong in ("", "1g", "2", "8,,9", "9999m"):
        with pytest.raises(UsageError, match="--sizes"):
            _sizes(wrong)
    for wrong in ("1", "a", "2,100", ""):
        with pytest.raises(UsageError, match="--ranks"):
            _ranks(wrong)


def test_the_default_covers_8_bytes_to_400_mb_and_a_barrier_has_no_size() -> None:
    cases = _cases(_options([]))
    assert {("all-reduce", 8), ("all-reduce", 400 * MB), ("send", 8), ("barrier", 0)} <= set(cases)
    assert len({name for name, _ in cases}) == 10
    assert _cases(_options(["--only", "barrier", "--sizes", "8"])) == [("barrier", 0)]
