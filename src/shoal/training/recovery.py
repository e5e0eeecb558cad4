"""After a failed exchange: the next generation, and one state for all its members.

Members differ by at most one applied step, because a step is applied only after its whole reduction. Whoever is
furthest is the source; whoever is behind copies its state and its place in the data. This runs only between batches.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from shoal.checkpoint.peer_copy import copy_state
from shoal.errors import ExchangeFailed
from shoal.events import StateCopied, StepVoided
from shoal.strategies.peers import Breakage
from shoal.training.session import Session
from shoal.values import Cursor


def undo_void(session: Session, breakage: Breakage) -> None:
    """Give back what the script's code changed in a step that does not count."""
    session.snapshot.restore(session.watched.kept)
    session.peers.report(
        StepVoided(
            worker=session.peers.worker,
            generation=session.peers.generation.number,
            step=breakage.step,
            operation=breakage.operation,
            reason=breakage.reason,
        )
    )


def recover(session: Session, breakage: Breakage, cursor: Cursor) -> Cursor:
    """Return the cursor to go on from, the same on every member. `cursor` is this worker's own place."""
    while True:
        session.strategy.rebind()
        session.peers.regroup(breakage)
        try:
            return _align(session, cursor)
        except ExchangeFailed as failure:
            breakage = Breakage(session.step, "copying the state", str(failure), failure.peer)


def _align(session: Session, cursor: Cursor) -> Cursor:
    group = session.peers.group
    steps, stopped = torch.zeros(2, group.size, dtype=torch.int64)
    steps[group.rank], stopped[group.rank] = session.step, session.stopped is not None
    group.all_reduce(steps, label="applied steps").wait()
    group.all_reduce(stopped, label="members that have stopped").wait()
    source, furthest = int(steps.argmax().item()), int(steps.max().item())
    if int(steps.min().item()) < furthest:
        cursor = _copy(session, cursor, source=source, furthest=furthest)
    if int(stopped.max().item()) > 0:
        session.agree(f"stop after step {furthest}")
    return cursor


def _copy(session: Session, cursor: Cursor, *, source: int, furthest: int) -> Cursor:
    started, own_step = time.perf_counter(), session.step
    copied = copy_state(state_of(session, cursor), source, session.peers.group)
    if own_step == furthest:
        return cursor
    cursor = load_state(session, copied.state)
    session.peers.report(
        StateCopied(
            worker=session.peers.worker,
            source=session.peers.generation.members[source].worker,
            step=furthest,
            size=copied.size,
            seconds=time.perf_counter() - started,
            reason=f"this worker had applied {own_step} steps and the furthest member {furthest}",
        )
    )
    return cursor


def state_of(session: Session, cursor: Cursor) -> dict[str, Any]:
    """Parameters, buffers, optimizer state, kept objects and the place in the data."""
    return {
        "step": session.step,
        "updates": session.strategy.votes.updates,
        "cursor": [cursor.epoch, cursor.position],
        "models": {
            name: dict([*model.named_parameters(), *model.named_buffers()])
            for name, model in session.watched.models.items()
        },
        "optimizers": [optimizer.state_dict() for optimizer in session.watched.optimizers],
        "kept": {name: thing.state_dict() for name, thing in session.watched.kept.items()},
    }


@torch.no_grad()
def load_state(session: Session, state: dict[str, Any]) -> Cursor:
    for name, model in session.watched.models.items():
        own = dict([*model.named_parameters(), *model.named_buffers()])
        for entry, tensor in state["models"][name].items():
            own[entry].copy_(tensor)
    for optimizer, values in zip(session.watched.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(values)
    for name, thing in session.watched.kept.items():
        thing.load_state_dict(state["kept"][name])
    session.step = state["step"]
    session.strategy.votes.updates = state["updates"]
    epoch, position = state["cursor"]
    return Cursor(epoch=epoch, position=position)
