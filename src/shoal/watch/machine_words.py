"""How links between hosts and what moves tensors read: one wording for displays, `shoal show` and the report. Pure."""

from __future__ import annotations

from collections.abc import Callable

from shoal import events
from shoal.values import HostLink
from shoal.watch.wording import amount

LINK_HEADINGS = ("from", "to", "latency", "bandwidth")
PlaceOf = Callable[[int, str], str]  # from a worker and its host's name to the name that people know


def carrier_words(event: events.CarrierChosen) -> str:
    """'tensors of GPUs go through host memory', 'gloo moves tensors'."""
    if event.is_asked:
        return f"{event.carrier} moves tensors"
    return "tensors of GPUs go by NCCL" if event.carrier == "nccl" else "tensors of GPUs go through host memory"


def links_title(event: events.LinksMeasured) -> str:
    return f"links between {event.hosts:,} hosts, measured when generation {event.generation} formed, slowest first"


def link_rows(event: events.LinksMeasured, most: int, place_of: PlaceOf) -> list[tuple[str, str, str, str]]:
    """A row for each of the slowest links: both ends, latency and bandwidth."""
    return [(*_ends(link, place_of), *_figures(link)) for link in event.links[:most]]


def links_left_out(event: events.LinksMeasured, most: int) -> str:
    """'(12 faster ones are not shown)'; empty where all are."""
    left = event.measured - min(most, len(event.links))
    return f"({left:,} faster one{' is' if left == 1 else 's are'} not shown)" if left > 0 else ""


def slowest_link(event: events.LinksMeasured) -> str:
    """'the slowest of 6 links between 3 hosts goes from b (worker 2) to a (worker 0): 1.2 MB/s, latency 0.21 ms'."""
    count = f"{event.measured:,} link{'s' * (event.measured != 1)} between {event.hosts:,} hosts"
    if not event.links:
        return f"{count} were measured"
    source, target = _ends(event.links[0], lambda _, host: host)
    latency, bandwidth = _figures(event.links[0])
    return f"the slowest of {count} goes from {source} to {target}: {bandwidth}, latency {latency}"


def _ends(link: HostLink, place_of: PlaceOf) -> tuple[str, str]:
    ends = ((link.source, link.source_host), (link.target, link.target_host))
    source, target = (f"{place_of(worker, host)} (worker {worker})" for worker, host in ends)
    return source, target


def _figures(link: HostLink) -> tuple[str, str]:
    milliseconds = 1000 * link.latency
    latency = f"{milliseconds:.2f} ms" if milliseconds < 9.995 else f"{milliseconds:.0f} ms"
    return latency, f"{amount(round(link.bandwidth))}/s"
