"""One job from start to end: makes what it needs on this machine, starts the processes, cleans up.

Not here: what happens while the job runs (`launcher_loop`).
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path

import msgspec

from shoal.disk import checkpoint_place, run_directory
from shoal.disk.aftermath import put_in_order, record_size
from shoal.disk.job_token import token_file
from shoal.disk.last_report import leave_report
from shoal.disk.resuming import strangers_hand
from shoal.engines.engine import Engine
from shoal.engines.local import LocalEngine
from shoal.entry.function_script import title_of
from shoal.environment import likely_typos, parse_address, worker_environment
from shoal.errors import printable
from shoal.events import JobEnded
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.chaos import clauses as chaos
from shoal.launching.coordinator_line import CoordinatorLine
from shoal.launching.elsewhere.chosen import chosen_engine
from shoal.launching.elsewhere.gathering import Elsewhere
from shoal.launching.from_python.travelling import check_function
from shoal.launching.launcher_loop import Equipment, LauncherLoop
from shoal.launching.plaintext import spoken_plaintext
from shoal.launching.processes.running import Processes
from shoal.launching.processes.specs import (
    Job,
    check_script,
    check_size,
    coordinator_process,
    held_port,
    public,
    reachable,
    worker_processes,
)
from shoal.launching.screen import Closing, Screen, copies_warning, gathering, has_checkpoint, opening, verdict
from shoal.launching.servers.job_servers import check_group, group_key_file, open_servers, space_name
from shoal.launching.signals import caught_signals
from shoal.launching.supervision.orders import FinishJob
from shoal.membership.coordinator import open_listener
from shoal.membership.watcher import WatcherClient
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.values import Address
from shoal.watch.screen.display import announce, open_display
from shoal.watch.screen.slow_work import told_if_slow
from shoal.wire.token_file import new_token

CONNECT_TIMEOUT = 300.0  # seconds for the coordinator's process to start; it may have to read a slow store first


@dataclass(frozen=True)
class EndedJob:
    run_dir: Path
    finish: FinishJob

    @property
    def exit_code(self) -> int:
        return self.finish.exit_code


@dataclass(frozen=True)
class _Means:
    """What a job's processes are started with."""

    token: str
    listener: socket.socket
    lock: FileIO
    engine: Engine | None  # of workers and servers; None: this machine's


def run_job(
    config: JobConfig,
    script: str,
    arguments: tuple[str, ...],
    *,
    open_engine: Callable[[], Engine] | None = None,
    private_files: tuple[Path, ...] = (),
) -> EndedJob:
    """Run the job to its end. Mistakes that can be seen before anything starts raise `ShoalError`.

    `open_engine` makes the engine that starts the workers, possibly on other machines; None: on this one. The
    coordinator always runs on this machine. `private_files` are removed, each with its folder, if this process is
    killed.
    """
    elsewhere = check_job(config, script, arguments, brings_engine=open_engine is not None)
    config = config if elsewhere is None else elsewhere.config
    clauses = chaos.parse(config.chaos)
    for doubt in chaos.doubts(clauses, workers=config.workers, servers=config.of(ParameterServerSettings).server_count):
        print(f"shoal: {doubt}", file=sys.stderr)
    for doubt in likely_typos():
        print(f"shoal: warning: {doubt}", file=sys.stderr)
    if config.resume and (whose := strangers_hand(Path(config.run_dir))):
        command = shlex.join((str(Path(script).absolute()), *arguments))
        print(printable(f"shoal: {texts.about_to_run(whose, command)}"), file=sys.stderr, flush=True)
    if elsewhere is not None:  # the nodes may take long to come together
        announce(config.progress, gathering(config, title_of(script, arguments)))
    with contextlib.ExitStack() as stack:
        held = _earlier_run(config, stack)
        stack.enter_context(spoken_plaintext(config.plaintext))
        token = new_token()
        listener = stack.enter_context(open_listener(parse_address(config.address, named="--address"), token))
        config = msgspec.structs.replace(config, address=str(_bound(listener)))  # the real port, for config.toml
        engine = None if open_engine is None else open_engine()
        engine = engine if elsewhere is None else elsewhere.open_engine(_bound(listener))
        if engine is not None:
            stack.enter_context(contextlib.closing(engine))
        private = stack.enter_context(token_file(token))
        if held is None:
            directory = run_directory.create(config, title_of(script, arguments))
            stack.enter_context(directory.lock)
        else:
            directory = run_directory.reopen(config, held)
        job = Job(
            config=directory.config,
            script=script,
            arguments=arguments,
            run_dir=directory.path,
            token_file=private,
            coordinator=(reachable if engine is None else public)(_bound(listener)),
            group_key_file=group_key_file(config, token, stack),
            master_port=stack.enter_context(held_port()).getsockname()[1],
            record_start=record_size(directory.path),
            private_files=private_files,
            is_elsewhere=engine is not None,
            space=space_name(directory.path) if config.has(ParameterServerSettings) else "",
        )
        stack.enter_context(_way_in(job, _bound(listener)))
        announce(config.progress, opening(job))
        means = _Means(token, listener, directory.lock, engine)
        finish, closing = _start_and_see_to(job, means, stack)
        put_in_order(job.run_dir, job.record_start, _end_of(finish), directory.settings_before)
    # The lock is free by now: a job that left no end in its record counts as crashed, not as running.
    with told_if_slow(texts.WRITING_REPORT):
        leave_report(job.run_dir, open_it=job.config.open)
    _say_how_it_ended(finish, job, closing)
    if elsewhere is not None and elsewhere.make_way is not None and finish.exit_code == 128 + signal.SIGTERM:
        elsewhere.make_way()
    return EndedJob(job.run_dir, finish)


def check_job(
    config: JobConfig, script: str, arguments: tuple[str, ...], *, brings_engine: bool = False
) -> Elsewhere | None:
    """Mistakes that can be seen before anything starts raise `ShoalError`. Starts nothing, and says nothing.

    Returns the engine of `--on`, if it is not this machine's. `brings_engine`: the caller has another one.
    """
    check_script(script)
    elsewhere = None if brings_engine else chosen_engine(config, script, arguments)
    config = config if elsewhere is None else elsewhere.config
    check_function(script, arguments, Path(config.run_dir))
    check_size(config)
    chaos.parse(config.chaos)
    with told_if_slow(texts.REACHING_SERVERS):
        check_group(config)
    worker_environment()  # report a mistake in it once here, not in every worker
    return elsewhere


def check_places(config: JobConfig) -> None:
    """Raises `ShoalError` if the run directory is taken, or there is nothing to go on from."""
    with contextlib.ExitStack() as stack:
        if _earlier_run(config, stack) is None:
            run_directory.refuse_taken(config)


def _say_how_it_ended(finish: FinishJob, job: Job, closing: Closing) -> None:
    """The last line; before it a warning, where a job that seems to have gone well did not do what it seems."""
    is_quiet = finish.exit_code == 0 and job.config.progress == "none"
    if finish.exit_code == 0 and (doubt := copies_warning(job, closing)):
        announce("plain", f"warning: {doubt}")
    if not is_quiet:
        announce("plain", verdict(finish, job, closing, can_resume=has_checkpoint(job)))


def _earlier_run(config: JobConfig, stack: contextlib.ExitStack) -> FileIO | None:
    """The lock of the run that is resumed; None for a new job. Checks that checkpoints are there, or not in the way."""
    with told_if_slow(texts.reading_checkpoints(config.checkpoint_to or config.run_dir)):
        if config.resume:
            lock = stack.enter_context(run_directory.hold(Path(config.run_dir)))
            checkpoint_place.require_checkpoint(config)
            return lock
        if config.checkpoint_to and config.run_dir:  # a name that the launcher chooses has the time in it
            checkpoint_place.refuse_anothers(config)
    return None


@contextlib.contextmanager
def _way_in(job: Job, bound: Address) -> Iterator[None]:
    """While the block runs, the run directory says how to add a worker to the job."""
    path = job.run_dir / run_directory.JOIN
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):  # what cannot be written is said elsewhere
        aside.write_text(f"shoal join {public(bound)} --token-file {job.token_file}\n", encoding="utf-8")
        aside.replace(path)  # even if something is there
    try:
        yield
    finally:
        for file in (aside, path):
            with contextlib.suppress(OSError):
                file.unlink()


def _start_and_see_to(job: Job, means: _Means, stack: contextlib.ExitStack) -> tuple[FinishJob, Closing]:
    """Start the processes and wait for the end of the job."""
    signals = stack.enter_context(caught_signals())
    keys = (job.token_file,) if job.group_key_file is None else (job.token_file, job.group_key_file)
    home = stack.enter_context(contextlib.closing(LocalEngine((*keys, *job.private_files))))
    processes = Processes(home, means.engine)
    servers, keeper = open_servers(job, processes, means.token, stack)
    job = replace(job, servers=keeper)
    coordinator = coordinator_process(job, means.listener, means.lock)
    processes.start(coordinator)
    for worker in worker_processes(job):
        processes.start(worker)
    screen = Screen(open_display(job.config.progress, job.config.workers), workers=job.config.workers)
    stack.callback(screen.close)
    line = CoordinatorLine(lambda: WatcherClient.connect(job.coordinator, means.token, timeout=CONNECT_TIMEOUT))
    stack.callback(line.close)
    launcher = LauncherLoop(job, Equipment(processes, screen, signals, line, coordinator, servers))
    finish = launcher.run()
    screen.conclude(finish, job, launcher.last_lines(finish.lost_worker))
    return finish, screen.closing


def _end_of(finish: FinishJob) -> JobEnded | None:
    """The end of a job whose coordinator was killed with it; None where there was an error."""
    if finish.error:
        return None
    return JobEnded(outcome="interrupted", exit_code=finish.exit_code, reason=finish.text, seconds=0.0)


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host=host, port=port)
