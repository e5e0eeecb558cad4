"""The report's section about parameter servers: what each did, losses, staleness and clocks. Pure."""

from __future__ import annotations

from shoal.values import ServerLoad
from shoal.watch.record.run_record import RunRecord
from shoal.watch.report.markup import Markup, join, table, tag
from shoal.watch.server_board import Loss, Servers
from shoal.watch.wording import amount, duration, span


def servers(record: RunRecord) -> Markup:
    """The section for the job's last go, since each go numbers servers anew."""
    known = record.story.board.servers
    if not known.is_known:
        return tag("p", "The job had no parameter servers.", class_="note")
    return join(_headline(known), _loads(known), _losses(record, known.losses), _staleness(known), _clocks(known))


def _headline(known: Servers) -> Markup:
    moved = f", {amount(known.moved)} of parameters moved between servers" if known.moved else ""
    lost = f"; {known.lost:,} lost" if known.lost else ""
    line = f"{len(known.present)} servers at the end, version {known.version} of the map{moved}{lost}."
    return tag("p", line)


def _loads(known: Servers) -> Markup:
    rows = [_load(known, load) for load in known.loads.values()]
    if not rows:
        return tag("p", "No figures of them are recorded.", class_="note")
    headings = (
        "server",
        "host",
        "for",
        "received",
        "sent",
        "requests/s",
        "mean wait",
        "busy",
        "updates",
        "held",
        "limit",
    )
    return table(headings, rows, aria_label="parameter servers")


def _load(known: Servers, load: ServerLoad) -> Markup:
    seconds = max(load.seconds, 1e-9)
    cells = (
        duration(load.seconds),
        amount(load.bytes_in),
        amount(load.bytes_out),
        f"{load.requests / seconds:,.1f}",
        span(load.queue_seconds / load.requests) if load.requests else "",
        f"{100 * load.busy_seconds / seconds:.0f}%",
        f"{load.updates:,}",
        amount(load.held_bytes),
        amount(load.limit_bytes) if load.limit_bytes else "none",
    )
    gone = "" if load.server in known.present else " (gone)"
    name = tag("th", f"{load.server}{gone}", scope="row")
    host = tag("td", known.hosts.get(load.server, ""))
    return tag("tr", name, host, *(tag("td", cell, class_="n") for cell in cells))


def _losses(record: RunRecord, losses: tuple[Loss, ...]) -> Markup:
    if not losses:
        return join()
    rows = []
    for loss in losses:
        again = "not again" if loss.served_again is None else span(loss.served_again)
        gone = f"{loss.blocks:,} blocks, {amount(loss.size)}" if loss.blocks else "nothing"
        at = duration(record.story.elapsed(loss.time))
        cells = [tag("td", cell, class_="n") for cell in (at, again, gone)]
        rows.append(tag("tr", tag("th", str(loss.server), scope="row"), *cells, tag("td", loss.reason)))
    headings = ("server lost", "at", "served again after", "parameters lost", "reason")
    return join(tag("h3", "Losses"), table(headings, rows, aria_label="servers lost"))


def _staleness(known: Servers) -> Markup:
    """A bar for each number of updates that came between a worker's read and its push."""
    total = sum(known.staleness)
    if not total or not any(known.staleness[1:]):
        return join()
    most = max(known.staleness)
    bars = []
    for stale, count in enumerate(known.staleness):
        label = f"{stale}: {count:,} updates, {100 * count / total:.1f}%"
        drawn = tag("rect", width=f"{100 * count / most:.3f}%", height="100%", class_="kind compute")
        bars += [
            tag("span", label),
            tag("svg", drawn, height=14, width="100%", role="img", aria_label=f"staleness {label}"),
        ]
    title = tag("h3", "Staleness")
    note = tag("p", "Updates by how many others came between the worker's read and its push.", class_="note")
    return join(title, tag("div", *bars, class_="bars"), note)


def _clocks(known: Servers) -> Markup:
    if not known.clocks:
        return join()
    most = max(clock for _, clock in known.clocks)
    rows = [
        tag(
            "tr",
            tag("th", str(worker), scope="row"),
            tag("td", f"{clock:,}", class_="n"),
            tag("td", f"{most - clock:,}", class_="n"),
        )
        for worker, clock in known.clocks
    ]
    headings = ("worker", "clock (its updates)", "behind the first")
    return join(tag("h3", "Clocks"), table(headings, rows, aria_label="clocks of workers"))
