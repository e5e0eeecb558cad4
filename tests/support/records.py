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
from shoal.membership.metrics import MetricLine
from shoal.values import TimeShares

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


def applied(worker: int, step: int, **changes: object) -> events.StepsApplied:
    shares = TimeShares(
        compute=2.9, communication=0.9, waiting=0.3 + 0.2 * worker, input=0.4, checkpoint=0.1, other=0.4
    )
    values: dict[str, object] = {
        "worker": worker,
        "generation": 1,
        "step": step,
        "epoch": 0,
        "samples": 850,
        "seconds": 5.0,
        "shares": shares,
        "bytes_sent": 11_507_104,
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

    def tell(self, *told: events.Event) -> None:
        for event in told:
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


def _write(path: Path, lines: Iterable[bytes], torn: bytes) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)


def eventful(run_dir: Path, *, steps: int = 600, arguments: Sequence[str] = (), pace: float = 1.0) -> Path:
    """A job with one of everything: a death, a void step, checkpoints good and lost, a stop, a resume, an end."""
    job = Job(run_dir)
    chance = random.Random(3)
    job.tell(job_started(*arguments))
    job.at += 4.0
    job.tell(*(events.WorkerJoined(worker=n, host="hut", process=800 + n, address="127.0.0.1:9") for n in range(4)))
    job.tell(_formed(1, (0, 1, 2, 3), "all 4 workers joined"), _loop(steps))
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
    train(job, range(steps // 2 + 1, steps * 3 // 4), chance, pace)
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
        events.JobEnded(outcome="finished", exit_code=0, reason="all workers finished", seconds=90.0),
    )
    return job.write()


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
            job.tell(*(applied(worker, step) for worker in range(3)))
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
