"""What the figures of `shoal bench training` are taken to mean."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.bench.harness import medians
from shoal.bench.training.figures import (
    DDP,
    FAST_DDP,
    IN_WORKER,
    NO_EXCHANGE,
    SHOAL,
    bounds,
    exposed,
    ratios,
    text,
)

SECONDS = {
    SHOAL: 0.08,
    DDP: 0.19,
    DDP + IN_WORKER: 0.15,
    FAST_DDP: 0.16,
    FAST_DDP + IN_WORKER: 0.14,
    NO_EXCHANGE: 0.10,
    NO_EXCHANGE + IN_WORKER: 0.06,
}


def result(**changed: float) -> dict[str, Any]:
    seconds = {name: [9.0, value, 0.001] for name, value in {**SECONDS, **changed}.items()}
    return {"parameters": 25_200_000, "batch": 16, "seconds": seconds}


def test_medians_are_over_the_turns() -> None:
    assert medians(result()["seconds"]) == SECONDS


def test_what_is_exposed_is_measured_against_the_same_kind_of_process() -> None:
    assert exposed(SECONDS) == pytest.approx(
        {SHOAL: 0.02, DDP: 0.09, DDP + IN_WORKER: 0.09, FAST_DDP: 0.06, FAST_DDP + IN_WORKER: 0.08}
    )


def test_shoal_is_compared_with_every_ddp() -> None:
    found = ratios(SECONDS)
    assert list(found) == [DDP, DDP + IN_WORKER, FAST_DDP, FAST_DDP + IN_WORKER]
    assert found[FAST_DDP] == pytest.approx({"step": 0.5, "exposed": 1 / 3})


def test_nothing_is_said_about_parts_of_what_was_not_there() -> None:
    noisy = {**SECONDS, DDP: 0.09}
    assert "exposed" not in ratios(noisy)[DDP]
    assert [bound.what for bound in bounds("mlp", noisy)] == ["mlp: step, of that of DDP over gloo"]


@pytest.mark.parametrize(("step", "holds"), [(0.08, [True, True]), (0.12, [True, False]), (0.14, [False, False])])
def test_bounds_hold_or_do_not(step: float, holds: list[bool]) -> None:
    assert [bound.holds for bound in bounds("mlp", {**SECONDS, SHOAL: step})] == holds


def test_the_text_names_what_was_missed() -> None:
    lines = text("gpt", result(shoal=0.17)).splitlines()
    assert [line for line in lines if "MISSED" in line] == [
        "  MISSED gpt: step, of that of DDP over gloo: 0.895, at most 0.850"
    ]
    assert next(line for line in lines if line.startswith("  ddp static  ")).split()[2:] == (
        ["160.0", "ms", "60.0", "ms", "1.06,", "1.83"]
    )
