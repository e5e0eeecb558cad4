"""What incidents cost a job, in words: a line for the job's end, and the cells of a table. Pure."""

from __future__ import annotations

from pathlib import Path

from shoal.watch.record.goodput import Cost, read_cost
from shoal.watch.record.incident import Incident
from shoal.watch.record.incidents import Incidents
from shoal.watch.record.run_record import RunRecord, read_record
from shoal.watch.wording import amount, duration, rate, some_workers, span, steps_redone

NOTHING = "Nothing went wrong: no worker was lost or expelled, none differed from the others, and nothing was redone."


def closing_line(run_dir: Path) -> str:
    """What went wrong in a finished job and what that cost; empty if nothing went wrong."""
    record = read_record(run_dir)
    incidents = record.story.incidents
    return in_a_line(incidents, cost_of(record)) if len(incidents) else ""


def cost_of(record: RunRecord) -> Cost:
    """What the incidents cost. Reads the metrics only if there are incidents."""
    story = record.story
    return read_cost(record.run_dir, story.course) if len(story.incidents) else Cost()


def in_a_line(incidents: Incidents, cost: Cost) -> str:
    """'2 workers lost and replaced, 1.3 s without progress, 3 steps (96 samples) redone, goodput 97%'."""
    parts = [*_who(incidents), f"{span(without_progress(incidents, cost))} without progress"]
    redone_in = [incidents.earlier_redone, *(cost.redone_after(incident) for incident in incidents)]
    if redone := steps_redone(sum(steps for steps, _ in redone_in), sum(samples for _, samples in redone_in)):
        parts.append(f"{redone} redone")
    if cost.goodput is not None:
        parts.append(f"goodput {percent(cost.goodput)}")
    return ", ".join(parts)


def _who(incidents: Incidents) -> list[str]:
    counts = incidents.counts
    lost, came = len(counts.lost), len(counts.came)
    parts = []
    if lost:
        replaced = " and replaced" if came >= lost else f", {came} replaced" if came else ""
        expelled = f" ({len(counts.expelled)} expelled)" if counts.expelled else ""
        parts.append(f"{some_workers(lost)} lost{expelled}{replaced}")
    if came > lost:
        parts.append(f"{some_workers(came - lost)} {'more ' if lost else ''}came in")
    if counts.servers:
        parts.append(f"{len(counts.servers):,} server{'s' * (len(counts.servers) > 1)} lost")
    if counts.coordinators:
        parts.append(f"the coordinator restarted {_times(counts.coordinators)}")
    if counts.differed:
        parts.append(f"parameters differed {_times(counts.differed)}")
    return parts


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def without_progress(incidents: Incidents, cost: Cost) -> float:
    """Seconds without progress, over all incidents."""
    earlier = max(0.0, incidents.earlier_seconds - incidents.earlier_standstills * cost.step_seconds)
    return earlier + sum(cost.lost_to(incident) for incident in incidents)


def percent(part: float) -> str:
    """97%, and 99.6% rather than 100%."""
    text = f"{100 * part:.1f}" if 0.99 <= part < 1 else f"{100 * part:.0f}"
    return f"{text.removesuffix('.0')}%"


def definition(cost: Cost, most: int) -> str:
    """What goodput means here, with the figures behind it."""
    what = (
        "Goodput: the samples of applied steps, each step once, over those that the undisturbed rate gives in the same "
        "time. That is the time inside loops by the clock, with all incidents, without evaluations and pauses before a "
        "resume."
    )
    if cost.rate is None:
        return f"{what} It cannot be told here: the metrics have no undisturbed step with all {some_workers(most)}."
    where = f"the median over stretches in which nothing was wrong, with {some_workers(most)}"
    return f"{what} Here: {cost.samples:,} samples in {duration(cost.seconds)}; undisturbed {rate(cost.rate)}, {where}."


def cost_cells(incident: Incident, cost: Cost) -> tuple[str, str, str]:
    """Time without progress, what was redone, what was copied."""
    lost = cost.lost_to(incident)
    if incident.is_stop and incident.resumed is None:
        time = "not over" if incident.is_open else "to the end"
        time = f"{span(lost)}, {time}" if lost > 0 else time
    else:
        time = span(lost) if lost > 0 else "none"
    copied = f"{amount(incident.copied)} in {span(incident.copy_seconds)}" if incident.copied else ""
    redone = steps_redone(*cost.redone_after(incident))
    if incident.taken_back and not incident.is_new_go:
        redone += f", {incident.taken_back:,} of which had been applied"
    return time, redone, copied
