"""What a program learns of a job that is over."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from shoal.errors import Interrupted, ScriptFailed, ShoalError
from shoal.events import Evaluated, JobEnded, JobStarted, Record
from shoal.launching.from_python.job_result import JobResult
from shoal.steps import MetricLine


def logged(step: int, *, outside: bool = False, **values: float | None) -> MetricLine:
    used = 0 if outside else 8
    return MetricLine(
        step=step, time=100.0 + step, epoch=0, generation=1, seconds=used / 8, samples=used, values=values
    )


def run_dir(folder: Path, *lines: MetricLine, events: tuple[Record, ...] = ()) -> Path:
    (folder / "config.toml").write_text("workers = 1\n")
    (folder / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return folder


def test_metrics_are_those_that_count(tmp_path: Path) -> None:
    place = run_dir(
        tmp_path,
        logged(1, loss=3.0),
        logged(2, loss=2.0, rate=0.1),
        logged(3, loss=9.0, only_then=1.0),
        logged(2, loss=2.5),  # the job went back to step 1
        logged(3, loss=None),
        logged(3, outside=True, parameters=7.0),
    )
    metrics = JobResult(0, place).metrics
    assert set(metrics) == {"loss", "parameters"}
    assert metrics["loss"].steps == [1, 2, 3]
    assert metrics["loss"].values[:2] == [3.0, 2.5]
    assert math.isnan(metrics["loss"].values[2])
    assert (metrics["parameters"].steps, metrics["parameters"].values) == ([3], [7.0])


def test_held_out_scores_are_metrics_and_the_table_is_short_and_safe(tmp_path: Path) -> None:
    started = JobStarted(
        script="a.py", arguments=(), workers=1, strategy="all-reduce", schedule="ring", codec="fp32", seed=0
    )
    scored = Evaluated(step=4, samples=10, scores={"accuracy": 0.5})
    ended = JobEnded(outcome="failed", exit_code=1, reason="no", seconds=1.0)
    told = tuple(Record(time=100.0 + at, event=event) for at, event in enumerate((started, scored, ended)))
    result = JobResult(1, run_dir(tmp_path, events=told), "Traceback\nValueError: <b>no</b>", "ScriptFailed")
    assert result.metrics["evaluation/accuracy"].steps == [4]
    assert result.metrics["evaluation/accuracy"].values == [0.5]
    table = result._repr_html_()
    assert "failed, exit code 1" in table
    assert "ValueError: &lt;b&gt;no" in table
    assert "accuracy 0.5" in table
    assert str(tmp_path) in table
    assert result.best_checkpoint is None
    assert result.report().read_text().startswith("<!")


def test_check_raises_what_the_job_ended_with(tmp_path: Path) -> None:
    good = JobResult(0, tmp_path)
    assert good.check() is good
    with pytest.raises(ScriptFailed, match="it raised"):
        JobResult(1, tmp_path, "it raised", "ScriptFailed").check()
    with pytest.raises(Interrupted, match="Ctrl-C"):
        JobResult(130, tmp_path, "interrupted by Ctrl-C").check()
    assert issubclass(Interrupted, ShoalError)


def test_the_marked_checkpoint_is_the_best_and_else_the_newest(tmp_path: Path) -> None:
    result = JobResult(0, tmp_path)
    for name in ("step-00000010-g1", "step-00000020-g1"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "manifest.json").write_text("{}")
    assert result.best_checkpoint == str(tmp_path / "checkpoints/step-00000020-g1")
    (tmp_path / "checkpoints/marks").mkdir()
    (tmp_path / "checkpoints/marks/best").write_text("step-00000010-g1\n")
    assert result.best_checkpoint == str(tmp_path / "checkpoints/step-00000010-g1")
