"""`shoal show RUN`: one job in a page of text, whether it runs, is over or has crashed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime

from shoal.cli.options import Parser
from shoal.cli.records import machine_lines
from shoal.cli.records.runs import progress
from shoal.cli.terminal_tables import columns
from shoal.disk.find_run import find_run
from shoal.disk.last_report import default_settings
from shoal.disk.run_directory import JOIN
from shoal.errors import printable
from shoal.files import read_plain
from shoal.watch.incident_words import NOTHING, cost_cells, cost_of, definition, in_a_line
from shoal.watch.record.run_record import CRASHED, RUNNING, RunRecord, read_record
from shoal.watch.record.timeline import TimelineEntry
from shoal.watch.report.setting_section import OWN
from shoal.watch.report.worker_section import KINDS, sent_cells, sent_headings
from shoal.watch.wording import amount, duration, first_line, named_values, rate, span

MOST_EVENTS = 15  # the newest ones are shown
MOST_CHECKPOINTS = 8
LONGEST_JOIN = 1 << 14  # bytes of the command that adds a worker
MOST_INCIDENTS = 10
ERROR_LINES = 30  # the last ones of a traceback
DULL = ("epochs", "checkpoints", "machines")  # shown in sections of their own, except for problems
DESCRIPTION = """\
Sums up one job: state, progress, results, speed, time per worker, machines and the links between them, checkpoints,
what went wrong and what it cost, what happened and why. RUN is a run directory, its name or the beginning of it under
runs/, or `last`."""


def parser() -> Parser:
    made = Parser(prog="shoal show", description=DESCRIPTION, usage="shoal show RUN")
    made.add_argument("run", metavar="RUN", help="what to show")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    print("\n".join(lines(read_record(find_run(parsed.run)))))
    return 0


def lines(record: RunRecord) -> Iterator[str]:
    yield from _headline(record)
    yield from _under("settings that are not the default", _settings(record))
    yield from _under("time per worker", _workers(record))
    yield from _under("where processes were put, and why", machine_lines.placements(record))
    yield from _under("what the engine said", machine_lines.engine_said(record))
    yield from _under(*machine_lines.links(record))
    yield from _under("checkpoints", _checkpoints(record))
    yield from _under("what went wrong, and what it cost", _incidents(record))
    yield from _under("what happened", _events(record))
    yield from _under("error", _error(record))
    yield from _under("record", _places(record))


def _under(title: str, body: list[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}".rstrip() for line in body)] if body else []


def _headline(record: RunRecord) -> Iterator[str]:
    story = record.story
    started = story.started
    ended = story.ended
    reason = f": {first_line(ended.reason)}" if ended is not None and ended.reason else ""
    code = f" (exit code {ended.exit_code})" if ended is not None and ended.exit_code else ""
    yield printable(f"{record.name}: {record.state}{code}{reason}")
    if record.state == CRASHED:
        yield "  no process holds the job and its record has no end: it was killed, or its machine went down"
        yield printable(f"  `shoal run --resume {record.run_dir}` goes on from the last checkpoint")
    rows = [
        ("script", "" if started is None else " ".join((started.script, *started.arguments))),
        ("workers", "" if started is None else f"{started.workers}, {started.strategy}"),
        ("nodes", machine_lines.nodes_line(record)),
        ("progress", progress(record)),
        ("held out", named_values(record.scores)),
        ("logged", named_values(record.values)),
        ("speed", rate(story.samples_per_second) if story.samples_per_second else ""),
        ("time", _time(record)),
        ("resumed", ", ".join(f"at step {event.step:,} from {event.checkpoint}" for event in story.resumes[-3:])),
        ("left out", "; ".join(record.problems)),
    ]
    yield from (f"  {name:<9} {printable(text)}" for name, text in rows if text)


def _time(record: RunRecord) -> str:
    story = record.story
    if not story.spans:
        return ""
    goes = f" in {len(story.spans)} goes" if len(story.spans) > 1 else ""
    return f"{duration(story.seconds)}{goes}, started {datetime.fromtimestamp(story.spans[0].start):%Y-%m-%d %H:%M:%S}"


def _settings(record: RunRecord) -> list[str]:
    defaults = default_settings()
    changed = [
        (name, str(value))
        for name, value in record.settings.items()
        if name not in OWN and value != defaults.get(name, value)
    ]
    return columns(changed) if changed else []


def _workers(record: RunRecord) -> list[str]:
    states = [state for _, state in sorted(record.story.workers.items())]
    if not states:
        return []
    table: list[tuple[str, ...]] = [("worker", "samples", "time", *KINDS, *sent_headings(states))]
    for state in states:
        total = state.shares.total or 1.0
        shares = (f"{100 * getattr(state.shares, kind) / total:.1f}%" for kind in KINDS)
        row = (str(state.worker), f"{state.samples:,}", duration(state.seconds), *shares, *sent_cells(state))
        table.append(row[: len(table[0])])
    return columns(table, right=range(len(table[0])), indent="")


def _checkpoints(record: RunRecord) -> list[str]:
    story = record.story
    if not story.checkpoints:
        return []
    newest = list(story.checkpoints.values())[-MOST_CHECKPOINTS:]
    rows = [
        (
            made.name,
            made.state + (f", marked {made.mark}" if made.mark else ""),
            f"{amount(made.size)} in {span(made.seconds)}" if made.size else "",
            first_line(made.reason),
        )
        for made in newest
    ]
    count = f"{story.published:,} published, {story.lost:,} lost, training held up {span(story.blocked)} in all"
    return [count, *columns(rows)]


def _incidents(record: RunRecord) -> list[str]:
    story = record.story
    if not len(story.incidents):
        return [NOTHING] if story.started is not None else []
    cost = cost_of(record)
    found = list(story.incidents)
    earlier = len(found) - MOST_INCIDENTS + story.incidents.earlier
    told = [in_a_line(story.incidents, cost), *([f"({earlier:,} earlier ones)"] if earlier > 0 else [])]
    for incident in found[-MOST_INCIDENTS:]:
        at = f"{duration(story.elapsed(incident.time)):>8}  "
        sign = "! " if incident.is_fault else ""
        told.append(printable(f"{at}{sign}{'; '.join(incident.story)}"))
        told += [printable(f"{'':>10}{line}") for line in incident.decided]
        held, redone, copied = cost_cells(incident, cost)
        costs = (f"without progress: {held}", redone and f"redone: {redone}", copied and f"state copied: {copied}")
        told.append(f"{'':>10}{'; '.join(filter(None, costs))}")
    return [*told, definition(cost, story.most)]


def _events(record: RunRecord) -> list[str]:
    told = [entry for entry in record.story.timeline.entries if entry.is_problem or entry.category not in DULL]
    left = [f"({len(told) - MOST_EVENTS:,} earlier ones are in the report)"] if len(told) > MOST_EVENTS else []
    return [*left, *(_event(record, entry) for entry in told[-MOST_EVENTS:])]


def _event(record: RunRecord, entry: TimelineEntry) -> str:
    reason = f": {first_line(entry.reason)}" if entry.reason else ""
    sign = "! " if entry.is_problem else ""
    return printable(f"{duration(record.story.elapsed(entry.time)):>8}  {sign}{entry.title}{reason}")


def _error(record: RunRecord) -> list[str]:
    """Why a job failed; only the last lines of a long traceback."""
    story = record.story
    if story.ended is None or story.ended.exit_code == 0 or not story.ended.reason:
        return []
    return [printable(line) for line in story.ended.reason.splitlines()[-ERROR_LINES:]]


def _places(record: RunRecord) -> list[str]:
    where = record.settings.get("checkpoint-to") or f"{record.run_dir}/checkpoints"
    report = record.run_dir / "report.html"
    rows = [
        ("folder", str(record.run_dir)),
        ("logs", f"{record.run_dir}/logs"),
        ("checkpoints", str(where)),
        ("report", str(report) if report.is_file() else f"write one with `shoal report {record.run_dir}`"),
    ]
    way_in = record.run_dir / JOIN
    if record.state == RUNNING:
        with contextlib.suppress(OSError):
            rows.append(("join it", read_plain(way_in, LONGEST_JOIN).decode("utf-8", "replace").strip()))
    return [f"{name:<11}  {printable(text)}" for name, text in rows]
