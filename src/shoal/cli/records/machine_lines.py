"""What `shoal show` prints about a job's machines: who ran where and why, what the engine said, the links. Pure."""

from __future__ import annotations

from shoal.cli.terminal_tables import columns
from shoal.errors import printable
from shoal.watch.machine_words import LINK_HEADINGS, link_rows, links_left_out, links_title
from shoal.watch.record.run_record import RunRecord
from shoal.watch.report.machine_section import worker_numbers
from shoal.watch.wording import duration, first_line

MOST_PLACEMENTS = 8  # the newest ones are shown
MOST_SAID = 8
MOST_LINKS = 6  # the slowest ones are shown


def nodes_line(record: RunRecord) -> str:
    """Which processes run where, by the engine's nodes, otherwise by hosts; empty: the job had one machine."""
    nodes = record.story.machines.nodes
    if nodes:
        placed = (
            (f"{name} ({node.host})", (("worker", node.workers), ("server", node.servers)))
            for name, node in nodes.items()
        )
        return "; ".join(f"{where}: {_processes(kinds)}" for where, kinds in placed)
    hosts: dict[str, list[int]] = {}
    for worker, host in sorted(record.story.hosts.items()):
        hosts.setdefault(host, []).append(worker)
    if len(hosts) < 2:
        return ""
    return "; ".join(f"{host}: {_processes((('worker', workers),))}" for host, workers in hosts.items())


def _processes(kinds: tuple[tuple[str, list[int]], ...]) -> str:
    said = [f"{kind}{'s' * (len(each) > 1)} {worker_numbers(each)}" for kind, each in kinds if each]
    return " and ".join(said) or "none"


def placements(record: RunRecord) -> list[str]:
    """Where the newest processes were put, and why."""
    machines = record.story.machines
    newest = list(machines.placements)[-MOST_PLACEMENTS:]
    earlier = machines.placed - len(newest)
    told = [f"({earlier:,} earlier ones are in the report)"] if earlier else []
    for time, event in newest:
        at = f"{duration(record.story.elapsed(time)):>8}  "
        told.append(printable(f"{at}{event.process} on {event.node} ({event.host}): {first_line(event.reason)}"))
    return told


def engine_said(record: RunRecord) -> list[str]:
    """The newest lines of the engine, such as why a process waits for a place."""
    machines = record.story.machines
    newest = list(machines.said)[-MOST_SAID:]
    earlier = machines.said_before + len(machines.said) - len(newest)
    told = [f"({earlier:,} earlier ones are in the report)"] if earlier else []
    for time, event in newest:
        sign = "! " if event.is_problem else ""
        told.append(printable(f"{duration(record.story.elapsed(time)):>8}  {sign}{first_line(event.text)}"))
    return told


def links(record: RunRecord) -> tuple[str, list[str]]:
    """A title, and a table of the slowest links between hosts; both empty where none was measured."""
    machines = record.story.machines
    if machines.links is None:
        return "", []
    rows = [LINK_HEADINGS, *link_rows(machines.links, MOST_LINKS, machines.place_of)]
    left = links_left_out(machines.links, MOST_LINKS)
    return links_title(machines.links), [*columns(rows, right=(2, 3)), *([left] if left else [])]
