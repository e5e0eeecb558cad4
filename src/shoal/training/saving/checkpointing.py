"""The points of a script at which checkpoints are made: after a step, on request, when the job stops, at its end."""

from __future__ import annotations

from shoal.errors import WorkersDisagree
from shoal.events import Advised, CheckpointMarked
from shoal.training import texts
from shoal.training.model.state import changed_buffers, state_dict_keys, state_of, state_size, steady_names
from shoal.training.saving.saving import Moment, Snapshot
from shoal.training.saving.timetable import ASKED
from shoal.training.script.loop_end import wound_back
from shoal.training.script.meetings import cursor_of, is_past, meet
from shoal.training.session import Session
from shoal.values import Cursor


def save_after_step(session: Session, cursor: Cursor) -> None:
    """Make a checkpoint between two steps, if the exchange of the last one said so."""
    due = session.saver.decide(session.replica.votes, step=session.step)
    if due is not None:
        _begin(session, cursor, reason=due.reason, mark=due.mark)
    else:
        session.saver.prepare(lambda: state_size(session) // session.peers.group.size)


def save_here(session: Session, mark: str, *, is_agreed: bool = False) -> None:
    """On the script's request, outside a loop: all workers make one of the state as it is."""
    if not is_agreed:
        session.script.make("checkpoint", [("mark", mark)])
    if is_past(session):
        return  # the checkpoint was made before the script started again
    if not is_agreed:
        is_here = meet(session, f"saving {mark!r}" if mark else "saving", lambda label: _agree(session, label))
        if not is_here:
            return  # members that have passed this meeting began the checkpoint in an earlier generation
    if session.saver.is_on:
        _save(session, mark)


def save_asked(session: Session) -> None:
    """A loop is over: make a checkpoint that was asked for inside and put off, if the exchange showed one."""
    mark = session.saver.take_asked()
    if session.replica.votes.save_seen:
        _save(session, mark or "")  # a newcomer does not know the mark, and need not: the first worker tells it


def _save(session: Session, mark: str) -> None:
    saver = session.saver
    saver.wait()
    if saver.last_step < session.step:
        _begin(session, cursor_of(session), reason=ASKED, mark=mark)
        saver.fence()
    elif mark and session.peers.group.rank == 0:
        if problem := saver.mark_last(mark):
            text = texts.not_marked(session.step, mark, problem)
            session.peers.report(Advised(worker=session.peers.worker, text=text))
        else:
            session.peers.report(CheckpointMarked(checkpoint=saver.last_name, step=session.step, mark=mark))


def save_on_stop(session: Session) -> None:
    """All loops end here: save this state, which is the job's result whatever else the script does."""
    if session.saver.is_on and session.saver.last_step < session.step:
        session.saver.wait()
        _begin(session, cursor_of(session), reason=f"the job stops: {session.stopped}", is_last=True)
        session.saver.fence()


def save_on_handover(session: Session, cursor: Cursor) -> None:
    """All workers leave in the same step: save the state for whoever goes on with the job."""
    if session.saver.is_on and session.saver.last_step < session.step:
        session.saver.wait()
        _begin(session, cursor, reason="all workers hand over", is_last=True)
    session.saver.wait()


def save_at_end(session: Session) -> None:
    """The script is done. What it changed since its last loop, on all workers alike, is part of the result.

    Called again where the members have regrouped since: a lost worker may have taken its part with it.
    """
    saver = session.saver
    while saver.is_on and session.loop is not None and session.place.past is None and saver.last_step < session.step:
        saver.wait()
        try:
            is_here = meet(session, "end of the script", lambda label: _agree(session, label, compare=True))
        except WorkersDisagree as difference:
            if difference.sides is not None:
                raise  # another worker is in another call
            text = texts.no_last_checkpoint(difference)
            session.peers.report(Advised(worker=session.peers.worker, text=text))
            break
        if is_here:  # else members that have passed this meeting began the checkpoint earlier
            _begin(session, cursor_of(session), reason="the script is done", is_last=True)
            saver.wait()
            saver.forget_lost()
            break
    saver.wait()


def _agree(session: Session, label: str, *, compare: bool = False) -> bool:
    """Returns True. A worker that missed the meeting, and takes its result from the others, gets None instead."""
    session.agree(label, compare=compare)
    return True


def _begin(session: Session, cursor: Cursor, *, reason: str, mark: str = "", is_last: bool = False) -> None:
    tree = {
        **state_of(session, cursor, is_whole=True),
        "results": list(session.place.results),
        "keys": state_dict_keys(session),
    }
    tree["changed"] = changed_buffers(session)
    tree["terms"] = {} if session.loop is None else session.loop.terms()
    if session.place.loop_end is not None:
        tree = wound_back(tree, session.place.loop_end)
    moment = Moment(
        step=session.step,
        cursor=cursor,
        loop=session.place.loops,
        first_step=0 if session.loop is None else session.loop.first_step,
        reason=reason,
        mark=mark,
        is_last=is_last,
    )
    session.saver.begin(Snapshot(tree, lambda names: steady_names(session, names)), moment)
