"""Checkpoints on their way: from the first part that a worker has written to publication or loss. Pure.

A checkpoint belongs to one generation. Once every member has written its part, the publisher gets the checkpoint. The
first part that fails makes the checkpoint lost, which is announced at once; its files are removed when no member is
writing any more. Not here: what a checkpoint contains and where it is kept (`shoal.checkpoint`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from shoal import events
from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import CheckpointDecided
from shoal.membership.publisher import PublishOutcome, PublishRequest
from shoal.values import Generation
from shoal.wire.messages import CheckpointSettled, PartFailed, PartWritten

MOST_OPEN = 16  # checkpoints at a time; workers make the next one when the last is settled
REMEMBERED = 64  # lost checkpoints that are not announced as lost again when a late part comes
MOST_STEPS = 10**15  # the highest step that a checkpoint's name has room for
MEMBERS_CHANGED = "the members changed before all parts were written"
JOB_ENDED = "the job ended before all parts were written"
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # what may become a file's name


@dataclass(slots=True)
class _Open:
    """A checkpoint that is neither published nor given up."""

    step: int
    generation: Generation
    written: dict[int, PartWritten] = field(default_factory=dict)  # by worker
    failed: set[int] = field(default_factory=set)  # workers whose part will not come
    is_lost: bool = False
    handed_over: float | None = None  # when the publisher got it

    @property
    def missing(self) -> list[int]:
        """Members that have not said anything about their part."""
        members = (member.worker for member in self.generation.members)
        return [worker for worker in members if worker not in self.written and worker not in self.failed]

    def parts(self) -> list[PartWritten]:
        """By rank; no part may be missing."""
        return [self.written[member.worker] for member in self.generation.members]


class Publishing:
    """Every checkpoint of the job. Instructions go out through the audience."""

    def __init__(
        self, audience: Audience, *, after_generation: int, settled: Collection[tuple[str, bool]] = ()
    ) -> None:
        """`settled`: checkpoints that an earlier coordinator settled, each with whether it was published."""
        self._audience = audience
        self._after_generation = after_generation  # checkpoints up to this generation belong to earlier runs of the job
        self._open: dict[str, _Open] = {}
        self._last: dict[int, tuple[int, int]] = {}  # by worker: generation and step of its newest part
        self._gone: dict[int, str] = {}  # members of the current generation whose parts will not come, and why
        self._settled = dict(settled)  # names, oldest first, and whether they were published
        self._lost = {name: None for name, is_published in settled if not is_published}  # names, oldest first

    @property
    def is_publishing(self) -> bool:
        return any(checkpoint.handed_over is not None for checkpoint in self._open.values())

    def is_lost(self, name: str) -> bool:
        """True also while a member may still be writing its part of the lost checkpoint."""
        return name in self._lost

    def objection(self, part: PartWritten | PartFailed, generation: Generation | None, *, was_member: bool) -> str:
        """Why a worker may not send this part; empty when nothing is wrong with it.

        `was_member`: the sender is or was in a generation.
        """
        if generation is None or not was_member:
            return "a part of a checkpoint before it was in a generation"
        if not self._after_generation < part.generation <= generation.number or not 0 <= part.step < MOST_STEPS:
            return f"a part of step {part.step} in generation {part.generation}, which is none of this run's"
        if part.checkpoint != f"step-{part.step:08}-g{part.generation}":
            return f"a part of {part.checkpoint[:80]!r}, which is no checkpoint's name"
        if part.checkpoint not in self._open and len(self._open) >= MOST_OPEN:
            return f"a part of one more checkpoint while {MOST_OPEN} are open"
        return _wrong_with_part(part) if isinstance(part, PartWritten) else ""

    def answer(self, name: str, client: int) -> bool:
        """Whether the checkpoint was settled before. Then tell this worker, which was away or reports late."""
        published = self._settled.get(name)
        if published is None:
            return False
        self._audience.send((client,), CheckpointSettled(checkpoint=name, published=published))
        if not published:
            self._audience.discard(name)
        return True

    def part(self, worker: int, part: PartWritten | PartFailed, generation: Generation, now: float) -> None:
        """A member's report, without objection. `generation` is the current one."""
        clock = (part.generation, part.step)
        if clock <= self._last.get(worker, (-1, -1)):
            return  # a repeated report
        self._last[worker] = clock
        if part.generation != generation.number:
            self._late(part)
            return
        checkpoint = self._open.setdefault(part.checkpoint, _Open(part.step, generation))
        if isinstance(part, PartFailed):
            checkpoint.failed.add(worker)
            self._lose(part.checkpoint, worker, reasons.shortened(part.reason))
        elif any(part.file == other.file for other in checkpoint.written.values()):
            checkpoint.failed.add(worker)
            self._lose(part.checkpoint, worker, f"two workers call their part {part.file}")
        else:
            checkpoint.written[worker] = part
        self._advance(part.checkpoint, now)
        if part.checkpoint in self._open:
            self._give_up_missing(part.checkpoint, now)

    def gone(self, worker: int, why: str, now: float) -> None:
        """The worker's missing parts will not come."""
        self._gone[worker] = why
        for name in tuple(self._open):
            self._give_up_missing(name, now)

    def _give_up_missing(self, name: str, now: float) -> None:
        checkpoint = self._open[name]
        missing = [worker for worker in checkpoint.missing if worker in self._gone] if self._gone else []
        for worker in missing:
            checkpoint.failed.add(worker)
            self._lose(name, worker, self._gone[worker])
        if missing:
            self._advance(name, now)

    def published(self, name: str, outcome: PublishOutcome, now: float) -> None:
        checkpoint = self._open.pop(name, None)
        if checkpoint is None or checkpoint.handed_over is None:
            return  # publishing took too long and was given up
        parts = checkpoint.parts()
        self._audience.record(
            events.CheckpointPublished(
                checkpoint=name,
                step=checkpoint.step,
                size=outcome.size,
                seconds=max(part.seconds for part in parts) + now - checkpoint.handed_over,
                blocked=max(part.blocked for part in parts),
                removed=outcome.removed,
                reason=reasons.shortened(parts[0].reason),
                mark=parts[0].mark,
            )
        )
        self._settle(name, published=True)

    def not_published(self, name: str, reason: str) -> None:
        if name in self._open:
            self._lose(name, None, reasons.shortened(reason))
            self._discard(name)

    def abandon(self, reason: str) -> None:
        """Lose every checkpoint that still lacks parts: the generation, or the job, is over."""
        self._gone.clear()
        for name, checkpoint in tuple(self._open.items()):
            if checkpoint.handed_over is None:
                self._lose(name, None, reason)
                self._discard(name)

    def give_up(self, reason: str) -> None:
        """Lose every checkpoint that the publisher has not finished. Leave the files: the publisher still uses them."""
        for name in tuple(self._open):
            self._lose(name, None, reason)
            del self._open[name]

    def _late(self, part: PartWritten | PartFailed) -> None:
        """A part of an older generation is of no use. Its file was written after the others were discarded."""
        if part.checkpoint in self._open:
            return  # the checkpoint is with the publisher, or lost and about to be discarded
        if part.checkpoint not in self._lost:
            self._record_loss(part.checkpoint, part.step, None, MEMBERS_CHANGED)
            self._settle(part.checkpoint, published=False)
        self._audience.discard(part.checkpoint)

    def _advance(self, name: str, now: float) -> None:
        checkpoint = self._open[name]
        if checkpoint.missing:
            return
        if checkpoint.is_lost:
            self._discard(name)
        elif checkpoint.handed_over is None:
            checkpoint.handed_over = now
            parts = checkpoint.parts()
            files = tuple(part.file for part in parts)
            self._audience.publish(PublishRequest(checkpoint=name, files=files, mark=parts[0].mark))

    def _lose(self, name: str, worker: int | None, reason: str) -> None:
        """Announce the first reason only."""
        checkpoint = self._open[name]
        if not checkpoint.is_lost:
            checkpoint.is_lost = True
            self._record_loss(name, checkpoint.step, worker, reason)

    def _record_loss(self, name: str, step: int, worker: int | None, reason: str) -> None:
        self._audience.record(events.CheckpointLost(checkpoint=name, step=step, worker=worker, reason=reason))
        self._lost[name] = None
        if len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def _discard(self, name: str) -> None:
        del self._open[name]
        self._audience.discard(name)
        self._settle(name, published=False)

    def _settle(self, name: str, *, published: bool) -> None:
        self._audience.write_decision(CheckpointDecided(checkpoint=name, is_published=published))
        self._settled[name] = published
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]
        self._audience.send(self._audience.workers(), CheckpointSettled(checkpoint=name, published=published))


def _wrong_with_part(part: PartWritten) -> str:
    for name in (part.file, part.mark or "none"):
        if not _PLAIN.fullmatch(name):
            return f"a part with the name {name[:80]!r}; letters, digits, dots, dashes and underscores are allowed"
    if part.size < 0 or not all(math.isfinite(time) and time >= 0 for time in (part.seconds, part.blocked)):
        return f"a part of {part.size} bytes, {part.seconds} s and {part.blocked} s"
    return ""
