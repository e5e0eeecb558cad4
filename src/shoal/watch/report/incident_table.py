"""What went wrong, and what it cost: a strip over the job's time and a table of incidents, as HTML. Pure.

Text of a job goes through `markup.tag`, which escapes it. Not here: what an incident is (`incidents`) and how goodput
is measured (`goodput`).
"""

from __future__ import annotations

from datetime import datetime

from shoal.watch.incident_words import NOTHING, cost_cells, definition, in_a_line
from shoal.watch.record.goodput import Cost
from shoal.watch.record.incident import Incident
from shoal.watch.record.run_record import RunRecord
from shoal.watch.record.story import Story
from shoal.watch.record.timeline import LANES, TimelineEntry
from shoal.watch.report.markup import Markup, join, table, tag
from shoal.watch.wording import duration

HEADINGS = ("at", "what happened", "what was decided, and why", "without progress", "redone", "state copied")
STOPPED, WAITING = "no progress", "too few workers"  # lanes of stretches


def incidents(record: RunRecord, cost: Cost) -> Markup:
    story = record.story
    if not len(story.incidents):
        return tag("p", NOTHING if story.started is not None else "No job has started yet.", class_="note")
    rows = [_row(incident, story, cost) for incident in story.incidents]
    earlier = f"{story.incidents.earlier:,} earlier ones are not listed; all are counted."
    return join(
        tag("p", f"{in_a_line(story.incidents, cost)}.", class_="sum"),
        _strip(story),
        tag("p", earlier, class_="note") if story.incidents.earlier else "",
        table(HEADINGS, rows, aria_label="incidents", class_="incidents"),
        tag("p", definition(cost, story.most), class_="note"),
    )


def _row(incident: Incident, story: Story, cost: Cost) -> Markup:
    sign = tag("span", "!", class_="sign", title="a problem") if incident.is_fault else ""
    first, *more = incident.story
    at = tag("time", duration(story.elapsed(incident.time)), title=_clock(incident.time))
    step = tag("small", f"step {incident.step:,}") if incident.step is not None else ""
    return tag(
        "tr",
        tag("th", at, " ", step, scope="row"),
        tag("td", tag("div", sign, " ", first), *(tag("div", line) for line in more)),
        tag("td", *(tag("div", line) for line in incident.decided), data_label=HEADINGS[2]),
        *(
            tag("td", cell, class_="n", data_label=heading)  # narrow screens have no headings
            for heading, cell in zip(HEADINGS[3:], cost_cells(incident, cost), strict=True)
        ),
    )


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"


def _strip(story: Story) -> Markup:
    """A lane for each kind of happening, over the time that the job ran."""
    lanes: dict[str, list[Markup]] = {lane: [] for lane in LANES}
    for entry in story.timeline.entries:
        if entry.lane:
            lanes[entry.lane].append(_instant(entry, story))
    for incident in story.incidents:
        for since, until in incident.spans:
            lanes.setdefault(STOPPED, []).append(_stretch(since, until, story))
        if incident.waited_from is not None:
            end = story.spans[-1].end if incident.resumed is None else incident.resumed
            lanes.setdefault(WAITING, []).append(_stretch(incident.waited_from, end, story))
    rows = []
    for lane, marks in lanes.items():
        if marks:
            label = f"{lane}: {len(marks)}"
            drawn = tag("svg", *marks, height=16, width="100%", role="img", aria_label=label, class_="lane")
            rows.append(join(tag("span", lane, " ", tag("small", str(len(marks)))), drawn))
    axis = tag("span", tag("small", "0:00"), tag("small", duration(story.seconds)), class_="ends")
    return tag("div", *rows, tag("span"), axis, class_="strip")


def _instant(entry: TimelineEntry, story: Story) -> Markup:
    at = _across(entry.time, story)
    kind = "problem" if entry.is_problem else "plain"
    told = tag("title", f"{duration(story.elapsed(entry.time))}: {entry.title}")
    return tag("line", told, x1=at, x2=at, y1=1, y2=15, class_=kind)


def _stretch(start: float, end: float, story: Story) -> Markup:
    left, right = _across(start, story), _across(end, story)
    lasted = f"{duration(story.elapsed(start))} to {duration(story.elapsed(end))}"
    width = f"{max(0.0, float(right[:-1]) - float(left[:-1])):.3f}%"
    bar = tag("rect", tag("title", lasted), x=left, width=width, y=3, height=10)
    return join(bar, tag("line", x1=left, x2=left, y1=3, y2=13, class_="edge"))


def _across(time: float, story: Story) -> str:
    return f"{100 * min(1.0, story.elapsed(time) / max(story.seconds, 1e-9)):.3f}%"
