"""The course of a script that runs alone: `train` from its start to its end, and how it ended, in the record if any.

Imported only there, so that workers of a job start without it. Not here: what a lone script is given and keeps
(`alone`).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.entry import texts
from shoal.entry.alone import AloneJob, settings_alone
from shoal.entry.shoal_main import as_shoal_error, first_lasting, start_session, to_its_end
from shoal.errors import ScriptFailed, ShoalError
from shoal.events import JobEnded
from shoal.membership.record.first_event import as_text
from shoal.membership.texts import STOP_WORDS
from shoal.training.recovery.restart import begin_anew
from shoal.training.run import Run
from shoal.training.session import Session
from shoal.watch.screen.display import announce
from shoal.watch.wording import raised_at

T = TypeVar("T")


def run_alone(train: Callable[[Run], T], options: dict[str, Any]) -> T:
    job = AloneJob(settings_alone(options))
    ended = JobEnded(outcome="failed", exit_code=ScriptFailed.exit_code, reason=texts.RAISED, seconds=0.0)
    session: Session | None = None
    failure: BaseException | None = None
    try:
        lasting = first_lasting(job.peers, job.config, job.store, job.open_place)
        session = start_session(job.peers, job.config, lasting=lasting)
        announce(job.config.progress, alone_words(str(session.device)))
        begin_anew(session, job.store)
        result, session = to_its_end(train, session, partial(start_session, job.peers, job.config), job.store)
        if job.signals.first is not None:
            raise KeyboardInterrupt
        outcome = "stopped" if session.stopped else "finished"
        ended = JobEnded(outcome=outcome, exit_code=0, reason=session.stopped or "the script is done", seconds=0.0)
        if isinstance(result, SystemExit):
            raise result
        return result
    except SystemExit as left:
        failure = left
        if left.code not in (None, 0):
            code = left.code if isinstance(left.code, int) else ScriptFailed.exit_code
            reason = f"the script ended itself with exit code {code}"
            ended = msgspec.structs.replace(ended, exit_code=code, reason=reason)
        raise
    except KeyboardInterrupt:
        code, reason = job.signals.exit_code, job.signals.reason or STOP_WORDS[signal.SIGINT]
        ended = JobEnded(outcome="interrupted", exit_code=code, reason=reason, seconds=0.0)
        raise job.interruption(reason, code) from None
    except BaseException as error:
        failure = error
        known = as_shoal_error(error)
        text = as_text(str(known))
        reason = text if isinstance(error, ShoalError) else f"{texts.RAISED} {raised_at(text)}"
        ended = msgspec.structs.replace(ended, exit_code=known.exit_code, reason=reason)
        job.failed(known, text, step=0 if session is None else session.step)
        if session is not None:
            session.saver.wait()  # what is being written is worth having
        raise
    finally:
        if session is not None:
            session.close()
        last_words = job.end(ended)
        if last_words and isinstance(failure, SystemExit):
            announce("plain", last_words)
        elif last_words and failure is not None:
            failure.add_note(f"shoal: {last_words}")  # Python shows it behind the traceback


def alone_words(device: str) -> str:
    """The first line of a script that was started by itself."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return texts.alone(device, "" if script is None else Path(script).name)
