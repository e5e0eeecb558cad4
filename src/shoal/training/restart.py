"""When a script raises in a void iteration, or leaves its loop there: `train` is called again, as a newcomer.

The iteration did not count, so neither does what the script made of it. The worker regroups with the others, keeps the
state that all agreed on, and runs the script from the top: `run` calls are numbered in program order, loops that are
over yield nothing, recorded results are handed out again, and the current loop goes on where the others are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shoal.events import Advised
from shoal.training.checkpointing import save_at_end
from shoal.training.recovery import recover, undo_void
from shoal.training.run import Run
from shoal.training.session import Past, Session, StartAgain
from shoal.training.state import state_of

T = TypeVar("T")


def train_through(train: Callable[[Run], T], session: Session, fresh: Callable[[], Session]) -> tuple[T, Session]:
    """Call `train` until it gets through. Returns its result and the session it ended with, settled.

    `fresh` makes a session for a script that starts from the top.
    """
    while True:
        try:
            result = train(Run(session))
            session.finish()
            save_at_end(session)
            return result, session
        except (Exception, StartAgain) as error:
            iteration = session.iteration
            if iteration is None or iteration.breakage is None or not iteration.is_void:
                raise
            session = _start_again(session, error, fresh)


def _start_again(session: Session, error: BaseException, fresh: Callable[[], Session]) -> Session:
    loop, iteration = session.loop, session.iteration
    assert loop is not None and iteration is not None and iteration.breakage is not None
    what = "left its loop" if isinstance(error, StartAgain) else f"raised {type(error).__name__}"
    text = f"the script {what} in step {iteration.step}, which does not count; it starts again from the top"
    session.peers.report(Advised(worker=session.peers.worker, text=text))
    session.give_up_iteration()
    undo_void(session, iteration.breakage)
    cursor = recover(session, iteration.breakage, loop.cursor)
    newcomer = fresh()
    newcomer.past = Past(
        state=state_of(session, cursor), loop=session.loops, first_step=loop.first_step, results=tuple(session.results)
    )
    newcomer.reporter = session.reporter
    # The old session is closed below; checkpoints on their way go on.
    newcomer.saver, session.saver = session.saver, newcomer.saver
    newcomer.strategy.votes.stop = session.strategy.votes.stop
    session.close()
    return newcomer
