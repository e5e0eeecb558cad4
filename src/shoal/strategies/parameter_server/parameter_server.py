"""The parameter-server strategy: servers hold the parameters and apply updates; workers send gradients and get values.

    backward            each gradient leaves for its servers as soon as backward has made it
    optimizer.step()    the servers are asked to apply the gradients: with those of all workers, or at once
    forward             the new values are taken in

Synchronous: the workers exchange their votes first, as in all-reduce, and the ledger on the servers says whether the
step counts. Asynchronous: a worker meets the others only when it is called to, and its samples are leased
(`server_leases`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shoal.collectives.group import Group
from shoal.errors import Aborted, ExchangeFailed, ReplicasDiffer, UsageError
from shoal.job_config import JobConfig
from shoal.manners import Manners
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.client.parameter_client import OutgoingPush, ParameterClient
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.strategies import texts
from shoal.strategies.parameter_server.gradient_outbox import GradientOutbox, Noise
from shoal.strategies.parameter_server.parameter_inbox import ParameterInbox
from shoal.strategies.parameter_server.parameter_table import (
    ServedParameter,
    entries_of,
    local_states,
    step_values,
    table_of,
)
from shoal.strategies.parameter_server.server_leases import LedgerTerms, LedgerView, ServerLeases
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Commit, Iteration, Stepping, Strategy, waiting
from shoal.wire.ledger_entries import Committed, Void
from shoal.wire.tables import Number, PushTerms, TableSpec

TINY = 1e-12  # added to a norm before dividing by it


@dataclass(frozen=True)
class ParameterServerConfig:
    manners: Manners
    terms: LedgerTerms
    noise: float  # deviation of the noise on gradients; 0: none
    normalize: bool  # gradients are divided by their norm
    seed: int


class ParameterServer(Strategy):
    def __init__(self, replica: Replica, client: ParameterClient, config: ParameterServerConfig) -> None:
        self._replica = replica
        self._peers = replica.peers
        self._client = client
        self._config = config
        self.manners = config.manners
        self._view = LedgerView(self._peers, client, config.terms)
        if self.manners.is_free:
            is_bounded = config.terms.staleness is not None
            self.free = ServerLeases(self._peers, client, self._view, self, is_bounded=is_bounded)
        self._is_free = self.manners.is_free
        self._optimizers: list[torch.optim.Optimizer] = []
        self._clips: dict[int, float | None] = {}  # by number of the optimizer
        self._entries: tuple[ServedParameter, ...] = ()
        self._served: frozenset[int] = frozenset()  # ids of the parameters in `_entries`
        self._table: TableSpec | None = None  # from the first loop on
        self._outbox: GradientOutbox | None = None  # from the first loop on
        self._inbox: ParameterInbox | None = None
        self._iteration: Iteration | None = None
        self._steps: dict[int, tuple[dict[str, Number], ...]] = {}  # values of optimizers that stepped in this batch
        self._is_asked = False  # the servers were asked about this batch's gradients
        self._has_values = False  # the servers have this script's values
        self._known_digest: int | None = None  # of the parameters at the end of the last loop, as the servers have them

    # Models, and loops that begin

    def attach(self, model: nn.Module, name: str) -> None:  # noqa: ARG002  watched from the first loop on
        if self._outbox is not None:
            raise UsageError(texts.model_too_late(name))

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer], *, step: int, holds_state: bool) -> None:
        if self._outbox is None:
            self._define(optimizers)
        elif list(optimizers) != self._optimizers:
            raise UsageError(texts.OPTIMIZER_TOO_LATE)
        self._view.enrol()
        if holds_state:
            self._give_values(step)
        self._has_values = True
        for optimizer in optimizers:  # the servers have the state from now on
            optimizer.state.clear()
        self.catch_up()

    def _define(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._entries = entries_of(self._replica.models, optimizers)
        self._served = frozenset(id(entry.parameter) for entry in self._entries)
        if not self._entries:
            raise UsageError(texts.NO_OPTIMIZER)
        self._table = table_of(self._entries, optimizers)
        codec, text = self._peers.codec, self._peers.generation.codec
        self._client.define(self._table, None if codec.raw else BlockCodec(self._table, text, codec))
        noise = Noise(self._config.noise, self._config.seed, self._peers.worker) if self._config.noise else None
        self._outbox = GradientOutbox(self._entries, self._client.begin_push, noise)
        lazily = self._is_free and self._config.terms.staleness is None
        self._inbox = ParameterInbox(self._entries, self._replica.models.values(), self._forward_failed, lazily=lazily)

    def _forward_failed(self, failure: ExchangeFailed) -> None:
        """Values that the model's forward needed did not come."""
        if self._iteration is None:
            raise failure  # outside iterations the code that meets the others handles it
        self._iteration.mark_void("values for forward", failure)

    def _give_values(self, step: int) -> None:
        """Give the servers values if they have none of this script, or if the script changed them. All members call it.

        The first member that has used the servers before decides; where none has, the job begins, or begins again.
        """
        group = self._peers.group
        has_used = torch.zeros(group.size, dtype=torch.int64)
        has_used[group.rank] = self._has_values
        group.all_reduce(has_used, label="who has used the servers").wait()
        source = int(has_used.argmax().item())
        number = torch.zeros(1, dtype=torch.int64)
        if group.rank == source and (not self._has_values or self._replica.digest() != self._known_digest):
            states = self._served_states() if self._has_values else local_states(self._entries, self._optimizers)
            values = {entry.name: entry.parameter.detach() for entry in self._entries}
            number[0] = self._client.assign(values, states, updates=step)
        group.broadcast(number, source, label="values for the servers").wait()
        if number.item():
            self.replaced, self._view.updates = self._view.updates, step
            self._view.seen = max(self._view.seen, int(number.item()))

    # A batch

    def begin(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self._steps, self._is_asked = {}, False
        if self._outbox is not None:
            self._check_frozen()
            self._outbox.begin(iteration)

    def _check_frozen(self) -> None:
        for optimizer in self._optimizers:
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if parameter.requires_grad and id(parameter) not in self._served:
                    raise UsageError(texts.parameter_too_late(parameter.shape))

    def end(self) -> None:
        self._iteration = None
        if self._outbox is not None:
            self._outbox.end()

    def watches(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._served

    def update(self, stepping: Stepping) -> None:
        iteration = self._iteration
        assert iteration is not None
        number = next(n for n, optimizer in enumerate(self._optimizers) if optimizer is stepping.optimizer)
        if self._is_asked or number in self._steps:
            raise UsageError(texts.second_step(number + 1, iteration.step))
        assert self._table is not None, "a loop has begun"
        self._steps[number] = step_values(self._table, number, stepping.optimizer, stepping.factor)
        self._clips[number] = stepping.clip_norm
        if len(self._steps) == len(self._optimizers):
            self._ask(iteration)

    def finish(self, iteration: Iteration) -> None:
        if iteration.is_last and not self._is_asked and not iteration.is_void and iteration.breakage is None:
            self._ask(iteration)
        if self._is_free:
            self._replica.votes.take_updates(0)  # workers that run free take different numbers of steps

    def _ask(self, iteration: Iteration) -> None:
        """Have the servers apply this step's gradients."""
        assert self._outbox is not None
        push = self._outbox.take(is_needed=self._is_free)
        if push is None:
            return
        self._is_asked = True
        try:
            with torch.no_grad(), waiting(iteration, self._peers):
                scale = self._free_scale() if self._is_free else self._meet_in_step(iteration, self._peers.group.here)
                answer = self._commit(iteration, push, self._terms(scale))
        except ExchangeFailed as failure:
            iteration.mark_void("update on the servers", failure)
            return
        if isinstance(answer, Void):
            iteration.mark_void("update on the servers", Aborted(answer.reason))
            return
        self._view.heard(answer)
        if self._is_free:
            iteration.commit = Commit(self._view.updates, answer.base, answer.used)
        iteration.exchanges += 1
        self.pull()
        if not self._is_free:
            self._take_in(iteration)

    def _take_in(self, iteration: Iteration) -> None:
        """The step is applied: take in the new values before the script goes on."""
        try:
            with waiting(iteration, self._peers):
                self.settle()
        except ExchangeFailed as failure:  # this worker cannot go on without the values
            assert self._inbox is not None
            self._inbox.abandon()
            iteration.mark_broken("values after the update", failure)

    def _terms(self, scale: float) -> PushTerms:
        assert self._inbox is not None
        numbers = range(len(self._optimizers))
        return PushTerms(
            groups=tuple(self._steps.get(number, ()) for number in numbers) if self._steps else (),
            scale=scale,
            clip_norms=() if self._is_free else tuple(self._clips.get(number) for number in numbers),
            read=self._inbox.updates,
        )

    def _free_scale(self) -> float:
        """The factor that clips or normalizes the gradient by this worker's own norm."""
        assert self._outbox is not None
        if self._config.normalize:
            return 1.0 / (self._outbox.norm() + TINY)
        limits = [clip for clip in self._clips.values() if clip is not None]
        return min(1.0, min(limits) / (self._outbox.norm() + TINY)) if limits else 1.0

    def _meet_in_step(self, iteration: Iteration, group: Group) -> float:
        """Exchange all workers' votes and buffers. Returns the factor for the sum of gradients."""
        label, board, buffers = f"step {iteration.step}, votes", self._replica.board, self._replica.buffers
        own_digest, iteration.digest = iteration.digest, None
        cast = board.write(iteration.step_weight, buffers.changed(), own_digest=own_digest)
        group.all_reduce(cast.vector, label=label).wait()
        reading = board.read(cast)
        if len(set(reading.digests)) > 1:
            raise ReplicasDiffer(f"the workers' parameters differ before step {iteration.step}")
        share = iteration.step_weight / reading.weight if reading.weight else 0.0
        buffers.launch(group, reading.changed, weight=share, label=label).finish()
        return iteration.step_samples / reading.weight if reading.weight else 1.0

    def _commit(self, iteration: Iteration, push: OutgoingPush, terms: PushTerms) -> Committed | Void:
        self._view.enrol()
        if self._is_free:
            return self._client.commit(push, terms, used=iteration.positions)
        try:
            with self._peers.interrupting(self._client.interrupt):
                return self._client.commit(push, terms, step=iteration.step)
        except Aborted:  # the group broke: the ledger decides, once and for all, whether the step counts
            self._client.resume()
            return self._client.withdraw(iteration.step)

    # Values

    @property
    def held(self) -> tuple[int, int]:  # type: ignore[override]  # changes with the table
        return self._client.held

    def pull(self, *, is_bounded: bool = True) -> None:
        assert self._inbox is not None
        pull = self._client.pull(at_least=self._view.seen, order=self._inbox.order, is_bounded=is_bounded)
        self._inbox.expect(pull)

    def catch_up(self) -> None:
        """Take in what the servers have now, however far ahead this worker is."""
        self.pull(is_bounded=False)
        self.settle()

    def settle(self) -> None:
        if self._inbox is not None:
            self._inbox.settle()

    def compared(self, digest: int | None) -> None:
        self._known_digest = self._replica.digest() if digest is None else digest

    def optimizer_states(self) -> list[dict[str, dict[str, torch.Tensor]]] | None:
        if self._outbox is None:
            return None
        states: list[dict[str, dict[str, torch.Tensor]]] = [{} for _ in self._optimizers]
        served = self._served_states()
        for entry in self._entries:
            if served[entry.name]:
                states[entry.optimizer][entry.name] = served[entry.name]
        return states

    def _served_states(self) -> dict[str, dict[str, torch.Tensor]]:
        """The states of the servers' optimizers, by parameter, without the parameters' values."""
        found = self._client.read_state(at_least=self._view.seen)
        return {name: {key: value for key, value in parts.items() if key} for name, parts in found.items()}

    def rebind(self) -> None:
        self._client.resume()
        self._iteration = None
        if self._outbox is not None and self._inbox is not None:
            self._outbox.end()
            self._inbox.abandon()

    def detach(self) -> None:
        if self._outbox is not None:
            self._outbox.detach()
        if self._inbox is not None:
            self._inbox.detach()
        self._outbox = self._inbox = None
        self._entries, self._served, self._optimizers = (), frozenset(), []


def make(replica: Replica, config: JobConfig, servers: ParameterClient | None) -> ParameterServer:
    assert servers is not None, "a job whose strategy has settings of servers has servers"
    settings, manners = config.of(ParameterServerSettings), config.manners
    terms = LedgerTerms(manners.is_free, settings.staleness_bound, settings.staleness_scaling)
    return ParameterServer(
        replica,
        servers,
        ParameterServerConfig(manners, terms, noise=settings.noise, normalize=settings.normalize, seed=config.seed),
    )
