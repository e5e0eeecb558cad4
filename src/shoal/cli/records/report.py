"""`shoal report RUN [RUN...]`: one HTML page about one run or several, which needs no network."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from shoal.cli.options import Parser
from shoal.disk.find_run import find_run
from shoal.disk.last_report import FILE_NAME, default_settings
from shoal.watch import told_if_slow, write_report

DESCRIPTION = """\
Writes one self-contained HTML page: curves, speed, what went wrong and what it cost, time per worker, timeline,
checkpoints, configuration. Several runs are drawn over each other. RUN is a run directory, its name or the beginning of
it under runs/, or `last`. A run may still be going on."""


def parser() -> Parser:
    made = Parser(prog="shoal report", description=DESCRIPTION, usage="shoal report [options] RUN [RUN...]")
    made.add_argument("runs", nargs="+", metavar="RUN", help="what to report on")
    made.add_argument(
        "--to", metavar="FILE", help="default: report.html in the run directory; for several runs, in this folder"
    )
    made.add_argument("--open", action="store_true", help="open the page in a browser")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    runs = [find_run(text) for text in parsed.runs]
    default = Path(FILE_NAME) if len(runs) > 1 else runs[0] / FILE_NAME
    with told_if_slow("reading the record and writing the page"):
        written = write_report(runs, Path(parsed.to) if parsed.to else default, defaults=default_settings())
    print(written)
    if parsed.open:
        webbrowser.open(written.resolve().as_uri())
    return 0
