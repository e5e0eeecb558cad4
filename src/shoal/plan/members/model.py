"""The toy model that simulated workers train: states identified by a hash chain over the applied steps, and its store.

A state is known by what led to it: its parent, the generation, the step and the step's samples. Live code decides who
gets which samples (`data.dealing`, `data.order`); a state is a real one without the tensors. Not here: what must be
true of states (`invariants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.checkpoint.published.manifest import parse_name
from shoal.data.dealing import Dealing, deal_step
from shoal.data.order import SampleOrder, key_of, sample_order
from shoal.values import Cursor, Generation, Standing


@dataclass(frozen=True)
class Task:
    """What is trained: a number of epochs over a number of samples."""

    samples: int
    epochs: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class ToyState:
    """A model, and how far its worker is in the script."""

    identity: int = 1  # hash chain over everything that was applied
    parent: int = 0
    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    generation: int = 0  # in which its last step was applied
    samples: tuple[tuple[int, int], ...] = ()  # epoch and index of each sample that the last step used
    loop: int = 0  # 1: the one loop of the script has begun
    points: int = (
        0  # meetings outside the loop that the worker has passed: one at the loop's end, one in the code behind it
    )
    attempt: int = 0  # generation in which the worker was last sent to the loop, or back to its end

    def standing(self, agreed: int, *, is_new: bool) -> Standing:
        """`agreed`: the generation in which this state was last agreed on."""
        return Standing(
            generation=agreed,
            step=self.step,
            points=self.points,
            loop=self.loop,
            in_loop=self.loop > 0 and self.points == 0,
            is_new=is_new,
            digest=self.identity,
        )


class Trainer:
    """Deals out the samples of steps and applies them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._orders: dict[int, SampleOrder] = {}

    def is_done(self, state: ToyState) -> bool:
        return state.cursor.epoch >= self._task.epochs

    def part(self, state: ToyState, generation: Generation, rank: int) -> tuple[tuple[int, int], ...]:
        """The samples of one member in the step after this state, as (epoch, index)."""
        epoch, start = state.cursor.epoch, state.cursor.position
        order = self._order(epoch)
        parts = deal_step(self._dealing(generation, rank), start=start, samples=self._step_samples(state, generation))
        return tuple((epoch, int(index)) for part in parts for index in order.between(part.start, part.stop))

    def applied(
        self, state: ToyState, generation: Generation, parts: Sequence[tuple[tuple[int, int], ...]]
    ) -> ToyState:
        """The state after the step to which every member has brought its samples."""
        samples = tuple(sample for part in parts for sample in part)
        position = state.cursor.position + self._step_samples(state, generation)
        is_end = position >= self._task.samples
        numbers = [state.identity, generation.number, state.step + 1]
        for epoch, index in samples:
            numbers += (epoch, index)
        return replace(
            state,
            identity=key_of(*numbers),
            parent=state.identity,
            step=state.step + 1,
            cursor=Cursor(state.cursor.epoch + 1, 0) if is_end else Cursor(state.cursor.epoch, position),
            generation=generation.number,
            samples=samples,
        )

    def _dealing(self, generation: Generation, rank: int) -> Dealing:
        shares = tuple(member.share for member in generation.members)
        return Dealing(rank=rank, shares=shares, batch_size=self._task.batch_size)

    def _step_samples(self, state: ToyState, generation: Generation) -> int:
        return min(self._dealing(generation, 0).step_size, self._task.samples - state.cursor.position)

    def _order(self, epoch: int) -> SampleOrder:
        if epoch not in self._orders:
            self._orders[epoch] = sample_order(seed=self._task.seed, epoch=epoch, size=self._task.samples)
        return self._orders[epoch]


class ToyStore:
    """Holds checkpoints and outlives every process."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, ToyState]] = {}  # by checkpoint and file
        self.published: dict[str, ToyState] = {}

    def write(self, checkpoint: str, file: str, state: ToyState) -> None:
        self.parts.setdefault(checkpoint, {})[file] = state

    def newest(self) -> tuple[str, ToyState] | None:
        """Of a later generation, then of a later step."""
        if not self.published:
            return None
        name = max(self.published, key=lambda name: (parse_name(name) or (0, 0))[::-1])
        return name, self.published[name]
