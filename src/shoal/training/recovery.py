"""After a failed exchange: the next generation, and one state for all its members.

Members differ by at most one applied step, because a step is applied only after its whole reduction. Whoever is
furthest is the source; whoever is behind copies its state and its place in the data. This runs only between batches.
"""

from __future__ import annotations

import time

import torch

from shoal.checkpoint.peer_copy import copy_state
from shoal.errors import ExchangeFailed
from shoal.events import StateCopied, StepVoided
from shoal.strategies.peers import Breakage
from shoal.training.session import Session
from shoal.training.state import load_state, state_of
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
    session.saver.fence()
    while True:
        session.strategy.rebind()
        session.peers.regroup(breakage)
        try:
            cursor = _align(session, cursor)
            session.is_doubtful, session.calls = False, 0
            return cursor
        except ExchangeFailed as failure:
            breakage = Breakage(session.step, "copying the state", str(failure), failure.peer)


def _align(session: Session, cursor: Cursor) -> Cursor:
    group = session.peers.group
    members = torch.zeros(3, group.size, dtype=torch.int64)
    members[:, group.rank] = torch.tensor([session.step, session.stopped is not None, session.is_doubtful])
    group.all_reduce(members, label="where the members are").wait()
    steps, stopped, doubtful = members
    furthest = int(steps.max().item())
    # Among the furthest, one whose script saw the same values as the others.
    source = int((2 * steps - doubtful).argmax().item())
    if int(steps.min().item()) < furthest or int(doubtful.max().item()) > 0:
        cursor = _copy(session, cursor, source=source, furthest=furthest)
    if int(stopped.max().item()) > 0:
        session.agree(f"stop after step {furthest}")
    return cursor


def _copy(session: Session, cursor: Cursor, *, source: int, furthest: int) -> Cursor:
    started, own_step = time.perf_counter(), session.step
    copied = copy_state(state_of(session, cursor), source, session.peers.group)
    if session.peers.group.rank == source or (own_step == furthest and not session.is_doubtful):
        return cursor
    cursor = load_state(session, copied.state)
    session.peers.report(
        StateCopied(
            worker=session.peers.worker,
            source=session.peers.generation.members[source].worker,
            step=furthest,
            size=copied.size,
            seconds=time.perf_counter() - started,
            reason=f"this worker had applied {own_step} steps and the furthest member {furthest}"
            if own_step < furthest
            else "this worker's script saw a collective fail that others saw succeed",
        )
    )
    return cursor
