"""`shoal bench recovery`: kills workers of a real job, again and again, and measures what that costs.

Four local workers train a language model. First one worker after the other is killed, each when all are training again;
then jobs with a kill every 15 s, with and without a spare process, take turns with a job without kills. `figures`
has the bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shoal.bench import texts, verdict
from shoal.bench.harness import worker_of
from shoal.bench.jobs import job_in_background, output_of
from shoal.bench.recovery import figures
from shoal.bench.recovery.figures import Applied, Diary
from shoal.bench.verdict import Bound
from shoal.cli.options import Parser
from shoal.errors import ScriptFailed, UsageError

T = TypeVar("T")
WORKER = worker_of(__file__)
WORKERS = 4
PATIENCE = 120.0  # seconds after which a job that does not get on has failed
SETTLED_STEPS = 5  # applied by all workers before the next kill
PARTS = ("kills", "goodput")
HOW = {"no faults": 0, "spare": 1, "no spare": 0}  # spares by kind of job


@dataclass
class KilledJob:
    """A job that runs, and its workers' diaries."""

    folder: Path
    process: subprocess.Popen[str]
    victims: set[int] = field(default_factory=set)
    read: dict[Path, tuple[Diary, int]] = field(default_factory=dict)  # and how many bytes of each file are read

    def diaries(self) -> dict[int, Diary]:
        """By worker. Reads only what is new, so as not to disturb training."""
        for path in (self.folder / "diaries").glob("*.jsonl"):
            diary, offset = self.read.get(path, (Diary(), 0))
            with path.open("rb") as file:
                file.seek(offset)
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.splitlines():
                _add(diary, json.loads(line))
            self.read[path] = (diary, offset + len(whole) + 1 if whole else offset)
        return {int(path.stem): diary for path, (diary, _) in sorted(self.read.items())}

    def living(self) -> dict[int, Diary]:
        """Of workers that train."""
        return {
            worker: diary
            for worker, diary in self.diaries().items()
            if worker not in self.victims and diary.applied and _is_alive(diary.pid)
        }

    def await_all(self) -> dict[int, Diary]:
        """Until all workers have applied some steps in the newest generation."""

        def is_settled() -> dict[int, Diary] | None:
            living = self.living()
            newest = max((diary.applied[-1].generation for diary in living.values()), default=0)
            settled = [
                diary
                for diary in living.values()
                if sum(one.generation == newest for one in diary.applied[-SETTLED_STEPS:]) == SETTLED_STEPS
            ]
            return living if len(settled) == WORKERS else None

        return self.wait_for(is_settled, "all workers to train")

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        limit = time.monotonic() + PATIENCE
        while (found := look()) is None:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise ScriptFailed(f"the benchmark's job did not get to {what}: {output_of(self.folder)}")
            time.sleep(0.02)
        return found

    def kill(self, worker: int, pid: int) -> float:
        self.victims.add(worker)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return killed

    def end(self) -> dict[int, Diary]:
        (self.folder / "until").touch()
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise ScriptFailed(f"the benchmark's job ended with exit code {code}: {output_of(self.folder)}")
        if left := _processes_of(self.folder):
            raise ScriptFailed(f"processes {left} of the benchmark's job are left over")
        return self.diaries()


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    results: dict[str, Any] = {"workers": WORKERS, "cores": os.cpu_count()}
    bounds: list[Bound] = []
    before = _held()
    for part, measure in {"kills": _measure_kills, "goodput": _measure_goodput}.items():
        if part in options.only:
            found, held = measure(options)
            results[part] = found
            bounds += held
    for what, count in _held().items():
        bounds.append(Bound(f"{what} left over", max(0, count - before[what]), "at most", 0))
    print(verdict.table(bounds))
    verdict.write(options.json, {**results, "bounds": verdict.as_json(bounds)})
    return verdict.exit_code(bounds)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench recovery")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part; may be given again")
    parser.add_argument("--kills", type=int, default=20, help="workers to kill (20)")
    parser.add_argument("--turns", type=int, default=2, help="jobs of each kind for the goodput (2)")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of each such job that count (60)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills (15)")
    parser.add_argument("--seed", type=int, default=0, help="decides who is killed when (0)")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    options.only = options.only or list(PARTS)
    if min(options.kills, options.turns) < 1 or not 0 < options.every <= options.window:
        raise UsageError(texts.BAD_RECOVERY)
    return options


@contextlib.contextmanager
def _job(*settings: str) -> Iterator[KilledJob]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "diaries").mkdir()
        options = ("-n", str(WORKERS), "--progress", "plain", "--checkpoint-every", "never", *settings)
        arguments = ("--diaries", str(folder / "diaries"), "--until", str(folder / "until"))
        with job_in_background(folder, options, WORKER, *arguments) as process:
            yield KilledJob(folder, process)


def _measure_kills(options: argparse.Namespace) -> tuple[dict[str, Any], list[Bound]]:
    draw = random.Random(options.seed)
    recoveries: list[float] = []
    with _job() as job:
        print(f"{options.kills} kills, one after the other:", flush=True)
        for number in range(options.kills):
            living = job.await_all()
            time.sleep(draw.uniform(0.0, 0.5))
            victim = draw.choice(sorted(living))
            generation = job.diaries()[victim].applied[-1].generation
            killed = job.kill(victim, living[victim].pid)

            def recovered(victim: int = victim, killed: float = killed, old: int = generation) -> float | None:
                return figures.recovery(job.diaries(), victim=victim, killed=killed, generation=old)

            recoveries.append(job.wait_for(recovered, "a step after a kill"))
            print(f"  kill {number + 1}: worker {victim}, next step after {recoveries[-1]:.3f} s", flush=True)
        job.await_all()
        diaries = job.end()
    joined = [diary for worker, diary in diaries.items() if worker >= WORKERS]
    replacements = [taken for diary in joined if (taken := figures.replacement(diary)) is not None]
    step = statistics.median(figures.step_seconds(diary) for diary in diaries.values() if len(diary.applied) > 1)
    found = {"step": step, "recoveries": recoveries, "replacements": replacements}
    return found, figures.bounds_of_kills(recoveries, replacements, step)


def _measure_goodput(options: argparse.Namespace) -> tuple[dict[str, Any], list[Bound]]:
    rates: dict[str, list[float]] = {how: [] for how in HOW}
    costs: list[dict[str, float]] = []
    for turn in range(options.turns):
        for how, spares in HOW.items():
            rate, diaries = _rate(how, spares, random.Random(f"{options.seed} {turn}"), options)
            rates[how].append(rate)
            print(f"  turn {turn + 1}, {how}: {rate:.1f} samples/s", flush=True)
            if how == "no faults":
                costs += [
                    {"share": figures.cost_share(diary), **{k: v / diary.steps for k, v in diary.costs.items()}}
                    for diary in diaries.values()
                    if diary.costs
                ]
    goodput = {
        how: statistics.median(rate / whole for rate, whole in zip(rates[how], rates["no faults"], strict=True))
        for how in figures.GOODPUT
    }
    share = statistics.median(cost["share"] for cost in costs)
    return {"rates": rates, "goodput": goodput, "costs": costs}, figures.bounds_of_goodput(goodput, share)


def _rate(how: str, spares: int, draw: random.Random, options: argparse.Namespace) -> tuple[float, dict[int, Diary]]:
    """Samples per second that count, in the window from the moment when all workers train."""
    with _job("--spares", str(spares)) as job:
        job.await_all()
        start = time.monotonic()
        kills = [] if how == "no faults" else _moments(options.window, options.every)
        for moment in kills:
            time.sleep(max(0.0, start + moment - time.monotonic()))
            living = job.living()
            victim = draw.choice(sorted(living))
            job.kill(victim, living[victim].pid)
        time.sleep(max(0.0, start + options.window - time.monotonic()))
        end = time.monotonic()
        diaries = job.end()
    return figures.samples_between(diaries, start, end) / (end - start), diaries


def _moments(window: float, every: float) -> list[float]:
    """One kill in the middle of each stretch of `every` seconds."""
    return [every * (number + 0.5) for number in range(int(window / every))]


def _add(diary: Diary, line: dict[str, Any]) -> None:
    if "imported" in line:
        diary.imported, diary.pid = line["imported"], line["pid"]
    elif "costs" in line:
        diary.costs, diary.steps = line["costs"], line["steps"]
    else:
        diary.applied.append(Applied(**line))


def _held() -> dict[str, int]:
    """What jobs could leave behind on this machine, and in this process."""
    return {
        "entries in shared memory": len(list(Path("/dev/shm").iterdir())),  # noqa: S108  looked at, not used
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "listening sockets": sum(
            line.split()[3] == "0A" for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        ),
    }


def _processes_of(folder: Path) -> list[int]:
    """Those that have the job's folder on their command line, as launcher, coordinator and workers do."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes() and _is_alive(int(process.name)):
                found.append(int(process.name))
    return found


def _is_alive(pid: int) -> bool:
    """False for a zombie too."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
