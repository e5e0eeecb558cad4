"""What `shoal.launch` returns: how the job ended, and what it left in its run directory, read when it is asked for."""

from __future__ import annotations

import html
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from shoal.disk.last_report import FILE_NAME, default_settings
from shoal.errors import Interrupted, by_name
from shoal.steps import MetricLine
from shoal.watch.record.lines import LineFile
from shoal.watch.record.run_record import read_record
from shoal.watch.record.series import METRICS
from shoal.watch.report.page import write_report

BEST = "best"  # the mark of the checkpoint that counts
SCORES = "evaluation/"  # before the names of held-out scores, as writers of `run.log_to` have them


@dataclass(frozen=True)
class Metric:
    """What was logged under one name: a value for each of these steps. `nan` also stands for an infinite value."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class JobResult:
    """How a job ended, and what it left behind."""

    exit_code: int  # as of `shoal run`
    run_dir: Path
    error: str = ""  # why the exit code is not 0, as it was printed
    _kind: str = field(default="", repr=False)  # class name from `errors`; empty where a signal stopped the job
    _checkpoint_to: str = field(default="", repr=False)  # as in the settings

    def check(self) -> JobResult:
        """This result, if the exit code is 0; otherwise raise the error that the job ended with."""
        if self.exit_code:
            raise by_name(self._kind or Interrupted.__name__, self.error)
        return self

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """What the script logged, by name; held-out scores under `evaluation/NAME`. Read once, from the record."""
        return read_metrics(self.run_dir)

    @property
    def best_checkpoint(self) -> str | None:
        """The place of the checkpoint that is marked `best`, else of the newest one; None if there is none."""
        from shoal.checkpoint.published.catalogue import is_published, marks, published
        from shoal.checkpoint.stores.opening import store_for

        store = store_for(self.run_dir, self._checkpoint_to)
        name = marks(store).get(BEST)
        if name is None or not is_published(store, name):
            name = next((entry.name for entry in published(store)), None)
        return None if name is None else f"{store.place}/{name}"

    def report(self) -> Path:
        """The job's report, a page for the browser. Made now if it is not there."""
        path = self.run_dir / FILE_NAME
        return path if path.exists() else write_report([self.run_dir], path, default_settings())

    def _repr_html_(self) -> str:
        """For notebooks: a short table."""
        record = read_record(self.run_dir)
        rows = {
            "outcome": record.state if self.exit_code == 0 else f"{record.state}, exit code {self.exit_code}",
            "steps": f"{record.step:,}",
            "result": record.result,
            "error": next((line for line in reversed(self.error.splitlines()) if line.strip()), ""),
            "checkpoint": self.best_checkpoint or "",
            "record": str(self.run_dir),
            "report": str(self.run_dir / FILE_NAME),
        }
        cells = (
            f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{html.escape(text)}</td></tr>'
            for name, text in rows.items()
            if text
        )
        return f"<table>{''.join(cells)}</table>"


def read_metrics(run_dir: Path) -> dict[str, Metric]:
    """All values of a job. Where it went back, what it had logged since does not count."""
    found: dict[str, Metric] = {}
    last = 0  # step
    for line in LineFile(run_dir / METRICS, msgspec.json.Decoder(MetricLine)):
        if not line.is_outside:
            if line.step <= last:
                for metric in found.values():
                    _go_back(metric, line.step)
            last = line.step
        for name, value in line.values.items():
            metric = found.setdefault(name, Metric())
            _go_back(metric, line.step)  # logged twice for one step: the later one counts
            metric.steps.append(line.step)
            metric.values.append(math.nan if value is None else value)
    for name, series in read_record(run_dir).story.scores.items():
        points = series.points()
        scores = [math.nan if point.mean is None else point.mean for point in points]
        found[SCORES + name] = Metric([point.step for point in points], scores)
    return {name: metric for name, metric in found.items() if metric.steps}


def _go_back(metric: Metric, step: int) -> None:
    """Forget everything from this step on."""
    kept = bisect_left(metric.steps, step)
    del metric.steps[kept:], metric.values[kept:]
