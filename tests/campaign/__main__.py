"""`make campaign`: runs the jobs one after the other, says what becomes of each, and ends with 1 if any was wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from campaign import host_jobs, judging, local_jobs
from campaign.plans import TROUBLES, JobPlan, campaign


def run_job(plan: JobPlan, folder: Path) -> tuple[int, list[str]]:
    """Signals that were sent, and what was wrong."""
    folder.mkdir(parents=True)
    outcome = (host_jobs if plan.trouble == "cuts" else local_jobs).run(plan, folder)
    (folder / "signals").write_text("\n".join(outcome.signals) + "\n")
    return len(outcome.signals), judging.judge(outcome, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make campaign", description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--signals", type=int, default=500, help="at least so many in all, in more jobs if need be")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TROUBLES, help="jobs with this trouble alone")
    parser.add_argument(
        "--keep", type=Path, help="folder for the jobs' files; default: a new one, kept where jobs are bad"
    )
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="shoal-campaign-"))
    began, sent, done, bad = time.monotonic(), 0, 0, 0
    for plan in campaign(seed=given.seed, signals=-(-given.signals // given.jobs) + 1, only=given.only):
        if done >= given.jobs and sent >= given.signals:
            break
        signals, faults = run_job(plan, folder / plan.name)
        sent, done, bad = sent + signals, done + 1, bad + bool(faults)
        took = time.monotonic() - began
        verdict = "BAD" if faults else "right"
        print(f"{plan.name}: {signals} signals, {verdict}; {done} jobs in {took:.0f} s", flush=True)
        for fault in faults:
            print("    " + fault.replace("\n", "\n    "), flush=True)
        if not faults and not given.keep:
            shutil.rmtree(folder / plan.name)
    print(f"{done} jobs, {sent} signals: {bad} bad" + (f"; their files are in {folder}" if bad else ""))
    if not bad and not given.keep:
        shutil.rmtree(folder)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
