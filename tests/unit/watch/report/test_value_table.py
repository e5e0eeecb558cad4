"""Last values beside the best ones, and settings that are not the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.watch.record.series import Extreme, Series
from shoal.watch.report.charts import chart_data
from shoal.watch.report.machine_section import worker_numbers
from shoal.watch.report.page import read_runs
from shoal.watch.report.setting_section import CHANGED, DIFFERS, told_apart
from shoal.watch.report.value_table import best_of, best_result, best_words
from support.records import Job, eventful, job_started


def series(*values: float | None) -> Series:
    made = Series()
    for step, value in enumerate(values, start=1):
        made.add(step, float(step), value)
    return made


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("loss", Extreme(0.5, 3)),
        ("validation/Loss", Extreme(0.5, 3)),
        ("val_rmse", Extreme(0.5, 3)),
        ("accuracy", Extreme(2.0, 1)),
        ("top-1 acc", Extreme(2.0, 1)),
        ("learning rate", None),
        ("mapping", None),
    ],
)
def test_names_tell_what_is_best(name: str, best: Extreme | None) -> None:
    assert best_of(name, series(2.0, None, 0.5, 1.0)) == best


def test_best_value_is_told_with_its_step_even_in_a_long_job() -> None:
    made = Series()
    for step in range(1, 50_001):
        made.add(step, float(step), abs(step - 31_337) / 1000)
    assert made.width > 1
    assert best_words("loss", made) == ", best 0.0000 at step 31,337"
    assert best_words("loss", None) == ""


def test_best_value_of_steps_that_were_taken_back_does_not_count() -> None:
    made = series(3.0, 2.0, 0.1, 0.2)
    made.add(3, 3.0, 1.0)
    assert made.least == Extreme(1.0, 3)
    assert made.greatest == Extreme(3.0, 1)


def test_best_result_of_a_run_is_that_of_its_score(tmp_path: Path) -> None:
    [run] = read_runs([eventful(tmp_path / "run")])
    assert best_result(run) == "0.9939 at step 600", "accuracy, which is held out, and not the loss"
    job = Job(tmp_path / "trained")
    job.tell(job_started())
    for step, value in ((1, 3.0), (2, 1.0), (3, 2.0)):
        job.step(step, {"loss": value, "norm": 1.0})
    [run] = read_runs([job.write()])
    assert best_result(run) == "1.0000 at step 2"


def test_settings_that_are_not_the_default_or_differ_between_runs() -> None:
    defaults = {"workers": 1, "seed": 0, "run-dir": "", "threads": 0}
    first = {"workers": 4, "seed": 0, "run-dir": "a", "threads": 0}
    assert told_apart([first], defaults) == {"workers": CHANGED, "seed": "", "run-dir": "", "threads": ""}
    second = {"workers": 4, "seed": 1, "run-dir": "b", "threads": 0}
    assert told_apart([first, second], defaults) == {"workers": CHANGED, "seed": DIFFERS, "run-dir": "", "threads": ""}
    assert told_apart([first], {}) == dict.fromkeys(first, ""), "where no defaults are known nothing differs"


def test_many_workers_of_a_machine_are_not_all_named() -> None:
    assert worker_numbers([0, 1, 5]) == "0, 1, 5"
    assert worker_numbers(range(14)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"


def test_curves_over_samples_and_epochs(tmp_path: Path) -> None:
    data = chart_data(read_runs([eventful(tmp_path / "one")]))
    assert data.axes == ["step", "samples", "epoch", "time"]
    [run] = data.runs
    assert run.samples is not None
    assert run.epoch is not None
    assert (run.samples.step[-1], run.samples.value[-1]) == (600, 600 * 128)
    assert run.epoch.value[-1] == 6.0, "an epoch of the record ends every 100 steps"


def test_several_runs_are_compared_over_samples(tmp_path: Path) -> None:
    data = chart_data(read_runs([eventful(tmp_path / "one"), eventful(tmp_path / "two", steps=500)]))
    assert data.axes[0] == "samples"
    assert sorted(data.axes) == ["epoch", "samples", "step", "time"]


def test_an_axis_that_one_run_does_not_know_is_not_offered(tmp_path: Path) -> None:
    job = Job(tmp_path / "stream")
    job.tell(job_started())
    job.step(1, {"loss": 1.0})
    data = chart_data(read_runs([job.write(), eventful(tmp_path / "one")]))
    assert data.axes == ["samples", "step", "time"]
