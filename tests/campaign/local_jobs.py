"""A job of a campaign on this machine, under `shoal run`, with signals, joiners, a full disk, or kills at its ends."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from campaign.plans import STRATEGIES, JobPlan
from campaign.running import PATIENCE, SCRIPT, Joined, Outcome, Running
from shoal import events

WORKERS = 3
OTHER_TERMS = (("--batch", "5"), ("--samples", "150"), ("--width", "16"), ("--optimizer", "SGD"), ("--epochs", "6"))
COMMON = (
    *("-n", str(WORKERS), "--min-workers", "1", "--checkpoint-every", "10", "--heartbeat-limit", "3"),
    *("--max-failures", "50", "--progress", "plain", "--threads", "1"),
)


def run(plan: JobPlan, folder: Path) -> Outcome:
    draw = plan.draw()
    with contextlib.ExitStack() as stack:
        run_dir = folder / "run"
        if plan.trouble == "disk":
            run_dir = stack.enter_context(_small_disk(folder)) / "run"
        job = stack.enter_context(_started(plan, folder, run_dir, draw))
        outcome = Outcome(0, "", job.signals)
        with contextlib.suppress(psutil.NoSuchProcess):
            {"start": _start, "end": _end, "joiners": _joiners, "disk": _disk, "signals": _signals}[plan.trouble](
                job, plan, draw, outcome
            )
        outcome.code = job.end()
        outcome.output = (folder / "output").read_text(encoding="utf-8", errors="replace")
        if plan.trouble == "disk":
            subprocess.run(["cp", "-r", str(run_dir), str(folder / "run")], check=True)
    return outcome


@contextlib.contextmanager
def _started(plan: JobPlan, folder: Path, run_dir: Path, draw: random.Random) -> Iterator[Running]:
    (folder / "runtime").mkdir()
    spares = ("--spares", "1") if draw.random() < 0.3 else ()
    places = ("--run-dir", str(run_dir), "--checkpoint-to", str(folder / "checkpoints"))
    tail = ("--tail", "1.5" if plan.trouble == "end" else "0.2")
    command = ("run", *COMMON, *spares, *places, *STRATEGIES[plan.strategy], str(SCRIPT), *tail)
    variables = {"XDG_RUNTIME_DIR": str(folder / "runtime"), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *command],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Running(folder, process, run_dir=run_dir)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


# Signals at random


def strike(job: Running, draw: random.Random) -> None:
    """One signal, or several at once, to processes of one kind."""
    there = job.processes()
    kinds = {"worker": 70, "server": 18, "coordinator": 8, "spare": 2, "guardian": 2}
    able = [kind for kind in kinds if there.get(kind)]
    if not able:
        return
    kind = draw.choices(able, [kinds[each] for each in able])[0]
    victims = there[kind]
    chance = draw.random()
    if kind in ("worker", "server") and chance < 0.2:
        victim = draw.choice(victims)
        if job.send(victim, "STOP", kind):
            time.sleep(draw.uniform(0.3, 5.0))  # around the heartbeat limit
            with contextlib.suppress(psutil.NoSuchProcess):  # others may have killed it meanwhile
                victim.resume()
    elif kind == "worker" and chance < 0.35:
        job.send(draw.choice(victims), "TERM", kind)
    else:
        count = draw.choice([1, 1, 1, 2, len(victims)])
        for victim in draw.sample(victims, min(count, len(victims))):
            job.send(victim, "KILL", kind)


def _signals(job: Running, plan: JobPlan, draw: random.Random, outcome: Outcome) -> None:
    job.wait_until(lambda: job.of(events.StepsApplied))
    while len(job.signals) < plan.signals and not job.is_over:
        time.sleep(draw.uniform(0.2, 1.6))
        strike(job, draw)


def _start(job: Running, plan: JobPlan, draw: random.Random, outcome: Outcome) -> None:
    """From the first process on; whoever is there may be hit."""
    while len(job.signals) < plan.signals and not job.is_over:
        time.sleep(draw.uniform(0.05, 0.8))
        strike(job, draw)


def _end(job: Running, plan: JobPlan, draw: random.Random, outcome: Outcome) -> None:
    """Half of the signals while it trains; the rest kill whoever begins the script's end as the first worker."""
    job.wait_until(lambda: job.of(events.StepsApplied))
    while len(job.signals) < plan.signals // 2 and not job.is_over:
        time.sleep(draw.uniform(0.2, 1.2))
        strike(job, draw)
    tails, seen = job.folder / "tails", 0
    while len(job.signals) < plan.signals and not job.is_over:
        lines = tails.read_text().splitlines() if tails.exists() else []
        if len(lines) == seen:
            time.sleep(0.02)
            continue
        seen = len(lines)
        time.sleep(draw.uniform(0.0, 1.0))
        job.send(psutil.Process(int(lines[-1])), "KILL", "first worker at the end")


# Joiners


def _joiners(job: Running, plan: JobPlan, draw: random.Random, outcome: Outcome) -> None:
    """One that is as the job's workers are and three that differ, among signals."""
    job.wait_until(lambda: job.of(events.StepsApplied))
    joiners = [_join(job, ())] + [_join(job, terms) for terms in draw.sample(OTHER_TERMS, 3)]
    _signals(job, plan, draw, outcome)
    for arguments, process in filter(None, joiners):
        try:
            output = process.communicate(timeout=PATIENCE)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0]
            outcome.faults.append(f"a joiner with {arguments} hangs")
        outcome.joined.append(Joined(arguments, process.returncode, output))


def _join(job: Running, arguments: Sequence[str]) -> tuple[tuple[str, ...], subprocess.Popen[str]] | None:
    for worker in job.processes().get("worker", ()):
        with contextlib.suppress(psutil.Error, KeyError):
            variables = worker.environ()
            address, token = variables["SHOAL_COORDINATOR"], variables["SHOAL_TOKEN_FILE"]
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal", "join", address, "--token-file", token, str(SCRIPT), *arguments],
                cwd=job.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            return tuple(arguments), process
    return None


# A full disk


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _disk(job: Running, plan: JobPlan, draw: random.Random, outcome: Outcome) -> None:
    """Full for a while, in which workers die; half of the signals come while it is full."""
    job.wait_until(lambda: job.of(events.StepsApplied))
    filler = job.folder / "disk" / "filler"
    while len(job.signals) < plan.signals and not job.is_over:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(draw.uniform(0.0, 1.0))
        for _ in range(2):
            strike(job, draw)
            time.sleep(draw.uniform(0.2, 2.0))
        filler.unlink()
        time.sleep(draw.uniform(0.5, 2.0))
        strike(job, draw)
