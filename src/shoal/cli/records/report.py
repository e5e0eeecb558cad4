"""`shoal report RUN [RUN...]`: one HTML page about one run or several, which needs no network."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.disk.find_run import find_run
from shoal.disk.last_report import FILE_NAME, default_settings
from shoal.watch.record.run_record import is_running
from shoal.watch.report.page import write_report
from shoal.watch.screen.slow_work import told_if_slow

DESCRIPTION = """\
Writes one self-contained HTML page: curves, last and best values, speed, processor and memory, what went wrong and what
it cost, time per worker, timeline, checkpoints, environment, configuration. Several runs are drawn over each other. RUN
is a run directory, its name or the beginning of it under runs/, or `last`. A run may still be going on: with --live the
page is written again until it ends."""
INTERVAL = 5.0  # seconds between two pages, at least
SHARE = 10  # times as long as a page takes: a long record does not keep a core busy


def parser() -> Parser:
    made = Parser(prog="shoal report", description=DESCRIPTION, usage="shoal report [options] RUN [RUN...]")
    made.add_argument("runs", nargs="+", metavar="RUN", help="what to report on")
    made.add_argument(
        "--to", metavar="FILE", help="default: report.html in the run directory; for several runs, in this folder"
    )
    made.add_argument("--open", action="store_true", help="open the page in a browser")
    made.add_argument(
        "--live",
        action="store_true",
        help="write the page again every few seconds until the job ends, or Ctrl-C; an open page follows by itself",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    runs = [find_run(text) for text in parsed.runs]
    default = Path(FILE_NAME) if len(runs) > 1 else runs[0] / FILE_NAME
    target = Path(parsed.to) if parsed.to else default
    settings = default_settings()

    def write(refresh: float | None) -> None:
        write_report(runs, target, settings, refresh=refresh)

    def show() -> None:
        print(target, flush=True)
        if parsed.open:
            webbrowser.open(target.resolve().as_uri())

    if parsed.live:
        return follow(runs, write, show)
    with told_if_slow(texts.WRITING_PAGE):
        write(None)
    show()
    return 0


def follow(runs: Sequence[Path], write: Callable[[float | None], None], show: Callable[[], None]) -> int:
    """Write the page until no run is going on. The last page is one that stays as it is."""
    pause = INTERVAL
    is_shown = False
    try:
        while any(map(is_running, runs)):  # before reading: what ends meanwhile is in the next page
            began = time.monotonic()
            write(pause)
            pause = max(INTERVAL, SHARE * (time.monotonic() - began))
            if not is_shown:
                show()
                print(f"written again about every {pause:.0f} s until the job ends; Ctrl-C stops that", flush=True)
                is_shown = True
            _wait(runs, pause)
    except KeyboardInterrupt:
        write(None)
        print("\nstopped: the page is as of now and loads itself no more", flush=True)
        return 0
    write(None)
    if not is_shown:
        show()
    print("the job has ended: this is the last page", flush=True)
    return 0


def _wait(runs: Sequence[Path], seconds: float) -> None:
    """Wait for the next page, but not for a job that has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(map(is_running, runs)):
        time.sleep(min(0.5, max(0.0, until - time.monotonic())))
