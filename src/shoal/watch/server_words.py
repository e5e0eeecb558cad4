"""What is said about parameter servers: a line for each event, and one line of progress. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal import events
from shoal.watch.server_board import Servers
from shoal.watch.wording import amount, first_line, span

SHOWN_STALENESS = 4  # columns of the histogram on the progress line


def notice(event: events.Event) -> str | None:
    """The line for an event; None if it needs none."""
    match event:
        case events.ServerLost():
            return f"server {event.server} is lost: {first_line(event.reason)}"
        case events.ServerLeft():
            return f"server {event.server} has left: {first_line(event.reason)}"
        case events.ParametersGone():
            return f"warning: {gone(event)}: {first_line(event.reason)}"
        case events.ServersChanged():
            return changed(event)
        case _:
            return None


def gone(event: events.ParametersGone) -> str:
    """'2 blocks of parameters (4.1 kB) are on no server any more'."""
    some = "1 block" if event.blocks == 1 else f"{event.blocks:,} blocks"
    return f"{some} of parameters ({amount(event.size)}) {'is' if event.blocks == 1 else 'are'} on no server any more"


def changed(event: events.ServersChanged) -> str:
    """'servers 0, 2, 3 serve, 412 MB moved in 1.2 s: ...'."""
    count = len(event.servers)
    who = f"server {event.servers[0]} serves" if count == 1 else f"{count} servers serve"
    moved = f", {amount(event.size)} moved in {span(event.seconds)}" if event.is_settled and event.size else ""
    moving = "" if event.is_settled else ", parameters are on their way"
    reason = f": {first_line(event.reason)}" if event.reason else ""
    return f"{who}{moved}{moving}{reason}"


def progress(servers: Servers) -> str:
    """One line about all servers together; empty before anything is known."""
    if not servers.is_known:
        return ""
    count = len(servers.present)
    parts = ["1 server" if count == 1 else f"{count} servers"]
    paces = [pace for server in servers.present if (pace := servers.pace(server)) is not None]
    if paces:
        requests = sum(pace.requests for pace in paces)
        received, sent = sum(pace.bytes_in for pace in paces), sum(pace.bytes_out for pace in paces)
        wait = sum(pace.wait * pace.requests for pace in paces) / requests if requests else 0.0
        parts += [
            f"{requests:,.0f} requests/s",
            f"{amount(round(received))}/s in",
            f"{amount(round(sent))}/s out",
            f"wait {span(wait)}",
            f"busy {100 * max(pace.busy for pace in paces):.0f}%",
        ]
    if not servers.is_settled:
        parts.append("parameters on their way")
    if servers.staleness and any(servers.staleness[1:]):
        parts.append(f"staleness {histogram(servers.staleness)}")
    if len(servers.clocks) > 1:
        counts = [clock for _, clock in servers.clocks]
        parts.append(f"clocks {min(counts):,} to {max(counts):,}")
    return ", ".join(parts)


def histogram(counts: Sequence[int]) -> str:
    """'0: 80%, 1: 15%, 2: 4%, more: 1%'."""
    total = sum(counts) or 1
    shown = [f"{stale}: {100 * count / total:.0f}%" for stale, count in enumerate(counts[:SHOWN_STALENESS]) if count]
    rest = sum(counts[SHOWN_STALENESS:])
    return ", ".join([*shown, f"more: {100 * rest / total:.0f}%"] if rest else shown)
