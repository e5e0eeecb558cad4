"""`shoal runs [FOLDER]`: the jobs in a folder, the newest first, whether they run, are over or have crashed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.cli.terminal_tables import columns
from shoal.disk.find_run import runs_under
from shoal.disk.run_directory import PARENT
from shoal.errors import UsageError, printable
from shoal.watch.record.run_record import RunRecord, read_record
from shoal.watch.wording import duration

HEADINGS = ("run", "state", "progress", "result", "started", "took", "workers", "script")


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `--json` shows it."""

    name: str
    path: str
    state: str
    step: int
    total_steps: int | None  # None: not known
    epoch: int  # counts from 0
    epochs: int | None
    scores: dict[str, float | None]  # last held-out ones
    values: dict[str, float | None]  # last logged ones
    started: float | None  # seconds since 1970
    seconds: float  # spent running, without pauses before a resume
    workers: int
    script: str
    arguments: tuple[str, ...]
    problems: tuple[str, ...]  # about parts of its record that could not be read


def parser() -> Parser:
    made = Parser(prog="shoal runs", description="Lists jobs, the newest first.", usage="shoal runs [options] [FOLDER]")
    made.add_argument("folder", nargs="?", default=str(PARENT), metavar="FOLDER", help="default: runs")
    made.add_argument("--json", action="store_true", help="as a JSON list")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    folder = Path(parsed.folder)
    if not folder.is_dir() and folder != PARENT:
        raise UsageError(texts.no_folder_of_runs(folder))
    records = [read_record(path) for path in runs_under(folder)]
    if parsed.json:
        text = msgspec.json.format(msgspec.json.encode([listed(record) for record in records])).decode()
        print(text)
        return 0
    if not records:
        print(texts.no_runs(printable(str(folder))), file=sys.stderr)
        return 0
    print("\n".join(columns([HEADINGS, *(row(record, time.time()) for record in records)], right=(5, 6))))
    return 0


def listed(record: RunRecord) -> Listed:
    story = record.story
    return Listed(
        name=printable(record.name),
        path=printable(str(record.run_dir)),
        state=record.state,
        step=record.step,
        total_steps=record.total_steps,
        epoch=record.epoch,
        epochs=story.board.loop.epochs if story.board.loop else None,
        scores=record.scores,
        values=record.values,
        started=story.spans[0].start if story.spans else None,
        seconds=story.seconds,
        workers=story.started.workers if story.started else 0,
        script=story.started.script if story.started else "",
        arguments=story.started.arguments if story.started else (),
        problems=record.problems,
    )


def row(record: RunRecord, now: float) -> tuple[str, ...]:
    """The cells under `HEADINGS`."""
    story = record.story
    began = story.spans[0].start if story.spans else None
    return (
        record.name,
        record.state,
        progress(record),
        record.result,
        "" if began is None else ago(now - began),
        duration(story.seconds),
        str(story.started.workers) if story.started else "",
        " ".join((story.started.script, *story.started.arguments)) if story.started else "",
    )


def progress(record: RunRecord) -> str:
    """'step 120 of 450, epoch 2 of 5'."""
    total = record.total_steps
    steps = f"step {record.step:,}" + (f" of {total:,}" if total and total >= record.step else "")
    loop = record.story.board.loop
    return (
        f"{steps}, epoch {min(record.epoch + 1, loop.epochs)} of {loop.epochs}" if loop and loop.epochs > 1 else steps
    )


def ago(seconds: float) -> str:
    """Roughly: '3 min ago'."""
    for limit, size, unit in ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(0, round(seconds / size))} {unit} ago"
    return f"{round(seconds / 86400)} days ago"
