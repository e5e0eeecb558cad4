"""A loop that was left in the middle, the start of an epoch, and the end of the script."""

from __future__ import annotations

from shoal.errors import CheckpointUnusable, TermsDiffer, UsageError
from shoal.training import texts
from shoal.training.open_batch import is_step
from shoal.training.recovery.recovery import enter
from shoal.training.saving.checkpointing import save_here, save_on_stop
from shoal.training.script.meetings import end_of_loop, is_past, leave_loop, mark_loop_end, meet, take_past
from shoal.training.script.past import StartAgain
from shoal.training.script.texts import ADVICE
from shoal.training.session import Session


def settle(session: Session) -> None:
    """Settle a loop that was left by `break` or `return`: fine if all workers left it in the same step.

    Called at the script's next call of `run`, not when the loop's generator is closed: that also happens while an
    exception is on its way out, and then there is nothing to agree on.
    """
    iteration = session.iteration
    if not session.batch.was_left or iteration is None:
        return
    if iteration.is_void:
        raise StartAgain("it left its loop")
    counts = is_step(iteration)
    if session.strategy.manners.has_stretches:  # the stretch ends here, however few steps it has
        iteration.meets = True
        session.strategy.finish(iteration)
        if iteration.is_void:
            raise StartAgain("it left its loop")
    session.batch.settle()
    point = end_of_loop(session)
    session.conclude(iteration, counts=counts)
    if session.loop is not None:
        session.loop.leave()
    session.saver.vote_asked(session.replica.votes)
    meet(session, point, lambda label: session.agree(label, compare=True))
    leave_loop(session)
    mark_loop_end(session)
    mark = session.saver.take_asked()
    if session.replica.votes.save_seen:
        save_here(session, mark or "", is_agreed=True)  # asked for in the iteration that was left


def stops_before(session: Session, epoch: int) -> bool:
    """Whether all workers end their loops before this epoch of `run.epochs`: they meet before each to agree on it."""
    settle(session)
    if session.iteration is not None:
        raise UsageError(texts.LOOP_IN_LOOP)
    session.script.make("epoch")
    if is_past(session, gives=True):
        past = session.place.past
        reason = session.script.result if past is None else session.place.past_stop
    else:
        point = f"start of epoch {epoch + 1}, meeting {session.place.points + 1}"
        is_here = meet(session, point, lambda label: _agree_on_stop(session, label))
        reason = session.stopped
        if reason is not None and is_here:  # else members that have passed this meeting began the checkpoint earlier
            save_on_stop(session)
    if reason is not None:
        session.place.end_epochs(reason)
    session.script.gave(reason)
    return reason is not None


def _agree_on_stop(session: Session, label: str) -> bool:
    """Returns True. A worker that missed the meeting gets None from the others instead."""
    session.agree(label)
    return True


def finish(session: Session) -> None:
    """The script has come to its end: settle a loop that was left, also one whose iterator is still around."""
    if session.iteration is not None:
        session.batch.leave()
    settle(session)
    session.reporter.tell_files()
    enter(session, at_end=True)
    past = session.place.past
    session.script.end()
    if past is not None and not past.is_resumed:
        if past.in_loop:
            raise TermsDiffer(f"the script came to its end before it was where the job is; {ADVICE}")
        # The others' scripts have made the same calls: more meetings can only be those for the last checkpoint.
        session.place.come_to_end(past.points)
        take_past(session)
    if past is not None and past.is_resumed and session.saver.last_step > 0:
        name, loops = session.saver.last_name, session.place.loops
        raise CheckpointUnusable(texts.checkpoint_not_reached(name, loops=loops, loop=past.loop))
