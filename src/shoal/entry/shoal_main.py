"""What `shoal.main(train)` does: alone in one process, or as a worker of the job that started it.

A worker never prints its own failure: it tells the coordinator, and the launcher shows it once.
"""

from __future__ import annotations

import atexit
import dis
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import msgspec
import torch

from shoal.bounds import Settings
from shoal.checkpoint.stores.opening import FullDiskStore, store_for
from shoal.checkpoint.stores.store import Store
from shoal.data.order import key_of
from shoal.entry import lone_steps, texts
from shoal.environment import WorkerEnvironment, is_worker_itself, worker_environment
from shoal.errors import ExchangeFailed, Interrupted, ScriptFailed, ScriptStartsProcesses, ShoalError, TermsDiffer
from shoal.events import Advised
from shoal.job_config import JobConfig, from_mapping, from_toml
from shoal.membership.client import CoordinatorClient
from shoal.membership.record.first_event import as_text
from shoal.settings.given_by_script import ORIGIN, in_job
from shoal.strategies.choosing import make_strategy
from shoal.strategies.peers.cluster_peers import ClusterPeers
from shoal.strategies.peers.peers import JobOver, Peers
from shoal.strategies.replica.replica import Replica
from shoal.strategies.strategy import Strategy
from shoal.training.lean_torch import spare_compiler
from shoal.training.mistakes import file_hook
from shoal.training.mistakes.truncated_files import TruncatedFiles
from shoal.training.model import devices
from shoal.training.recovery.recovery import join_first
from shoal.training.recovery.restart import Fresh, begin_anew, train_through
from shoal.training.reporting.progress import Progress
from shoal.training.reporting.reporter import Reporter
from shoal.training.run import Run
from shoal.training.saving.saving import OpenPlace, Saver
from shoal.training.session import HandedOver, Lasting, Session

MakeStrategy = Callable[[Replica, JobConfig], Strategy]
T = TypeVar("T")
# What Python itself puts behind a call that is the last thing in a module or a function; names of 3.11 and later.
NOTHING = {"POP_TOP", "LOAD_CONST", "NOP", "STORE_NAME", "STORE_FAST", "STORE_GLOBAL"}
RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
SAME_SIGNAL = 2.0  # seconds within which several SIGTERMs count as one


is_worker = False  # `train` runs in this process as a worker of a job; `torch_autoload` asks


def main(train: Callable[[Run], T], **options: Any) -> T:
    """Run `train` with a `Run`, alone or as a worker of the job that started this process.

    Options are the settings of `shoal run` in Python's spelling, such as `run_dir="runs/one", checkpoint_every=200`.
    Under `shoal run` the command line beats them; what cannot be honoured is refused or told, never ignored.
    """
    spare_compiler()
    lone_steps.cease()
    try:
        environment = worker_environment()
        if environment is None:
            from shoal.entry.lone_script import run_alone  # noqa: PLC0415  a worker of a job does without it

            return run_alone(train, options)
        if not is_worker_itself():
            raise ScriptStartsProcesses(texts.starts_processes(os.getpid(), environment.worker))
        is_last_line = ends_with(sys._getframe(1))
        return _as_worker(train, environment, options, is_last_line=is_last_line)
    except Interrupted as interruption:
        sys.stderr.write(f"shoal: {interruption}\n")
        sys.exit(interruption.exit_code)
    except ShoalError as error:
        sys.stderr.write(f"shoal: error: {error}\n")
        for note in getattr(error, "__notes__", ()):  # the last line of a script that runs alone
            sys.stderr.write(f"{note}\n")
        sys.exit(error.exit_code)


def _as_worker(
    train: Callable[[Run], T], environment: WorkerEnvironment, options: dict[str, Any], *, is_last_line: bool
) -> T:
    """`is_last_line`: nothing of the script comes after this."""
    global is_worker  # noqa: PLW0603  one worker per process
    peers = ClusterPeers(environment)
    session: Session | None = None
    is_worker, in_job, process = True, True, os.getpid()  # `in_job`: until the script is done on all workers
    _heed_sigterm(peers)
    try:
        make = partial(make_strategy, servers=peers.servers)
        session, store, taken = _in_job(peers, make, options)
        fresh = partial(start_session, peers, session.config, make=make)
        session.reporter.files.begin()
        announced = partial(_announced, train, taken)
        result, session = to_its_end(announced, session, fresh, store, is_last_line=is_last_line)
        in_job = False
        if isinstance(result, SystemExit):
            raise result
        return result
    except HandedOver as gone:
        step = session.step if session is not None else 0
        peers.client.leave(step=step, reason=str(gone), is_handover=True)
        sys.exit(0)
    except JobOver as over:
        if over.is_news:
            _fail(peers, over.error, step=session.step if session is not None else 0)
        peers.abandon("the job is over")
        end = peers.client.ended  # a good one is no error of whoever was still waiting to be let in
        sys.exit(over.error.exit_code if end is None or end.error else end.exit_code)
    except BaseException as error:
        if os.getpid() != process:
            raise  # a child that the script forked: the job is its parent's
        if isinstance(error, SystemExit) and not in_job:
            raise  # it left the job in good order
        _fail(peers, error, step=session.step if session is not None else 0)
    finally:
        is_worker = False
        if os.getpid() == process:
            runs_on = not in_job and not is_last_line
            if session is not None:
                session.close()
            peers.close(keeps_line=runs_on)
            if session is not None and runs_on:
                _tell_last_line(peers.client, session.reporter.files, step=session.step)
            else:
                file_hook.unwatch()


def _heed_sigterm(peers: ClusterPeers) -> None:
    """A worker's first SIGTERM makes it hand over at a step's end; one that comes later, or after the job's end, kills
    it.

    Clouds send it to a machine that they take away. Batch systems send it to every process of a job, some of them
    several times at once: then the launcher has asked for a stop, which goes before. Handlers of the script's own are
    left alone.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    process = os.getpid()
    first: list[float] = []  # when it came, by time.monotonic

    def asked(number: int, _frame: object) -> None:
        is_late = bool(first) and time.monotonic() - first[0] > SAME_SIGNAL
        # A child that the script forked, or nobody to hand over to.
        if os.getpid() != process or peers.is_over or is_late:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not first:
            first.append(time.monotonic())
            peers.ask_to_leave(f"worker {peers.worker} got SIGTERM")

    signal.signal(signal.SIGTERM, asked)


def _announced(train: Callable[[Run], T], taken: dict[str, object], run: Run) -> T:
    """The script's first call says which of its settings the job takes over: all workers must have said the same."""
    if taken:
        run._session.script.make(ORIGIN, taken.items())
    return train(run)


def _in_job(
    peers: ClusterPeers, make: MakeStrategy, options: dict[str, Any]
) -> tuple[Session, Store | None, dict[str, object]]:
    """The first workers start together. A newcomer starts alone, and looks for the others when it is built.

    Returns also the script's settings that the job takes over.
    """
    past = None if peers.is_new else join_first(peers)
    config, taken = _job_settings(peers, options)
    store = _store(config)
    if store is not None and config.chaos:
        store = FullDiskStore(store, peers.disk_is_full)
    session = start_session(peers, config, make, lasting=first_lasting(peers, config, store))
    if past is not None:
        session.go_through(past)
    elif not peers.is_new:
        begin_anew(session, store)
    return session, store, taken


def _job_settings(peers: ClusterPeers, options: dict[str, Any]) -> tuple[JobConfig, dict[str, object]]:
    """The job's settings with those of the script that it takes over, and these. Raises UsageError for settings that
    make it another job."""
    config = from_toml(peers.client.config, origin="the coordinator's configuration")
    named = {name.replace("_", "-") for name in options}
    wanted = {name: value for name, value in from_mapping(options, origin=ORIGIN).values().items() if name in named}
    welcome = peers.client.welcome
    taken = in_job(wanted, config.values(), welcome.given, script=welcome.script or "SCRIPT")
    if not peers.is_new and peers.group.rank == 0:
        peers.report(*(Advised(worker=peers.worker, text=text) for text in taken.told))
        if taken.values:
            told = texts.taken_over(taken.values)
            peers.report(Advised(worker=peers.worker, text=told, settings=cast(Settings, taken.values)))
    if "threads" in taken.values:
        torch.set_num_threads(wanted["threads"])  # type: ignore[arg-type]  # checked by `from_mapping`
    fields: dict[str, Any] = {name.replace("-", "_"): value for name, value in taken.values.items()}
    return msgspec.structs.replace(config, **fields).validate(), taken.values


def _store(config: JobConfig) -> Store | None:
    """Where checkpoints go and come from; None where there are none."""
    if not config.run_dir or not (config.checkpoints.at_end or config.resume):
        return None
    return store_for(Path(config.run_dir), config.checkpoint_to)


def to_its_end(
    train: Callable[[Run], T],
    session: Session,
    fresh: Fresh,
    store: Store | None = None,
    *,
    is_last_line: bool = False,
) -> tuple[T | SystemExit, Session]:
    """What `train` returns, once it has on all workers, and the session it ended with. `sys.exit()` without a code is
    a good end too, and is handed back to be raised.
    """
    process = os.getpid()

    def guarded(run: Run) -> T | SystemExit:
        try:
            return train(run)
        except SystemExit as left:
            if left.code not in (None, 0) or os.getpid() != process:
                raise
            return left

    return train_through(guarded, session, fresh, store, is_last_line=is_last_line)


def _fail(peers: ClusterPeers, error: BaseException, *, step: int) -> NoReturn:
    """Tell the coordinator why this worker cannot go on, then leave with the code that belongs to it."""
    known = as_shoal_error(error)
    # An error may quote bytes that are no text, such as parts of a file name.
    peers.client.failed(step=step, error=type(known).__name__, text=as_text(str(known)))
    peers.abandon("this worker failed")
    if isinstance(known, TermsDiffer):
        raise known from None  # the job goes on, and whoever joined it wants to know why this worker does not
    sys.exit(known.exit_code)


def as_shoal_error(error: BaseException) -> ShoalError:
    if isinstance(error, SystemExit):
        is_code = isinstance(error.code, int)
        return ScriptFailed(f"the script ended itself with exit code {error.code}" if is_code else str(error.code))
    if isinstance(error, ShoalError) and not isinstance(error, ExchangeFailed):
        return error
    return ScriptFailed(script_traceback(error))


def script_traceback(error: BaseException) -> str:
    """The traceback as the script's author would see it: from the first frame that is not ours on."""
    frames = error.__traceback__
    ours = str(Path(__file__).parents[1])
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


# A script's last line: a worker that is killed after it costs the job nothing, one that is killed before may leave
# something undone (`membership.finishing`).


def ends_with(frame: FrameType | None) -> bool:
    """Whether the script ends when the call that this frame is in returns. False where that is not certain."""
    while frame is not None and _returns_next(frame):
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return True
        frame = frame.f_back
    return False


def _returns_next(frame: FrameType) -> bool:
    """Whether nothing but a return comes after the call that the frame is in."""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti:
            continue
        if instruction.opname in RETURNS:
            return True
        if instruction.opname not in NOTHING:
            return False
    return False


def _tell_last_line(client: CoordinatorClient, files: TruncatedFiles, *, step: int) -> None:
    """Say that the script has come to its last line, when the interpreter comes to its end. Closes the client then."""
    process = os.getpid()

    def tell() -> None:
        if os.getpid() != process:
            return  # a child that the script forked
        file_hook.unwatch()
        client.report(*files.take())
        if getattr(sys, "last_value", None) is None:  # else the script raised: the exit code says so
            client.leave(step=step, reason="the script is done")
        client.close()

    atexit.register(tell)


def first_lasting(
    peers: Peers, config: JobConfig, store: Store | None = None, open_place: OpenPlace | None = None
) -> Lasting:
    """What lasts while a script starts again. Checkpoints go to `store`; without one there are none.

    `open_place`: makes a place for the first checkpoint that the script asks for.
    """
    return Lasting(Reporter(peers), Progress(peers), Saver(peers, config, store, open_place))


def start_session(peers: Peers, config: JobConfig, make: MakeStrategy = make_strategy, *, lasting: Lasting) -> Session:
    """The session behind a `Run`. Generators start equal everywhere, so that models are built with the same weights.

    `make` builds the strategy. `lasting`: of this worker's session before, where its script starts again.
    """
    replica = Replica(peers)
    session = Session(replica, make(replica, config), config, lasting)
    devices.seed(session.device, key_of(config.seed))
    return session
