"""Run directories as jobs leave them, written with the same types and without running anything."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal import events
from shoal.job_config import JobConfig
from shoal.steps import MetricLine
from shoal.values import ProcessUse, TimeShares

BEGAN = 1_763_190_000.0  # seconds since 1970


def job_started(*arguments: str, workers: int = 4) -> events.JobStarted:
    return events.JobStarted(
        script="examples/digits.py",
        arguments=arguments,
        workers=workers,
        strategy="all-reduce",
        schedule="auto",
        codec="identity",
        seed=0,
    )


def applied(worker: int, step: int, *, reports: int = 1, **changes: object) -> events.StepsApplied:
    """The totals of so many reports of five seconds each."""
    shares = TimeShares(
        compute=2.9 * reports,
        communication=0.9 * reports,
        waiting=(0.3 + 0.2 * worker) * reports,
        input=0.4 * reports,
        checkpoint=0.1 * reports,
        other=0.4 * reports,
    )
    values: dict[str, object] = {
        "worker": worker,
        "generation": 1,
        "step": step,
        "epoch": 0,
        "samples": 850 * reports,
        "seconds": 5.0 * reports,
        "shares": shares,
        "bytes_sent": 11_507_104 * reports,
        "values": {"loss": 1.0 / (1 + step / 50)},
    }
    return msgspec.convert({**values, **changes}, events.StepsApplied)


@dataclass
class Job:
    """A record under construction. `at` is the clock; steps move it on."""

    run_dir: Path
    config: JobConfig = field(default_factory=lambda: JobConfig(workers=4, checkpoint_every="100", seed=7))
    at: float = BEGAN
    lines: list[bytes] = field(default_factory=list)
    metrics: list[bytes] = field(default_factory=list)
    reports: int = 0  # of each worker, since the last start

    def report(self, step: int, workers: Iterable[int]) -> None:
        self.reports += 1
        for worker in workers:
            busy = (0.7 + 0.05 * worker + 0.1 * math.sin(self.reports)) * 5.0 * self.reports
            memory = int(4.2e8 + 2e7 * worker + 2e6 * self.reports)
            use = ProcessUse(age=5.0 * self.reports, processor=busy, memory=memory)
            self.tell(applied(worker, step, reports=self.reports, use=use))

    def tell(self, *told: events.Event) -> None:
        for event in told:
            self.reports = 0 if isinstance(event, events.JobStarted) else self.reports
            record = events.Record(time=self.at, event=event)  # type: ignore[arg-type]  the base of all that are in it
            self.lines.append(msgspec.json.encode(record))

    def step(self, step: int, values: Mapping[str, float | None], *, epoch: int = 0, seconds: float = 0.25) -> None:
        self.at += seconds
        line = MetricLine(
            step=step, time=round(self.at, 3), epoch=epoch, seconds=seconds, samples=128, values=dict(values)
        )
        self.metrics.append(msgspec.json.encode(line))

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Outside loops."""
        line = MetricLine(step=step, time=round(self.at, 3), epoch=0, seconds=0.0, samples=0, values=dict(values))
        self.metrics.append(msgspec.json.encode(line))

    def write(self, *, torn: bytes = b"") -> Path:
        """`torn` is the beginning of a last line of the events."""
        (self.run_dir / "logs").mkdir(parents=True)
        (self.run_dir / "config.toml").write_text(self.config.to_toml(), encoding="utf-8")
        _write(self.run_dir / "events.jsonl", self.lines, torn)
        _write(self.run_dir / "metrics.jsonl", self.metrics, b"")
        return self.run_dir


def equipped(worker: int, host: str = "hut") -> events.WorkerEquipped:
    return events.WorkerEquipped(
        worker=worker,
        host=host,
        system="Linux 6.12.0",
        processor="AMD EPYC 9334 32-Core Processor",
        cores=2,
        memory=33_500_000_000,
        gpu="",
        python="3.11.2",
        torch="2.13.0+cpu",
        shoal="0.7.0",
    )


def _write(path: Path, lines: Iterable[bytes], torn: bytes) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)


def eventful(run_dir: Path, *, steps: int = 600, arguments: Sequence[str] = (), pace: float = 1.0) -> Path:
    """A job with one of everything: a death, a void step, checkpoints good and lost, a stop, a resume, an end."""
    job = Job(run_dir)
    chance = random.Random(3)
    job.tell(job_started(*arguments))
    job.at += 4.0
    job.tell(*(events.WorkerJoined(worker=n, host="hut", process=800 + n, address="127.0.0.1:9") for n in range(4)))
    job.tell(_formed(1, (0, 1, 2, 3), "all 4 workers joined"), _loop(steps), *map(equipped, range(4)))
    train(job, range(1, steps // 2 + 1), chance, pace)
    gone = "worker 3 (hut, process 803) was killed by SIGKILL"
    job.tell(
        events.WorkerDied(
            worker=3, host="hut", process=803, step=steps // 2, operation="all-reduce of gradients", reason=gone
        ),
        *(
            events.StepVoided(worker=n, generation=1, step=steps // 2, operation="all-reduce of gradients", reason=gone)
            for n in range(3)
        ),
    )
    job.at += 1.0
    job.tell(_formed(2, (0, 1, 2), f"{gone}; 3 workers go on"))
    job.tell(events.StateCopied(worker=2, source=0, step=steps // 2, size=91_000_000, seconds=0.4, reason="was behind"))
    train(job, (steps // 2 + 1,), chance, pace)
    job.tell(
        events.ProgressResumed(
            generation=2, step=steps // 2 + 1, time=job.at, seconds=1.5, redone=1, samples_redone=128, reason=gone
        )
    )
    train(job, range(steps // 2 + 2, steps * 3 // 4), chance, pace)
    lost = f"step-{steps * 3 // 4:08}-g2"
    job.tell(
        events.CheckpointStarted(checkpoint=lost, step=steps * 3 // 4, reason="every 100 steps"),
        events.CheckpointDeferred(step=steps * 3 // 4, reason="the one before is still being written"),
        events.CheckpointLost(
            checkpoint=lost, step=steps * 3 // 4, worker=1, reason="part-1-of-3.safetensors: No space left on device"
        ),
        events.StopRequested(worker=None, reason="SIGTERM"),
        events.StopAgreed(step=steps * 3 // 4, reason="SIGTERM"),
        events.JobEnded(outcome="interrupted", exit_code=143, reason="SIGTERM", seconds=120.0),
    )
    job.at += 86_400.0  # nobody wants a day of nothing in a curve
    job.tell(job_started(*arguments, workers=3))
    job.at += 3.0
    resumed = steps // 2
    job.tell(
        _formed(3, (0, 1, 2), "all 3 workers joined"),
        events.CheckpointRefused(
            checkpoint="step-00000400-g2", file="part-0-of-3.safetensors", reason="the checksum of fc.weight differs"
        ),
        events.Resumed(
            checkpoint=f"step-{resumed:08}-g1", step=resumed, workers=4, reason="the newest that can be used"
        ),
        _loop(steps),
    )
    train(job, range(resumed + 1, steps + 1), chance, pace)
    job.tell(
        events.Advised(worker=0, text="input takes 21% of the time; give run.batches more loader processes"),
        events.ScriptDoubtful(worker=0, text="model 2 gets gradients, but no run.optimizer has its parameters"),
        events.JobEnded(outcome="finished", exit_code=0, reason="all workers finished", seconds=90.0),
    )
    return job.write()


def faulty(run_dir: Path, *, end: bool = True) -> Path:
    """A job of four workers that lives through every kind of fault: 10 steps of 128 samples in 2.5 s between them."""
    job = Job(run_dir)
    chance = random.Random(5)
    job.tell(job_started("--chaos", workers=4))
    job.at += 2.0
    job.tell(*(events.WorkerJoined(worker=n, host="hut", process=800 + n, address="127.0.0.1:9") for n in range(4)))
    job.tell(_formed(1, (0, 1, 2, 3), "all 4 workers joined"), _loop(600))
    step = _calm(job, 0, 40, chance)
    clause = "kill worker every 15s"
    job.tell(events.FaultInjected(fault="kill", worker=2, seconds=None, reason=clause))
    gone = "worker 2 (hut, process 802) was killed by SIGKILL in step 41, during all-reduce of gradients"
    job.tell(
        events.WorkerDied(worker=2, host="hut", process=802, step=step + 1, operation="all-reduce", reason=gone),
        *(
            events.StepVoided(worker=n, generation=1, step=step + 1, operation="all-reduce", reason="worker 2 is gone")
            for n in (0, 1, 3)
        ),
    )
    job.at += 0.5
    job.tell(_formed(2, (0, 1, 3), f"{gone}; 3 workers go on"))
    kept = "--resize global-batch: the global batch stays 128"
    job.tell(
        events.BatchChosen(generation=2, workers=3, global_batch=128, worker_batch=42.7, lr_factor=1.0, reason=kept)
    )
    step = _resume(job, step, 2, lost=1.0, redone=1)
    job.tell(events.WorkerStarted(worker=4, is_spare=True, reason="in place of worker 2"))
    job.tell(events.WorkerJoined(worker=4, host="hut", process=900, address="127.0.0.1:9"))
    step = _calm(job, step, 8, chance)
    job.tell(_formed(3, (0, 1, 3, 4), "worker 4 is ready"))
    job.tell(events.StateCopied(worker=4, source=0, step=step, size=91_000_000, seconds=0.2, reason="is new"))
    step = _resume(job, step, 3, lost=0.25, redone=0)
    step = _calm(job, step, 40, chance)
    job.tell(
        events.FaultInjected(fault="kill-coordinator", worker=None, seconds=None, reason="kill-coordinator at 30s")
    )
    step = _calm(job, step, 4, chance)
    job.tell(events.CoordinatorReturned(generation=3, reason="its process was started again"))
    job.tell(*(events.WorkerReturned(worker=n, generation=3) for n in (0, 1, 3, 4)))
    step = _calm(job, step, 60, chance)
    job.tell(events.ReplicaDiffered(worker=1, step=step, reason="worker 1 alone differs; it copies from the others"))
    job.tell(_formed(4, (0, 1, 3, 4), "the parameters of worker 1 differ"))
    job.tell(events.StateCopied(worker=1, source=0, step=step, size=91_000_000, seconds=0.2, reason="it differed"))
    step = _resume(job, step, 4, lost=0.5, redone=1)
    step = _calm(job, step, 40, chance)
    job.tell(events.FaultInjected(fault="stop", worker=3, seconds=20.0, reason="stop worker at 60s for 20s"))
    job.at += 5.0
    job.tell(events.WorkerExpelled(worker=3, step=step, reason="worker 3 was silent for 5.0 s"))
    job.tell(events.Waiting(workers=3, needed=4, reason="worker 3 was expelled, and --min-workers is 4"))
    job.at += 2.5
    job.tell(_formed(5, (0, 1, 4, 5), "worker 5 came in place of worker 3"))
    step = _resume(job, step, 5, lost=8.0, redone=1)
    step = _calm(job, step, 600 - step, chance)
    if end:
        job.tell(*(events.WorkerLeft(worker=n, step=step, reason="the script is done") for n in (0, 1, 4, 5)))
        job.tell(events.JobEnded(outcome="finished", exit_code=0, reason="all workers finished", seconds=160.0))
    return job.write()


def _calm(job: Job, step: int, count: int, chance: random.Random) -> int:
    for number in range(step + 1, step + count + 1):
        job.step(number, {"loss": 2.0 / number + 0.1 * chance.random()})
    return step + count


def _resume(job: Job, step: int, generation: int, *, lost: float, redone: int) -> int:
    """The first step of a generation, which took a step's quarter of a second and `lost` seconds more."""
    waited = min(lost, 0.5)
    job.step(step + 1, {"loss": 1.0}, seconds=waited + 0.25)
    job.tell(
        events.ProgressResumed(
            generation=generation, step=step + 1, time=job.at, seconds=lost + 0.25, redone=redone,
            samples_redone=128 * redone, reason="the members changed",
        )
    )  # fmt: skip
    return step + 1


def _formed(generation: int, workers: tuple[int, ...], reason: str) -> events.GenerationFormed:
    return events.GenerationFormed(
        generation=generation, workers=workers, schedule="ring", codec="identity", reason=reason
    )


def _loop(steps: int) -> events.LoopStarted:
    return events.LoopStarted(
        loop=1, epochs=5, steps_per_epoch=steps // 5, global_batch=128, samples_per_epoch=steps // 5 * 128
    )


def train(job: Job, steps: Iterable[int], chance: random.Random, pace: float) -> None:
    """Steps with a noisy loss, evaluations and checkpoints every 100."""
    for step in steps:
        loss = 2.3 * math.exp(-step * pace / 150) + 0.12 + 0.08 * chance.random()
        logged = {"loss": loss, "gradient norm": 3 * loss, "learning rate": 1e-3 * 0.998**step}
        job.step(step, logged, epoch=(step - 1) // 100, seconds=0.2 + 0.1 * chance.random())
        if step % 20 == 0:
            job.report(step, range(3))
        if step % 100 == 0:
            name = f"step-{step:08}-g1"
            scores = {"accuracy": 1 - 0.9 * math.exp(-step * pace / 120), "loss": loss + 0.1}
            job.tell(
                events.EpochEnded(epoch=step // 100 - 1, step=step, samples=12_800, seconds=25.0),
                events.Evaluated(step=step, samples=360, scores=scores),
                events.CheckpointStarted(checkpoint=name, step=step, reason="every 100 steps"),
                events.CheckpointPublished(
                    checkpoint=name,
                    step=step,
                    size=412_000_000,
                    seconds=0.43,
                    blocked=0.012,
                    removed=(f"step-{step - 300:08}-g1",) if step > 300 else (),
                    reason="every 100 steps",
                    mark="best" if step == 500 else "",
                ),
            )
