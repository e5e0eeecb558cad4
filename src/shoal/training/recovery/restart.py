"""When a script has to run from the top again in the same process: `train` is called again, as a newcomer.

This happens when the script raises in a void iteration, or leaves its loop there: the iteration did not count, so
neither does what the script made of it. It also happens when the others are elsewhere in the script, or when all go
back to a checkpoint. Calls of `run` are numbered in program order: loops that are over yield nothing, recorded results
are handed out again, and the current loop goes on where the others are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.checkpoint.stores.store import Store
from shoal.errors import ExchangeFailed, UsageError, WorkersDisagree
from shoal.events import Advised
from shoal.strategies.peers.peers import Breakage
from shoal.terms import calls_apart
from shoal.training import texts
from shoal.training.mistakes.step_watch import StepWatch
from shoal.training.recovery.recovery import finish_together, own_past, recover, undo_void
from shoal.training.run import Run
from shoal.training.saving.checkpointing import save_at_end
from shoal.training.saving.resume import resume
from shoal.training.script.past import StartAgain
from shoal.training.script.settling import finish
from shoal.training.session import Lasting, Session
from shoal.values import THROUGH, Cursor

T = TypeVar("T")


class Fresh(Protocol):
    """Makes a session for a script that starts from the top."""

    def __call__(self, *, lasting: Lasting) -> Session: ...


def train_through(
    train: Callable[[Run], T],
    session: Session,
    fresh: Fresh,
    store: Store | None = None,
    *,
    is_last_line: bool = False,
) -> tuple[T, Session]:
    """Call `train` until it gets through, on all workers. Returns its result and the session it ended with, settled.

    `fresh` makes a session for a script that starts from the top; `store` has the job's checkpoints. `is_last_line`:
    nothing of the script comes after `train`.
    """
    while True:
        try:
            with StepWatch(session) as watch:
                result = train(Run(session))
                watch.end()
            finish(session)
            if is_last_line:
                session.place.run_out()
                session.peers.reach(THROUGH)
            save_at_end(session)
            while not finish_together(session):
                save_at_end(session)
            return result, session
        except SystemExit:
            _keep_last(session)
            raise
        except (Exception, StartAgain) as error:
            again = _what_it_goes_on_with(session, _explained(session, error))
            session = _start_again(session, again, fresh, store)


def _explained(session: Session, error: BaseException) -> BaseException:
    """In place of the names of two operations, the calls of the script that do not fit together."""
    if not isinstance(error, WorkersDisagree) or error.sides is None:
        return error
    members = session.peers.generation.members
    first, second = ((members[rank].worker, label) for rank, label in error.sides)
    text = calls_apart(first, second)
    return error if text is None else UsageError(text)


def begin_anew(session: Session, store: Store | None, *, trusted: int | None = None) -> None:
    """All workers of the generation start together: from the newest checkpoint, or from the top if there is none.

    Checkpoints of steps after `trusted` are not used.
    """
    session.peers.drop_residual("all workers begin anew")
    is_first = session.peers.generation.number == 1
    while store is not None and (session.config.resume or not is_first):
        try:
            resume(session, store, must_find=bool(session.config.resume), trusted=trusted)
            return
        except ExchangeFailed as failure:
            breakage = Breakage(0, "finding the newest checkpoint", str(failure), failure.peer)
            try:
                recover(session, breakage, Cursor())
            except StartAgain as again:
                if again.past is not None:
                    session.go_through(again.past)
                    return


def _what_it_goes_on_with(session: Session, error: BaseException) -> StartAgain:
    """What a script that must start again goes on with. Raises an error of the script's own in a step that counts."""
    if isinstance(error, StartAgain) and error.is_settled:
        return error
    loop, iteration = session.loop, session.iteration
    if loop is None or iteration is None or iteration.breakage is None or not iteration.is_void:
        _keep_last(session)
        raise error
    what = "left its loop" if isinstance(error, StartAgain) else f"raised {type(error).__name__}"
    text = texts.starts_again(what, iteration.step)
    session.peers.report(Advised(worker=session.peers.worker, text=text))
    session.give_up_iteration()
    undo_void(session, iteration)
    try:
        past = own_past(session, recover(session, iteration.breakage, loop.cursor).cursor)
        return StartAgain(text, past, is_settled=True)
    except StartAgain as again:
        return again


def _keep_last(session: Session) -> None:
    """Wait for the checkpoint of a stop, so that a script which fails after the stop does not lose it."""
    if session.stopped is not None:
        session.saver.wait()


def _start_again(session: Session, again: StartAgain, fresh: Fresh, store: Store | None) -> Session:
    newcomer = fresh(lasting=session.lasting)
    newcomer.peers.reach(0)
    newcomer.replica.votes.ask_stop(session.replica.votes.stop)
    session.close(starts_again=True)
    if again.past is not None:
        newcomer.go_through(again.past)
    else:
        newcomer.saver.start_over()
        begin_anew(newcomer, store, trusted=again.trusted)
    return newcomer
