"""What was wrong with a job of a campaign: its counts, exit code and leftovers, and the figures of its record."""

from __future__ import annotations

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

from campaign.running import Joined, Outcome, events_of
from campaign.script import EPOCHS, SAMPLES
from shoal import events
from shoal.watch.incident_words import cost_of
from shoal.watch.record.run_record import read_record
from support.launcher import leftovers
from support.truth import Told, diaries

# Exit codes of `shoal join` whose worker was killed, or told to go before it could hear that.
HIT = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
CLOSE = 1e-6  # by which a count may be off: rounding
UNKNOWN = 36  # samples: three steps of three workers, which a process may take with it
NOTICED = 4.0  # seconds; a shorter standstill may be a slow step of a busy machine
NEAR = 1.5  # seconds that two measures of one time may be apart on a busy machine


def judge(outcome: Outcome, folder: Path) -> list[str]:
    """Every fault, in words; none: the job was as it should be."""
    faults = list(outcome.faults)
    if outcome.code != 0:
        faults.append(f"exit code {outcome.code}: {outcome.output[-1500:]}")
    faults += _counts(folder)
    faults += [f"left over: {what}" for what in leftovers(folder)]
    faults += _record(folder)
    faults += _joiners(outcome, folder)
    return faults


def _counts(folder: Path) -> list[str]:
    path = folder / "result.json"
    if not path.exists():
        return ["the script's last lines did not run: there is no result"]
    result: dict[str, Any] = json.loads(path.read_text())
    return [] if result["off"] < CLOSE else [f"samples were not used {EPOCHS} times each: off by {result['off']}"]


def _joiners(outcome: Outcome, folder: Path) -> list[str]:
    faults = []
    for joined in outcome.joined:
        if joined.arguments and joined.code == 0 and not _came_too_late(joined, folder):
            faults.append(f"a joiner with {joined.arguments} ended with 0: {joined.output[-800:]}")
        if joined.arguments and "Traceback" in joined.output:
            faults.append(f"a joiner with {joined.arguments} got a traceback: {joined.output[-800:]}")
        if not joined.arguments and joined.code not in (0, *HIT):  # the campaign's own signals hit joiners too
            faults.append(f"a joiner as the workers are ended with {joined.code}: {joined.output[-800:]}")
    return faults


def _came_too_late(joined: Joined, folder: Path) -> bool:
    """Whether the job was over before the joiner could state its terms, so that nobody could turn it away."""
    number = re.search(r"this is worker (\d+)", joined.output)
    formed = [event for event in events_of(folder / "run") if isinstance(event, events.GenerationFormed)]
    members = {worker for event in formed for worker in event.workers}
    return "the job has ended" in joined.output and (number is None or int(number[1]) not in members)


def _record(folder: Path) -> list[str]:
    """The figures of the record beside what the workers wrote down themselves."""
    record = read_record(folder / "run")
    told = Told(record, cost_of(record), [], events_of(folder / "run"))
    ended = told.of(events.JobEnded)
    faults = [] if [event.exit_code for event in ended] == [0] else [f"the record's end is {ended}"]
    if told.cost.samples != EPOCHS * SAMPLES:
        faults.append(f"the record counts {told.cost.samples} samples, not {EPOCHS * SAMPLES}")
    applied = [row for row in diaries(folder) if row["counts"]]
    resumed = told.of(events.ProgressResumed)
    # A process that is killed has not written down its last step, nor told of the last quarter of a second.
    redone = sum(row["samples"] for row in applied) - EPOCHS * SAMPLES
    taken_back = sum(event.samples_taken_back for event in resumed)
    unknown = UNKNOWN * (1 + len(_losses(told)))
    if abs(taken_back - redone) > unknown:
        faults.append(
            f"{taken_back} samples are said to be redone; by the diaries {redone} were, give or take {unknown}"
        )
    times = [row["time"] for row in applied]
    longest = max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
    said = max((event.seconds for event in resumed), default=0.0)
    if longest > NOTICED and said < longest - NEAR:
        faults.append(f"training stood still for {longest:.1f} s; the record's longest is {said:.1f} s")
    if applied and (whole := sum(event.seconds for event in resumed)) > times[-1] - times[0] + NEAR:
        faults.append(f"{whole:.1f} s are said to be without progress, in a job that took {times[-1] - times[0]:.1f} s")
    return faults


def _losses(told: Told) -> list[object]:
    return [*told.of(events.WorkerDied), *told.of(events.WorkerExpelled), *told.of(events.CoordinatorReturned)]
