"""One job as its run directory tells it: settings, events, state. Works while the job runs and after it crashed.

Nothing here raises because of what is in a file: damaged parts are left out, and `problems` says so. Nothing is
written. Not here: the metrics, which can be far larger (`series.read_curves`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal import files
from shoal.events import Record
from shoal.steps import LAST_TIME, MOST_COUNT, MOST_SECONDS, MetricLine
from shoal.watch.record.lines import LineFile, last_line
from shoal.watch.record.series import METRICS
from shoal.watch.record.story import Story
from shoal.watch.wording import number

EVENTS = "events.jsonl"
CONFIG = "config.toml"
MARKS = "checkpoints/marks"  # a file for each mark, with the name of the checkpoint that has it
LONGEST_MARK = 1024  # bytes
LOCK = "lock"  # held by the launcher and the coordinator of a job that runs
RUNNING, CRASHED, NOT_STARTED = "running", "crashed", "not started"


@dataclass(frozen=True)
class RunRecord:
    run_dir: Path
    state: str  # running, crashed, not started, or how the job ended: finished, stopped, interrupted, failed
    settings: Mapping[str, object]  # as saved, and as taken over from the script; empty where they cannot be read
    story: Story
    last: MetricLine | None  # the last line of the metrics
    problems: tuple[str, ...]  # about parts of the record that could not be read

    @property
    def name(self) -> str:
        return self.run_dir.resolve().name

    @property
    def step(self) -> int:
        """Applied steps: from the metrics, since events are thinned, but not steps that a resume rewound."""
        return self.last.step if self.last is not None and self.last.time >= self.story.rewound else self.story.step

    @property
    def total_steps(self) -> int | None:
        """After the present loop; None: not known."""
        loop = self.story.board.loop
        return None if loop is None or loop.steps is None else loop.first_step + loop.steps

    @property
    def epoch(self) -> int:
        """Counts from 0."""
        return (
            self.last.epoch
            if self.last is not None and self.last.time >= self.story.rewound
            else self.story.board.epoch
        )

    @property
    def scores(self) -> dict[str, float | None]:
        """The last held-out scores."""
        found = {name: series.last for name, series in self.story.scores.items()}
        return {name: point.mean for name, point in found.items() if point is not None}

    @property
    def values(self) -> dict[str, float | None]:
        """The last logged values: from the metrics, since events are thinned."""
        known: dict[str, float | None] = dict(self.story.board.values)
        last = self.last
        if last is None or (last.time < self.story.rewound and last.step > self.story.board.first_step):
            return known  # the metrics are of steps that a resume took back
        return known | last.values

    @property
    def result(self) -> str:
        """The job's result in a few words: a held-out score, else the loss, else another logged value."""
        for values, where in ((self.scores, ", held out"), (self.values, "")):
            if values:
                name = min(values, key=lambda name: (name == "loss") == bool(where))
                value = values[name]
                return f"{name} {'nan' if value is None else number(value)}{where}"
        return ""


def is_running(run_dir: Path) -> bool:
    """Whether a process holds the job's lock."""
    try:
        lock = os.open(run_dir / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a FIFO
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(lock)
    return False


def read_record(run_dir: Path) -> RunRecord:
    held = is_running(run_dir)  # before reading: a job that ends meanwhile has its end in the file
    problems = []
    settings: Mapping[str, object] = {}
    try:
        settings = files.read_toml(run_dir / CONFIG)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{CONFIG} cannot be read: {reason}")
    lines = LineFile(run_dir / EVENTS, msgspec.json.Decoder(Record), is_plausible)
    story = Story()
    for record in lines:
        story.add(record)
    problems += damage(EVENTS, lines.skipped, lines.problem)
    if (marks := _marks(run_dir)) is not None and not settings.get("checkpoint-to"):
        story.has_marks(marks)
    return RunRecord(
        run_dir=run_dir,
        state=_state(story, held),
        settings={**settings, **story.settings},
        story=story,
        last=last_line(run_dir / METRICS, msgspec.json.Decoder(MetricLine)),
        problems=tuple(problems),
    )


def _marks(run_dir: Path) -> dict[str, str] | None:
    """By label, the marked checkpoint; None where the run directory has no place for marks."""
    try:
        found = {}
        for file in (run_dir / MARKS).iterdir():
            if not file.name.startswith("."):
                found[file.name] = files.read_plain(file, LONGEST_MARK).decode("utf-8", "replace").strip()
        return found
    except OSError:
        return None


def is_plausible(record: Record) -> bool:
    """Whether a job can have such numbers: times of this era, counts and seconds that are not absurd."""
    return 0 <= record.time <= LAST_TIME and _is_bounded(record.event)


def _is_bounded(value: object) -> bool:
    if isinstance(value, int):
        return -MOST_COUNT <= value < MOST_COUNT
    if isinstance(value, float):
        return abs(value) <= MOST_SECONDS
    if isinstance(value, msgspec.Struct):
        return all(map(_is_bounded, msgspec.structs.astuple(value)))
    if isinstance(value, dict):  # scripts may log anything
        return all(_is_bounded(each) for each in value.values() if not isinstance(each, float))
    return not isinstance(value, tuple) or all(map(_is_bounded, value))


def damage(file: str, skipped: int, problem: str) -> list[str]:
    """What is wrong with a file of lines, in words."""
    lines = "1 line" if skipped == 1 else f"{skipped} lines"
    found = [f"{lines} of {file} left out: damaged, or written by another version"] if skipped else []
    return [*found, problem] if problem else found


def _state(story: Story, held: bool) -> str:
    if story.ended is not None:
        return story.ended.outcome
    if held:
        return RUNNING
    return CRASHED if story.started is not None else NOT_STARTED
