"""Where each worker's time went and what it sent, as bars and a table. Pure.

Kinds of time are told apart by pattern and by order, not by colour alone; the table has the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.values import TimeShares
from shoal.watch.board import WorkerState
from shoal.watch.record.run_record import RunRecord
from shoal.watch.report.markup import Markup, join, table, tag
from shoal.watch.wording import amount, duration

KINDS = ("compute", "communication", "waiting", "checkpoint", "input", "other")  # in the order of the bars
assert set(KINDS) == set(TimeShares.__struct_fields__)
MEANING = {
    "compute": "the script's own work",
    "communication": "bytes were moving and the script had to wait for them",
    "waiting": "for a peer that was not there yet",
    "checkpoint": "held up by the copy of the state",
    "input": "for the next batch",
    "other": "bookkeeping: snapshots, reports, regrouping",
}
MOST_BARS = 64  # workers drawn; the table has them all
LABELLED = 9.0  # per cent from which a part has its number in it


def breakdown(record: RunRecord) -> Markup:
    states = [state for _, state in sorted(record.story.workers.items())]
    if not states:
        return tag("p", "No worker has reported any time.", class_="note")
    key = [
        tag("span", _sample(kind), kind, tag("span", f": {MEANING[kind]}", class_="hidden"), title=MEANING[kind])
        for kind in KINDS
    ]
    bars = [_bar(f"worker {state.worker}", state.shares) for state in states[:MOST_BARS]]
    if len(states) > 1:
        bars.insert(0, _bar("all", _sum(states)))
    more = len(states) - MOST_BARS
    note = tag("p", f"and {more} more workers, in the table", class_="note") if more > 0 else ""
    drawn = tag("div", *bars, class_="bars")
    headings = ("worker", "host", "samples", "time", *KINDS, *sent_headings(states))
    numbers = table(headings, _rows(record, states), aria_label="workers")
    return join(tag("p", *key, class_="kinds"), drawn, note, numbers)


def sent_headings(states: Sequence[WorkerState]) -> tuple[str, ...]:
    """What servers read from workers' memory has a column of its own where there is any."""
    return ("sent", "shared") if any(state.bytes_shared for state in states) else ("sent",)


def sent_cells(state: WorkerState) -> tuple[str, str]:
    """One cell for each of `sent_headings`."""
    return amount(state.bytes_sent), amount(state.bytes_shared)


def patterns() -> Markup:
    """Definitions that every bar of the page refers to."""
    lines = {
        "communication": "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
        "waiting": "M1,3 h2 M4,0 h2",
        "checkpoint": "M0,0 l6,6 M0,6 l6,-6",
        "input": "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2",
    }
    made = [
        tag("pattern", tag("path", d=path), id=f"over-{kind}", width=6, height=6, patternUnits="userSpaceOnUse")
        for kind, path in lines.items()
    ]
    return tag("svg", tag("defs", *made), class_="patterns", width=0, height=0, aria_hidden="true")


def _sample(kind: str) -> Markup:
    parts = [tag("rect", width="100%", height="100%", class_=f"kind {kind}"), _over(kind, "0", "100%")]
    return tag("svg", *parts, width=14, height=12, aria_hidden="true")


def _over(kind: str, x: str, width: str) -> Markup:
    return tag("rect", x=x, width=width, height="100%", fill=f"url(#over-{kind})")


def _bar(label: str, shares: TimeShares) -> Markup:
    total = shares.total or 1.0
    parts = []
    at = 0.0
    for kind in KINDS:
        percent = max(0.0, 100 * getattr(shares, kind) / total)
        x, width = f"{at:.3f}%", f"{percent:.3f}%"
        parts.append(tag("rect", x=x, width=width, height="100%", class_=f"kind {kind}"))
        if kind in ("communication", "waiting", "checkpoint", "input"):
            parts.append(_over(kind, x, width))
        if percent >= LABELLED:
            parts.append(tag("text", f"{percent:.0f}%", x=f"{at + percent / 2:.3f}%", y="50%"))
        at += percent
    told = ", ".join(f"{kind} {100 * getattr(shares, kind) / total:.1f}%" for kind in KINDS)
    drawn = tag("svg", *parts, height=22, width="100%", role="img", aria_label=f"{label}: {told}")
    return join(tag("span", label), drawn)


def _sum(states: list[WorkerState]) -> TimeShares:
    total = TimeShares()
    for state in states:
        total = total.plus(state.shares)
    return total


def _rows(record: RunRecord, states: list[WorkerState]) -> list[Markup]:
    rows, kinds = [], len(sent_headings(states))
    for state in states:
        total = state.shares.total
        parts = msgspec.structs.asdict(state.shares)
        percents = [f"{100 * parts[kind] / total:.1f}%" if total > 0 else "" for kind in KINDS]
        cells = (f"{state.samples:,}", duration(state.seconds), *percents, *sent_cells(state)[:kinds])
        host = tag("td", record.story.hosts.get(state.worker, ""))
        name = tag("th", str(state.worker), scope="row")
        rows.append(tag("tr", name, host, *(tag("td", cell, class_="n") for cell in cells)))
    return rows
