"""Run: the one object a user's script sees. Each method is short; the work is done by the modules around it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import torch
from torch import nn

from shoal.checkpoint.state_tree import flatten
from shoal.collectives.group import Group
from shoal.data.sources import FeedOptions, feed_for
from shoal.errors import UsageError
from shoal.settings.setting_checks import nearest
from shoal.training import texts
from shoal.training.evaluation import evaluate
from shoal.training.loop.loop import Loop
from shoal.training.loop.loop_task import LoopTask
from shoal.training.mistakes.wrappers import find_wrapper
from shoal.training.model.devices import placed
from shoal.training.model.state import load_weights, parameter_names
from shoal.training.model.sync_batchnorm import Statistics, convert
from shoal.training.saving.checkpointing import save_here
from shoal.training.script.call_terms import kept_terms, model_terms, optimizer_terms
from shoal.training.script.meetings import gather, is_past, meet
from shoal.training.script.settling import settle, stops_before
from shoal.training.session import Session
from shoal.training.watched import Kept

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Value = TypeVar("Value", float, torch.Tensor)


@dataclass(frozen=True)
class BatchOptions:
    """How `run.batches` reads its data. Each field is an argument of `batches`."""

    batch_size: int | None = None  # per worker; None: the DataLoader's own
    steps: int | None = None  # end the loop after so many, over as many epochs as they take; None: no limit
    accumulate: int = 1  # batches per step
    shuffle: bool = True  # another order in every epoch, the same for any number of workers
    loaders: int = 0  # background processes that load; 0: the worker itself loads
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch from a list of samples; None: as torch does
    own_data: bool = False  # each worker reads its positions from data of its own, as long as the others'; not compared


class Run:
    """This worker's part in the job. Made by `shoal.main`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def rank(self) -> int:
        """0 to world_size - 1; may change from step to step."""
        self._session.place.ask_rank()
        return self._session.peers.group.rank

    @property
    def world_size(self) -> int:
        """How many workers train now; may change from step to step."""
        self._session.place.ask_rank()
        return self._session.peers.group.size

    @property
    def is_first(self) -> bool:
        """True on one worker: for printing and writing files.

        False on every worker in code after a loop that had ended before the script started again: that code has run.
        """
        return self._session.peers.group.rank == 0 and not self._session.is_behind_past

    @property
    def device(self) -> torch.device:
        """Where this worker's models and batches are: a GPU where there is one, else the CPU."""
        return self._session.device

    @property
    def step(self) -> int:
        """Applied steps so far, over all loops."""
        return self._session.steps_done

    @property
    def applied(self) -> bool:
        """Whether this iteration's update counts: False in a void step, and before the last of accumulated batches."""
        iteration = self._session.iteration
        return self._session.batch.was_applied if iteration is None else iteration.may_update

    @property
    def stopped(self) -> str | None:
        """The reason, once all workers have agreed to end their loops."""
        return self._session.stopped

    def model(self, model: Model | Callable[[], Model], *, sync_batchnorm: bool | None = None) -> Model:
        """The same model with the same weights on every worker, on its device. A function is called to build it."""
        settle(self._session)
        if self._session.iteration is not None:
            raise UsageError(texts.MODEL_IN_LOOP)
        built = cast(Model, model() if callable(model) and not isinstance(model, nn.Module) else model)
        if not isinstance(built, nn.Module):
            raise UsageError(texts.no_model(built))
        if (found := find_wrapper(built)) is not None:
            raise UsageError(texts.wrapped_model(*found))
        built = placed(built, self._session.device)
        if self._session.config.sync_batchnorm if sync_batchnorm is None else sync_batchnorm:
            # The same class comes back, unless the whole model is one BatchNorm layer.
            built = cast(Model, convert(built, Statistics(self._sum, self._share)))
        if any(built is known for known in self._session.watched.models.values()):
            return built
        name = f"model {len(self._session.watched.models) + 1}"
        self._session.strategy.attach(built, name)
        self._session.replica.add(built, name)
        self._session.watched.add_model(name, built)
        self._session.script.make("model", model_terms(built))
        if self._session.peers.is_new:  # a newcomer gets a state that all have agreed on
            self._session.place.pass_meeting()
        elif not is_past(self._session):
            meet(self._session, name, lambda label: self._session.replica.unify(built, label))
        if (weights := self._session.watched.weights_of(name)) is not None:
            load_weights(built, name, weights)
            self._session.replica.replaced()
        return built

    def optimizer(self, optimizer: Optimizer, *, clip_norm: float | None = None) -> Optimizer:
        """Let `optimizer.step()` apply whole steps only. `clip_norm` clips the averaged gradient before each."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(texts.no_optimizer(optimizer))
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(texts.bad_clip_norm(clip_norm))
        if any(optimizer is known for known in self._session.watched.optimizers):
            raise UsageError(texts.OPTIMIZER_TWICE)
        self._session.steps.watch(optimizer, clip_norm=clip_norm)
        self._session.watched.add_optimizer(optimizer)
        if self._session.batch.is_between:
            terms = optimizer_terms(optimizer, clip_norm, parameter_names(self._session))
            self._session.script.make("optimizer", terms)
        return optimizer

    def batches(
        self, data: object, batch_size: int | None = None, *, epochs: int | None = None, **options: Any
    ) -> Batches:
        """Every sample once per epoch over all workers, `batch_size` of them per worker and iteration.

        Options: steps=None, accumulate=1, shuffle=True, loaders=0, collate=None, own_data=False (see `BatchOptions`).
        One epoch unless `epochs` or `steps` says otherwise; with both, whichever ends first.
        """
        chosen = batch_options(batch_size, options)
        if epochs is not None:
            check_count("epochs", epochs)
        if epochs is None and chosen.steps is not None:  # an epoch has at least one step
            return self._loop(data, chosen, first_epoch=0, epochs=chosen.steps, total_epochs=None)
        return self._loop(data, chosen, first_epoch=0, epochs=epochs or 1, total_epochs=epochs or 1)

    def epochs(self, count: int) -> Iterator[Epoch]:
        """For nested loops: `for epoch in run.epochs(5): for x, y in epoch.batches(...)`.

        All workers meet before each epoch. None begins after `run.stop`.
        """
        check_count("epochs", count)
        return (Epoch(self, number, count) for number in epoch_numbers(self._session, count))

    def _loop(
        self, data: object, options: BatchOptions, *, first_epoch: int, epochs: int, total_epochs: int | None
    ) -> Batches:
        feed = feed_for(data, self._feed_options(options))
        task = LoopTask(
            feed=feed,
            first_epoch=first_epoch,
            epochs=epochs,
            total_epochs=total_epochs,
            accumulate=options.accumulate,
            steps=options.steps,
        )
        return Batches(Loop(self._session, task))

    def _feed_options(self, options: BatchOptions) -> FeedOptions:
        return FeedOptions(
            batch_size=options.batch_size,
            seed=self._session.config.seed,
            shuffle=options.shuffle,
            loaders=options.loaders,
            collate=options.collate,
            own_data=options.own_data,
            world_size=self._session.peers.group.size,
        )

    def evaluate(
        self, score: Callable[..., Any], data: object, batch_size: int | None = None, **options: Any
    ) -> dict[str, float]:
        """Mean scores over a data set, shared out over all workers; the result is the same on each.

        `score(x, y)` returns a dictionary of a batch's means, or one mean, which becomes "score". Models are in
        evaluation mode meanwhile. Where a peer is lost during an evaluation inside a loop, every score is nan.
        """
        chosen = batch_options(batch_size, {"shuffle": False, **options})
        settle(self._session)
        scores = evaluate(self._session, score, feed_for(data, self._feed_options(chosen)))
        iteration = self._session.iteration
        if iteration is None:
            self._session.seed_outside()  # `score` may have drawn numbers; a resumed script does not call it again
        if not self._session.is_catching_up and (iteration is None or iteration.breakage is None):
            self._session.reporter.scored(scores, step=self._session.step, is_open=iteration is not None)
        return scores

    def mean(self, value: Value) -> Value:
        """The mean over all workers, each counted once; a tensor element by element."""
        settle(self._session)
        if not isinstance(value, int | float | torch.Tensor):
            raise UsageError(texts.bad_mean(value))
        if not isinstance(value, torch.Tensor):
            return float(self._mean(torch.tensor(float(value), dtype=torch.float64)).item())
        tensor = value.detach().clone()
        return self._mean(tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double())

    def _mean(self, tensor: torch.Tensor) -> torch.Tensor:
        def reduce(group: Group, label: str) -> torch.Tensor:
            total = tensor.clone()
            group.all_reduce(total, label=label).wait()
            return total / group.size

        return gather(self._session, "mean", reduce, alone=tensor)

    def _sum(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        def reduce(group: Group, label: str) -> torch.Tensor:
            total = tensor.clone()
            group.all_reduce(total, label=label).wait()
            return total

        return gather(self._session, what, reduce, alone=tensor)

    def _share(self) -> float:
        """This worker's share of the step's samples; an equal share outside loops."""
        iteration = self._session.iteration
        if iteration is None:
            return 1.0 / self._session.peers.group.size
        return iteration.weight / iteration.step_samples if iteration.step_samples else 0.0

    def weight(self, count: float) -> None:
        """Set how much this batch counts relative to other workers', where that is not its number of samples.

        For losses that are means over something else, such as tokens. Call it before `backward()`.
        """
        iteration = self._session.iteration
        if iteration is None:
            raise UsageError(texts.WEIGHT_OUTSIDE_LOOP)
        if not count >= 0 or count == float("inf"):
            raise UsageError(texts.bad_weight(count))
        if iteration.exchanges:
            raise UsageError(texts.WEIGHT_TOO_LATE)
        iteration.weight = float(count)

    def log(self, **values: float | torch.Tensor) -> None:
        """Numbers for the progress display and the job's record, by name. Dropped if the step turns out void."""
        if self._session.iteration is not None:
            self._session.reporter.log(values)
        elif not self._session.is_catching_up:  # else this script, or the others', logged these values before
            self._session.reporter.log_outside(values, step=self._session.step)

    def log_to(self, writer: object) -> None:
        """Hand what this worker logs and evaluates to a writer too: `if run.is_first: run.log_to(SummaryWriter())`.

        A TensorBoard SummaryWriter, a Weights & Biases run, or a function of a step and a dictionary of values.
        """
        self._session.reporter.sinks.add(writer, script=self._session)

    def keep(self, **things: Kept) -> None:
        """Objects that belong to the state: schedulers, scalers, anything with `state_dict` and `load_state_dict`."""
        for name, thing in things.items():
            if not all(callable(getattr(thing, method, None)) for method in ("state_dict", "load_state_dict")):
                raise UsageError(texts.not_kept(name, thing))
            flatten(thing.state_dict(), named=f"the state of {name}")
            self._session.watched.keep(name, thing)
        if self._session.batch.is_between:
            self._session.script.make("kept objects", kept_terms(things))

    def save(self, *, mark: str = "") -> None:
        """Make a checkpoint, after this step or, outside loops, of the state as it is. Every worker must call it.

        A marked checkpoint is kept until another gets the same mark: `run.save(mark="best")`. Outside loops the call
        waits until the previous checkpoint is written.
        """
        check_mark(mark)
        settle(self._session)
        self._session.saver.turn_on()
        if self._session.iteration is not None:
            self._session.saver.ask(mark)
        else:
            save_here(self._session, mark)

    def stop(self, reason: str) -> None:
        """Ask all workers to end their loops; they agree on the step after which they do.

        One worker is enough. Called between two epochs of `run.epochs`, it lets no further epoch begin.
        """
        self._session.ask_to_stop(str(reason))


class Epoch:
    """One epoch of `run.epochs`."""

    def __init__(self, run: Run, number: int, count: int) -> None:
        self._run = run
        self.number = number  # counts from 0
        self._count = count

    def batches(self, data: object, batch_size: int | None = None, **options: Any) -> Batches:
        """As `run.batches`, for this epoch alone."""
        chosen = batch_options(batch_size, options)
        return self._run._loop(data, chosen, first_epoch=self.number, epochs=1, total_epochs=self._count)


def batch_options(batch_size: int | None, options: dict[str, Any]) -> BatchOptions:
    known = tuple(field.name for field in fields(BatchOptions))
    for name in options:
        if name not in known:
            raise UsageError(texts.no_option(name, nearest(name, known)))
    chosen = BatchOptions(batch_size=batch_size, **options)
    if chosen.steps is not None:
        check_count("steps", chosen.steps)
    check_count("accumulate", chosen.accumulate)
    if chosen.collate is not None and not callable(chosen.collate):
        raise UsageError(texts.bad_collate(chosen.collate))
    return chosen


def check_mark(mark: object) -> None:
    if not isinstance(mark, str) or not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?", mark):
        raise UsageError(texts.bad_mark(mark))


def check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(texts.bad_count(name, value))


class Batches(Iterator[Any]):
    """What `run.batches` returns. Iterating over it a second time raises UsageError.

    A `for` gets the generator itself, which nothing else refers to: leaving the `for` closes the generator, and that
    leaves the loop.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_started = False
        self._own: Generator[Any, None, None] | None = None  # made when `next` is called on this object itself

    def __iter__(self) -> Iterator[Any]:
        if self._is_started:
            raise UsageError(texts.LOOP_TWICE)
        self._is_started = True
        return self._loop.run()

    def __next__(self) -> Any:
        if self._own is None:
            self._own = self._loop.run()
            self._is_started = True
        return next(self._own)

    def __len__(self) -> int:
        """How many batches this worker will get, for schedules. Raises TypeError where the data have no length."""
        return self._loop.length()


def epoch_numbers(session: Session, epochs: int) -> Iterator[int]:
    """Epochs of a nested loop: 0, 1, ... until the last or an agreed stop."""
    for epoch in range(epochs):
        if stops_before(session, epoch):
            return
        yield epoch
