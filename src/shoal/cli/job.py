"""One job on this machine from start to end: makes what it needs, starts the processes, clears up.

What happens in between is `launcher`'s.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import msgspec

from shoal.cli import chaos, checkpoint_place, run_directory
from shoal.cli.aftermath import put_in_order, record_size
from shoal.cli.job_servers import check_group, group_key_file, open_servers, space_name
from shoal.cli.last_report import leave_report
from shoal.cli.launcher import Equipment, Launcher
from shoal.cli.line import CoordinatorLine
from shoal.cli.orders import Finish
from shoal.cli.plaintext import spoken_plaintext
from shoal.cli.plan import (
    Job,
    check_script,
    check_size,
    coordinator_process,
    held_port,
    public,
    reachable,
    worker_processes,
)
from shoal.cli.resume import strangers_hand
from shoal.cli.screen import Screen
from shoal.cli.signals import caught_signals
from shoal.cli.tables import printable
from shoal.cli.token_file import token_file
from shoal.engines.local import LocalEngine
from shoal.environment import likely_typos, parse_address, worker_environment
from shoal.job_config import JobConfig
from shoal.membership.coordinator import open_listener
from shoal.membership.watcher import WatcherClient
from shoal.values import Address
from shoal.watch import open_display
from shoal.wire.token_file import new_token

CONNECT_TIMEOUT = 300.0  # seconds for the coordinator's process to come up; it may have a slow store to look at first


def run_job(config: JobConfig, script: str, arguments: tuple[str, ...]) -> int:
    """Run the job and return its exit code. Mistakes that can be seen before anything starts raise `ShoalError`."""
    check_script(script)
    check_size(config)
    clauses = chaos.parse(config.chaos)
    for doubt in chaos.doubts(clauses, workers=config.workers, servers=config.server_count):
        print(f"shoal: {doubt}", file=sys.stderr)
    check_group(config)
    worker_environment()  # what is wrong with it is said once here rather than by every worker
    for doubt in likely_typos():
        print(f"shoal: warning: {doubt}", file=sys.stderr)
    if config.resume and (whose := strangers_hand(Path(config.run_dir))):
        command = shlex.join((str(Path(script).absolute()), *arguments))
        print(printable(f"shoal: {whose}; about to run {command}"), file=sys.stderr, flush=True)
    with contextlib.ExitStack() as stack:
        held = _earlier_run(config, stack)
        stack.enter_context(spoken_plaintext(config.plaintext))
        token = new_token()
        listener = stack.enter_context(open_listener(parse_address(config.address, named="--address"), token))
        config = msgspec.structs.replace(config, address=str(_bound(listener)))  # for whoever looks for it
        private = stack.enter_context(token_file(token))
        if held is None:
            directory = run_directory.create(config, script)
            stack.enter_context(directory.lock)
        else:
            directory = run_directory.reopen(config, held)
        job = Job(
            config=directory.config,
            script=script,
            arguments=arguments,
            run_dir=directory.path,
            token_file=private,
            coordinator=reachable(_bound(listener)),
            group_key_file=group_key_file(config, token, stack),
            master_port=stack.enter_context(held_port()).getsockname()[1],
            record_start=record_size(directory.path),
            space=space_name(directory.path) if config.strategy == "parameter-server" else "",
        )
        stack.enter_context(_way_in(job, _bound(listener)))
        finish = _start_and_see_to(job, listener, directory.lock, stack, token)
        put_in_order(job, finish, directory.settings_before)
    # The lock is free by now: a job that left no end in its record counts as crashed, not as running.
    leave_report(job.run_dir, open_it=job.config.open)
    return finish.exit_code


def _earlier_run(config: JobConfig, stack: contextlib.ExitStack) -> FileIO | None:
    """The lock of the run that is resumed; None for a new job. Checks that there is one to go on with, or to be."""
    if config.resume:
        lock = stack.enter_context(run_directory.hold(Path(config.run_dir)))
        checkpoint_place.require_checkpoint(config)
        return lock
    if config.checkpoint_to and config.run_dir:  # a name that the launcher makes up has the time in it
        checkpoint_place.refuse_anothers(config)
    return None


@contextlib.contextmanager
def _way_in(job: Job, bound: Address) -> Iterator[None]:
    """While the block runs, the run directory says how to add a worker to the job."""
    path = job.run_dir / run_directory.JOIN
    aside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):  # what cannot be written is said elsewhere
        aside.write_text(f"shoal join {public(bound)} --token-file {job.token_file}\n", encoding="utf-8")
        aside.replace(path)  # whatever is there
    try:
        yield
    finally:
        for file in (aside, path):
            with contextlib.suppress(OSError):
                file.unlink()


def _start_and_see_to(
    job: Job, listener: socket.socket, lock: FileIO, stack: contextlib.ExitStack, token: str
) -> Finish:
    """Start the processes and wait for the end of the job."""
    signals = stack.enter_context(caught_signals())
    private = (job.token_file,) if job.group_key_file is None else (job.token_file, job.group_key_file)
    engine = stack.enter_context(contextlib.closing(LocalEngine(private)))
    servers, keeper = open_servers(job, engine, token, stack)
    job = replace(job, servers=keeper)
    coordinator = coordinator_process(job, listener, lock)
    engine.start(coordinator)
    for spec in worker_processes(job):
        engine.start(spec)
    screen = Screen(open_display(job.config.progress, job.config.workers), workers=job.config.workers)
    stack.callback(screen.close)
    line = CoordinatorLine(lambda: WatcherClient.connect(job.coordinator, token, timeout=CONNECT_TIMEOUT))
    stack.callback(line.close)
    launcher = Launcher(job, Equipment(engine, screen, signals, line, coordinator, servers))
    finish = launcher.run()
    screen.conclude(finish, job, launcher.last_lines(finish.lost_worker))
    return finish


def _bound(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host=host, port=port)
