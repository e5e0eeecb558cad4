"""torch's own distributed suite, from its wheel: what gloo passes on this machine, the backend `shoal` passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

# Tests that gloo passes and ours does not, by name; the reasons are in docs/torch-backend.md.
EXCLUDED: frozenset[str] = frozenset()
RANKS, MORE_RANKS = 4, 8  # some tests ask for exactly four, others for at least eight
TOO_FEW_RANKS = "world size"
NO_GPU = ("CUDA devices", "CUDA is not available")  # the machine is asked for them, and not the backend
Outcomes = dict[str, tuple[str, str]]  # by test: passed, skipped or failed, and what it said


def outcomes(backend: str, size: int, results: Path, only: Iterable[str] | None = None) -> Outcomes:
    """Of all tests, or of some."""
    names = "" if only is None else f"^({'|'.join(only)})$"
    options = ["--world-size", str(size), "--json", str(results), "--only", names]
    subprocess.run(
        [sys.executable, "-m", "support.torch_suite", backend, *options],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {one["name"]: (one["outcome"], one["text"]) for one in json.loads(results.read_text())}


def names_of(found: Outcomes, outcome: str, *words: str) -> set[str]:
    """Of tests that came to this, and said one of the words if there are any."""
    told = words or ("",)
    return {name for name, (one, text) in found.items() if one == outcome and any(word in text for word in told)}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_passes_what_gloo_passes(tmp_path: Path) -> None:
    """With four ranks, and with eight what four are too few for; gloo then shows what is left and could be passed."""
    results = tmp_path / "results.json"
    few = outcomes("shoal", RANKS, results)
    too_few = names_of(few, "skipped", TOO_FEW_RANKS)
    more = outcomes("shoal", MORE_RANKS, results, too_few)
    assert more.keys() == too_few, "the suite skips for other reasons than it did when this was written"
    passed = names_of(few, "passed") | names_of(more, "passed")
    assert len(passed) > 110, "the suite does not run as it should: 115 passed when this was written"
    failed = {name: found[name][1] for found in (few, more) for name in names_of(found, "failed")}
    assert failed.keys() <= EXCLUDED, failed
    for size, ours in ((RANKS, few), (MORE_RANKS, more)):
        left = ours.keys() - passed - names_of(ours, "skipped", *NO_GPU)
        by_gloo = outcomes("gloo", size, results, left)
        missing = {name: ours[name] for name in names_of(by_gloo, "passed")}
        assert missing.keys() <= EXCLUDED, missing
