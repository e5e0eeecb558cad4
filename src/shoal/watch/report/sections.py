"""The parts of a report as HTML: headline, charts' frames, timeline, checkpoints. Pure.

Text of a job goes through `markup.tag`, which escapes it. Not here: last and best values (`value_table`), machines and
settings (`setting_section`), time shares (`worker_section`), numbers of charts (`charts`), the page around (`page`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from shoal.watch.board import as_number
from shoal.watch.incident_words import percent, without_progress
from shoal.watch.record.run_record import CRASHED, RUNNING, RunRecord, damage
from shoal.watch.record.series import METRICS
from shoal.watch.record.story import MOST_CHECKPOINTS
from shoal.watch.record.timeline import CATEGORIES, TimelineEntry
from shoal.watch.report.charts import COLOURS, Chart, Reported, dash_of
from shoal.watch.report.markup import Markup, join, table, tag
from shoal.watch.report.setting_section import plain
from shoal.watch.report.value_table import best_result, best_words
from shoal.watch.wording import amount, duration, number, rate, span

LONGEST_REASON = 4000  # characters shown of one; a traceback fits


def section(name: str, title: str, *children: str) -> Markup:
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def swatch(run: int) -> Markup:
    """A piece of the run's line."""
    line = tag("line", x1=0, x2=30, y1=5, y2=5, stroke_dasharray=dash_of(run))
    return tag("svg", line, class_=f"swatch c{run % COLOURS}", width=30, height=10, aria_hidden="true")


def badge(state: str) -> Markup:
    kind = state if state in ("finished", "running", "failed", "crashed") else "other"
    return tag("span", state, class_=f"state {kind}")


def command(record: RunRecord) -> str:
    started = record.story.started
    return "" if started is None else " ".join((started.script, *started.arguments))


def day(time: float) -> str:
    return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M}"


def figures(run: Reported) -> list[tuple[str, str, str]]:
    """The headline's numbers: a name, a value and a remark each."""
    record = run.record
    story = record.story
    board = story.board
    total = record.total_steps
    epochs = f"epoch {min(record.epoch + 1, board.loop.epochs)} of {board.loop.epochs}" if board.loop else ""
    of_total = f"of {total:,}" if total and record.step < total else ""
    held = f"held up training {span(story.blocked)}" if story.published else ""
    generation = f"generation {board.generation}" if board.generation else ""
    shown = [
        ("steps", f"{record.step:,}", ", ".join(filter(None, (of_total, epochs)))),
        ("time", duration(story.seconds), _goes(len(story.spans))),
        ("samples/s", rate(story.samples_per_second).removesuffix(" samples/s"), "mean, inside loops"),
        ("workers", f"{story.started.workers if story.started else 0}", generation),
    ]
    scores = record.scores or record.values
    first = sorted(scores.items(), key=lambda item: (item[0] == "loss") == bool(record.scores))[:2]
    where, curves = ("held out", story.scores) if record.scores else ("training", run.curves.values)
    shown = [
        *((name, number(as_number(value)), f"{where}{best_words(name, curves.get(name))}") for name, value in first),
        *shown,
    ]
    if story.published or story.lost:
        lost = f"{story.lost:,} lost" if story.lost else ""
        shown.append(("checkpoints", f"{story.published:,}", ", ".join(filter(None, (lost, held)))))
    if void := story.incidents.counts.void:
        shown.append(("void steps", f"{void:,}", "redone"))
    if taken_back := story.incidents.counts.taken_back:
        shown.append(("steps taken back", f"{taken_back:,}", "applied, lost and redone"))
    if len(story.incidents) and run.cost.goodput is not None:
        stood = f"{span(without_progress(story.incidents, run.cost))} without progress"
        shown.append(("goodput", percent(run.cost.goodput), stood))
    return shown


def _goes(count: int) -> str:
    return "" if count <= 1 else f"in {count} goes, pauses not counted"


def headline(run: Reported) -> Markup:
    boxes = [
        tag("div", tag("dt", name), tag("dd", tag("b", value), tag("small", more) if more else ""))
        for name, value, more in figures(run)
    ]
    return join(troubles(run.record), tag("dl", *boxes, class_="figures"))


def troubles(record: RunRecord) -> Markup:
    """What a reader must know before looking at any curve."""
    story = record.story
    told = []
    if record.state == CRASHED:
        told.append("The record has no end and no process holds the job: it was killed, or its machine went down.")
    if story.ended is not None and story.ended.reason and record.state != "finished":
        told.append(f"{record.state.capitalize()}: {_cut(story.ended.reason)}")
    if story.lost:
        last = next((entry for entry in reversed(story.checkpoints.values()) if entry.state == "lost"), None)
        count = "1 checkpoint was" if story.lost == 1 else f"{story.lost} checkpoints were"
        told.append(f"{count} lost" + (f", the last at step {last.step}: {_cut(last.reason)}" if last else ""))
    if differed := story.incidents.counts.differed:
        where = "once" if differed == 1 else f"{differed} times"
        told.append(f"Parameters differed between workers {where}: see what went wrong, below.")
    told += record.problems
    return join(*(tag("p", line, class_="trouble") for line in told))


def compared(runs: Sequence[Reported]) -> Markup:
    """One row per run, with a button that shows and hides its curves."""
    rows = []
    for place, run in enumerate(runs):
        record = run.record
        toggle = tag("button", swatch(place), run.label, type="button", aria_pressed="true", data_run=place)
        cells = (f"{record.step:,}", duration(record.story.seconds), record.result, best_result(run))
        speed = rate(record.story.samples_per_second)
        workers = str(record.story.started.workers if record.story.started else 0)
        rows.append(
            tag(
                "tr",
                tag("th", toggle, scope="row"),
                tag("td", badge(record.state)),
                *(tag("td", cell, class_="n") for cell in (*cells, speed, workers)),
                tag("td", tag("code", command(record))),
            )
        )
    headings = ("run", "state", "steps", "time", "last", "best", "speed", "workers", "script")
    return table(headings, rows, aria_label="runs", class_="runs")


def chart_frame(chart: Chart) -> Markup:
    """What the script fills: plot, read-out, table."""
    readout = tag("p", class_="readout", id=f"{chart.id}-readout", aria_live="polite")
    plot = tag(
        "div",
        class_="plot",
        tabindex=0,
        role="application",
        aria_roledescription="chart",
        aria_label=chart.title,
        aria_describedby=f"{chart.id}-readout",
    )
    unzoom = tag("button", "Reset zoom", type="button", class_="unzoom", hidden=True)
    save = tag("button", "CSV", type="button", class_="csv", hidden=True, title="save the numbers of these curves")
    buttons = tag("span", unzoom, save, class_="buttons")
    caption = tag("figcaption", tag("span", chart.title, class_="name"), tag("span", class_="key"), buttons)
    note = tag("p", chart.remark, class_="note") if chart.remark else ""
    numbers = tag("details", tag("summary", "Table"), tag("div", class_="numbers scroll"))
    return tag("figure", caption, plot, readout, note, numbers, class_="chart", id=chart.id)


def curve_remarks(runs: Sequence[Reported]) -> Markup:
    told = []
    for run in runs:
        if not run.curves.values:
            told.append(f"{run.label} has no logged values in {METRICS}.")
        if run.curves.left_out:
            told.append(f"{run.label} logged more names than are drawn here, such as {min(run.curves.left_out)}.")
        told += [f"{run.label}: {text}" for text in damage(METRICS, run.curves.skipped, run.curves.problem)]
    return join(*(tag("p", line, class_="note") for line in told))


def timeline(record: RunRecord, prefix: str) -> Markup:
    """Filters and a list; `prefix` keeps ids of several runs apart."""
    story = record.story
    counts = story.timeline.counts
    filters = [
        tag("label", tag("input", type="checkbox", checked=True, value=name), name, tag("small", f"{counts[name]:,}"))
        for name in CATEGORIES
        if counts[name]
    ]
    problems = tag("label", tag("input", type="checkbox", value="problems"), "problems only")
    rows = [_entry(entry, story.elapsed(entry.time)) for entry in story.timeline.entries]
    if not rows:
        return tag("p", "No events are recorded.", class_="note")
    left_out = story.timeline.left_out
    note = tag("p", f"{left_out:,} older ones are in events.jsonl only.", class_="note") if left_out else ""
    chooser = tag("fieldset", tag("legend", "Show", class_="hidden"), *filters, problems, class_="filters")
    shown = tag("ol", *rows, class_="events", tabindex=0, aria_label="events")
    return tag("div", chooser, note, shown, class_="timeline", id=f"{prefix}-timeline")


def _entry(entry: TimelineEntry, elapsed: float) -> Markup:
    step = "" if entry.step is None else f"step {entry.step:,}"
    sign = tag("span", "!", class_="sign", title="a problem") if entry.is_problem else ""
    first, newline, _ = entry.reason.partition("\n")
    reason: str = tag("span", _cut(first), class_="reason") if first else ""
    if newline:
        reason = tag("details", tag("summary", _cut(first)), tag("pre", _cut(entry.reason)), class_="reason")
    return tag(
        "li",
        tag("time", duration(elapsed), title=f"{datetime.fromtimestamp(entry.time):%Y-%m-%d %H:%M:%S}"),
        tag("span", step, class_="step"),
        tag("span", entry.category, class_="category"),
        tag("div", sign, entry.title, reason),
        data_category=entry.category,
        data_problem=entry.is_problem,
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} ..."


def checkpoints(record: RunRecord) -> Markup:
    story = record.story
    if not story.checkpoints:
        return tag("p", "No checkpoint was made.", class_="note")
    rows = []
    for made in reversed(story.checkpoints.values()):
        written = made.state in ("published", "removed")
        cells = (amount(made.size), span(made.seconds), span(made.blocked)) if written else ("", "", "")
        sign = tag("span", "!", class_="sign", title="a problem") if made.state == "lost" else ""
        rows.append(
            tag(
                "tr",
                tag("th", tag("code", made.name), scope="row"),
                tag("td", sign, made.state + (f", marked {made.mark}" if made.mark else "")),
                tag("td", f"{made.step:,}", class_="n"),
                *(tag("td", cell, class_="n") for cell in cells),
                tag("td", duration(story.elapsed(made.time)), class_="n"),
                tag("td", _cut(made.reason)),
            )
        )
    headings = ("checkpoint", "state", "step", "size", "written in", "held up", "at", "reason")
    total = story.published + story.lost
    note = tag("p", f"The newest of {total:,}.", class_="note") if total > MOST_CHECKPOINTS else ""
    return join(note, table(headings, rows, aria_label="checkpoints"))


def files(record: RunRecord) -> Markup:
    where = record.settings.get("checkpoint-to") or f"{record.run_dir}/checkpoints"
    rows = (("record", str(record.run_dir)), ("logs", f"{record.run_dir}/logs"), ("checkpoints", plain(where)))
    found = [tag("div", tag("dt", name), tag("dd", tag("code", path))) for name, path in rows]
    state = "as the job runs" if record.state == RUNNING else "of the whole job"
    return join(tag("dl", *found, class_="files"), tag("p", f"Figures {state}.", class_="note"))
