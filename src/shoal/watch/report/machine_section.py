"""The machines of a job: what workers ran on, where processes were put, what the engine said, links. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.watch.machine_words import LINK_HEADINGS, link_rows, links_left_out, links_title
from shoal.watch.record.run_record import RunRecord
from shoal.watch.report.markup import Markup, join, table, tag
from shoal.watch.wording import amount, duration

MOST_NUMBERS = 12  # workers that are named one by one in a row of machines
MOST_LINKS = 20  # the slowest ones are shown


def machines(record: RunRecord) -> Markup:
    return join(_equipment(record), _nodes(record), _links(record), _engine_said(record))


def _equipment(record: RunRecord) -> Markup:
    found = record.story.machines.by_kind()
    if not found:
        return tag("p", "The record does not say what the workers ran on.", class_="note")
    rows = []
    for told, workers in found:
        cells = (worker_numbers(workers), told.processor, f"{told.cores}", amount(told.memory), told.gpu or "none")
        rows.append(_row(told.host, cells))
    headings = ("host", "workers", "processor", "cores for each", "memory", "GPU")
    return table(headings, rows, aria_label="machines")


def _nodes(record: RunRecord) -> Markup:
    """Where an engine over several machines has put the processes; nothing for a job on one machine."""
    rows = []
    for name, node in record.story.machines.nodes.items():
        cells = (node.host, worker_numbers(node.workers) or "none", worker_numbers(node.servers) or "none")
        rows.append(_row(name, cells))
    return table(("node", "host", "workers", "servers"), rows, aria_label="nodes") if rows else join()


def _links(record: RunRecord) -> Markup:
    found = record.story.machines
    if found.links is None:
        return join()
    rows = [_row(first, rest) for first, *rest in link_rows(found.links, MOST_LINKS, found.place_of)]
    title = links_title(found.links)
    left = links_left_out(found.links, MOST_LINKS)
    shown = table(LINK_HEADINGS, rows, aria_label="links between hosts")
    return join(tag("h3", title[0].upper() + title[1:]), shown, tag("p", left, class_="note") if left else join())


def _engine_said(record: RunRecord) -> Markup:
    """Why processes waited for a place, and which nodes came and went."""
    story = record.story
    rows = [_row(duration(story.elapsed(time)), (event.text,)) for time, event in story.machines.said]
    if not rows:
        return join()
    before = story.machines.said_before
    left = tag("p", f"{before:,} earlier lines are not shown.", class_="note") if before else join()
    shown = table(("time", "line"), rows, aria_label="what the engine said")
    return join(tag("h3", "What the engine said"), shown, left)


def _row(first: str, cells: Sequence[str]) -> Markup:
    return tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in cells))


def worker_numbers(workers: Sequence[int]) -> str:
    shown = ", ".join(map(str, workers[:MOST_NUMBERS]))
    more = len(workers) - MOST_NUMBERS
    return f"{shown} and {more} more" if more > 0 else shown
