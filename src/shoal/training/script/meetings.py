"""Meetings of all workers outside iterations: at a loop's start, for a mean or an evaluation, before a checkpoint.

Meetings are numbered in program order (`ScriptPlace.points`). A meeting that breaks is held again by the next
generation; a worker that missed the end of one takes its result from a member that was there; a script that runs from
the top goes through meetings that the others have passed without meeting anybody.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, cast

from shoal.collectives.group import Group
from shoal.errors import CheckpointUnusable, ExchangeFailed, TermsDiffer, UsageError
from shoal.events import LoopEnded
from shoal.strategies.peers.peers import Breakage
from shoal.training import texts
from shoal.training.model.state import load_state
from shoal.training.recovery.recovery import enter, recover, take_place
from shoal.training.script.loop_end import LoopEnd, from_tree, group_settings, without_later, wound_back
from shoal.training.script.texts import ADVICE
from shoal.training.session import Session
from shoal.values import THROUGH, Cursor

T = TypeVar("T")


def meet(session: Session, label: str, action: Callable[[str], T]) -> T:
    """Do `action` together with all workers, through any number of regroupings."""
    session.peers.hold()
    while True:
        session.peers.set_position(session.step, label)
        session.peers.reach(THROUGH if session.place.is_through else session.place.points + 1)
        try:
            value = action(label)
        except ExchangeFailed as failure:
            breakage = replace(Breakage.by(failure, session.step, label), point=session.place.points + 1)
            recovered = recover(session, breakage, cursor_of(session), in_place=False)
            if not recovered.has_passed:
                continue
            value = cast(T, recovered.result)
        session.place.pass_meeting()
        session.tell_behind()
        return value


def is_past(session: Session, *, gives: bool = False) -> bool:
    """Whether the members have passed the meeting that this script has come to. Counts it, if so.

    A newcomer finds out here where they are; a script that has gone through all that they have passed takes the state.
    `gives`: the meeting has a result.
    """
    enter(session, gives=gives)
    past = session.place.past
    if past is None and not session.peers.is_new:
        return False
    if past is None or past.is_resumed or session.place.points < past.points:
        session.place.pass_meeting()
        return True
    take_past(session)
    return False


def take_past(session: Session) -> Cursor:
    """The script is where the others are: from now on it has their state."""
    past = session.place.past
    assert past is not None
    session.script.arrive()
    try:
        cursor = load_state(session, past.state)
    except CheckpointUnusable as misfit:
        raise TermsDiffer(f"the state of the job does not fit this worker's script: {misfit}; {ADVICE}") from None
    end = past.state.get("end")
    session.place.arrive(None if end is None else from_tree(end))
    take_place(session, past.state)
    session.held.agree(session.peers.generation.number)
    session.reporter.take_state()
    return cursor


def load_behind(session: Session) -> None:
    """Load the trained model for code after the loop that the others have passed last."""
    past = session.place.past
    if past is None or past.loop != session.place.loops or past.state.get("end") is None:
        return
    load_state(session, without_later(wound_back(past.state, from_tree(past.state["end"]))))


def gather(
    session: Session,
    operation: str,
    action: Callable[[Group, str], T],
    *,
    alone: T,
    terms: Iterable[tuple[str, object]] = (),
) -> T:
    """A collective of the script: in an iteration, where a failure makes it void, or as a meeting with a result.

    `terms` is what all workers must have in common besides the operation.
    """
    if session.iteration is not None:
        if session.strategy.manners.is_free:
            call = "run.evaluate" if operation == "evaluation" else "run.mean"
            raise UsageError(texts.called_while_free(call))
        return session.collective(operation, action, alone=alone)
    session.script.make(operation, terms)
    if is_past(session, gives=True):
        return cast(T, recorded(session))
    named = f"{operation}, meeting {session.place.points + 1}"
    result = meet(session, named, lambda label: action(session.peers.group, f"step {session.step}, {label}"))
    session.place.record(copy.deepcopy(result))  # the script may change its own copy
    session.script.gave(result)
    return result


def recorded(session: Session) -> Any:
    """What this collective gave the others, or gave before the script started again."""
    past = session.place.past
    if past is None:
        result = session.script.result
    elif len(session.place.results) < len(past.results):
        result = past.results[len(session.place.results)]
    else:
        called = len(session.place.results) + 1
        text = texts.more_results_than_recorded(past.loop, called=called, recorded=len(past.results))
        if past.is_resumed:
            raise CheckpointUnusable(texts.resume_same_script(text))
        raise TermsDiffer(f"{text}; {ADVICE}")
    session.place.record(result)
    session.script.gave(result)
    return copy.deepcopy(result)


def cursor_of(session: Session) -> Cursor:
    return Cursor() if session.loop is None else session.loop.cursor


def end_of_loop(session: Session) -> str:
    """The name of the meeting at a loop's end, however the script gets there."""
    return texts.end_of_loop(session.place.loops, session.steps_done)


def mark_loop_end(session: Session) -> None:
    """The meeting at the end of a loop was passed: the script's own code comes next."""
    session.seed_outside()
    loop, digest = session.loop, session.replica.compared
    assert loop is not None
    if digest is None and session.peers.group.size > 1:  # this worker took the meeting's result from another
        digest = session.replica.digest()
    end = LoopEnd(
        loop=session.place.loops,
        points=session.place.points - 1,
        first_step=loop.first_step,
        cursor=loop.cursor,
        kept={name: copy.deepcopy(thing.state_dict()) for name, thing in session.watched.kept.items()},
        groups=group_settings(session.watched.optimizers),
        results=len(session.place.results),
        calls=len(session.script.own),
        models=tuple(session.watched.models),
        digest=digest,
    )
    session.place.stand_behind(end)
    session.tell_behind()
    session.peers.reach(session.place.points)


def leave_loop(session: Session) -> None:
    """All workers are through with the loop."""
    session.place.leave_loop()
    session.reporter.send(step=session.step, now=True)
    if session.peers.group.rank == 0:
        session.peers.report(LoopEnded(loop=session.place.loops, step=session.step))
