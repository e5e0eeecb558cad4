"""`--nodes`, `--time` and `--slurm`: what they may say, and what they need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.job_config import from_mapping
from shoal.settings import texts
from shoal.settings.engines.slurm_settings import (
    LONGEST,
    MOST_NODES,
    SlurmSettings,
    node_range,
    salloc_options,
    slurms_time,
    time_limit,
)


@given(st.integers(1, MOST_NODES), st.integers(1, MOST_NODES))
def test_nodes_are_a_number_or_a_range(one: int, other: int) -> None:
    fewest, most = sorted((one, other))
    assert node_range(f"{one}") == (one, one)
    assert node_range(f"{fewest}:{most}") == (fewest, most)


@pytest.mark.parametrize("text", ["", "0", "8:2", "2-8", "two", ":2", "2:", "99999", "-1", "٢"])
def test_other_numbers_of_nodes_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        node_range(text)
    assert str(raised.value) == texts.bad_nodes(text, MOST_NODES)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14400),
        ("30m", 1800),
        ("1h30m", 5400),
        ("2d", 172800),
        ("90s", 90),
        ("30", 1800),
        ("30:15", 1815),
        ("4:00:00", 14400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:05", 131405),
    ],
)
def test_a_time_is_ours_or_one_of_slurms_forms(text: str, seconds: int) -> None:
    assert time_limit(text) == seconds


@given(st.integers(1, LONGEST))
def test_what_slurm_is_told_is_the_time_that_was_meant(seconds: int) -> None:
    assert time_limit(slurms_time(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0", "4x", "h", "4h:30", "1-", "1-2-3", "-4h", "99999999", "1:2:3:4", "9999d"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        time_limit(text)
    assert str(raised.value) == texts.bad_time(text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nodes": "2"}, texts.only_with_slurm("nodes", "2")),
        ({"on": "slurm", "time": "4h"}, texts.only_with_slurm("time", "4h")),
        ({"on": "slurm", "slurm": "partition=gpu"}, texts.only_with_slurm("slurm", "partition=gpu")),
    ],
)
def test_what_nobody_would_ask_for_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping(settings, origin="test").check_together()
    assert str(raised.value) == said


def test_settings_of_a_request_are_checked_like_others() -> None:
    config = from_mapping(
        {"on": "slurm", "nodes": 2, "time": "4h", "slurm": "partition=gpu"}, origin="test"
    ).check_together()
    assert config.of(SlurmSettings).nodes == "2"
    assert salloc_options("partition=gpu --comment='two words' exclusive") == (
        *("--partition=gpu", "--comment=two words", "--exclusive"),
    )
    for wrong in ({"nodes": "8:2"}, {"time": "soon"}, {"slurm": "-p gpu"}, {"slurm": "--comment='open"}):
        with pytest.raises(UsageError, match=f"^--{next(iter(wrong))} is "):
            from_mapping({"on": "slurm", **wrong}, origin="test")
