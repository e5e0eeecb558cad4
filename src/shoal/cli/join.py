"""`shoal join ADDRESS --token-file FILE`: adds one worker, on this machine, to a job that runs somewhere.

A small launcher for one process: asks the coordinator for a number, starts the job's script under it, passes its output
on, and leaves with its exit code. Ctrl-C makes the worker hand over. Not here: the job itself (`run`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.line import Broke, Connected, CoordinatorLine
from shoal.cli.options import Parser
from shoal.cli.plan import Job, check_script, worker_name, worker_process
from shoal.cli.signals import Signals, caught_signals
from shoal.cli.token_file import read_token
from shoal.engines.engine import Engine, Exited, Printed, describe_exit
from shoal.engines.local import LocalEngine
from shoal.environment import in_plaintext, likely_typos, parse_address
from shoal.errors import AddressUnavailable, Interrupted, Refused, ShoalError, UsageError, by_name
from shoal.events import StorageFailed
from shoal.job_config import from_toml
from shoal.membership.watcher import WatcherClient
from shoal.values import Address
from shoal.wire.messages import Ended, Enlisted, Happened, Welcome

CONNECT_SECONDS = 30.0  # for the coordinator to answer the first time
RECONNECT_SECONDS = 660.0  # for it to be back: a worker waits no longer for it either
RECONNECT_PAUSE = 1.0  # seconds between two tries
LOOK_SECONDS = 1.0  # between two looks, when nothing happens
LAST_STEPS = 10.0  # seconds that the worker may take to end once the job has ended
DESCRIPTION = """\
Adds one worker on this machine to a running job. ADDRESS is where its coordinator listens and FILE holds the job's
token: the file that `shoal show RUN` names, or a private copy of it on another machine. SCRIPT and its arguments are
the job's own unless given; a relative script is looked for in the current folder. Ctrl-C hands the worker's place over
at the end of a step."""
USAGE = "shoal join ADDRESS --token-file FILE [--threads N] [SCRIPT [its arguments]]"


def parser() -> Parser:
    made = Parser(prog="shoal join", description=DESCRIPTION, usage=USAGE)
    made.add_argument("--token-file", dest="token_file", required=True, metavar="FILE", help="file with the token")
    made.add_argument("--threads", type=int, default=0, metavar="N", help="torch threads; default as the job has it")
    made.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the job's coordinator")
    made.add_argument("script", nargs="?", metavar="SCRIPT", help="default the job's script")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(_options_first(arguments))
    if parsed.threads < 0:
        raise UsageError(f"--threads is {parsed.threads}; it should be 0 (as the job has it) or more")
    address = parse_address(parsed.address, named="ADDRESS")
    if not address.port:
        raise UsageError(
            f"ADDRESS is {parsed.address!r}, without a port; it should be HOST:PORT, as `shoal show RUN` names it"
        )
    token_file = Path(parsed.token_file).absolute()
    token = read_token(token_file)
    for doubt in likely_typos():
        print(f"shoal: warning: {doubt}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        client = WatcherClient.connect(address, token, timeout=CONNECT_SECONDS, is_launcher=False)
        signals = stack.enter_context(caught_signals())
        line = CoordinatorLine(lambda: _reconnect(address, token), client)
        stack.callback(line.close)
        job = _job(client.welcome, parsed, address, token_file)
        stack.enter_context(in_plaintext(job.config.plaintext))
        engine = stack.enter_context(contextlib.closing(LocalEngine()))
        return _Joining(job, _Equipment(engine, line, signals)).run()


def _options_first(arguments: Sequence[str]) -> list[str]:
    """With ADDRESS after the options: argparse would take what follows it for the script and its arguments."""
    end = 1
    while end < len(arguments) and arguments[end].startswith("-") and not arguments[0].startswith("-"):
        end += 1 if "=" in arguments[end] or arguments[end] in ("-h", "--help") else 2
    return [*arguments[1:end], *arguments[:1], *arguments[end:]]


def _job(welcome: Welcome, parsed: argparse.Namespace, address: Address, token_file: Path) -> Job:
    """The job's own script and arguments, unless others are given."""
    script, rest = parsed.script, tuple(parsed.arguments)
    if script is None:
        script, rest = welcome.script, welcome.arguments
        if not script:
            raise UsageError(f"the job at {address} names no script; use `{USAGE}`")
    check_script(script)
    config = from_toml(welcome.config, origin="the coordinator's configuration")
    return Job(
        config=config,
        script=script,
        arguments=rest,
        run_dir=Path(config.run_dir),
        token_file=token_file,
        coordinator=address,
        threads=parsed.threads,
    )


def _reconnect(address: Address, token: str) -> WatcherClient:
    limit = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            return WatcherClient.connect(address, token, timeout=RECONNECT_PAUSE, is_launcher=False)
        except AddressUnavailable:
            if time.monotonic() > limit:
                raise
            time.sleep(RECONNECT_PAUSE)


@dataclass(frozen=True)
class _Equipment:
    engine: Engine
    line: CoordinatorLine
    signals: Signals


class _Joining:
    """One worker's process from its number to its end."""

    def __init__(self, job: Job, equipment: _Equipment) -> None:
        self._job = job
        self._engine = equipment.engine
        self._line = equipment.line
        self._signals = equipment.signals
        self._worker: int | None = None
        self._is_handing_over = False
        self._code: int | None = None  # what this command ends with
        self._ended: Ended | None = None
        self._exit_code: int | None = None  # of the worker's process
        self._limit = float("inf")  # when the worker must have ended

    def run(self) -> int:
        self._line.send(lambda client: client.enlist())
        while self._code is None:
            self._wait()
            for number in self._signals.take():
                self._signalled(number)
            self._look()
            if self._code is None and time.monotonic() >= self._limit:
                self._engine.stop(grace=0.5)
                self._code = self._of_job()
        return self._code

    def _wait(self) -> None:
        poll = select.poll()
        for source in (self._engine, self._line, self._signals):
            poll.register(source.fileno(), select.POLLIN)
        poll.poll(1000 * max(0.0, min(LOOK_SECONDS, self._limit - time.monotonic())))

    def _look(self) -> None:
        for happened in self._engine.poll():
            if isinstance(happened, Printed):
                sys.stdout.write("".join(f"{text}\n" for text in happened.lines))
                sys.stdout.flush()
            elif isinstance(happened, Exited):
                self._exited(happened.code)
            elif (worker := self._worker) is not None:
                self._line.send(lambda client: client.process_working(worker))
        for news in self._line.receive():
            if isinstance(news, Enlisted) and self._worker is None:
                self._start(news.worker)
            elif isinstance(news, Ended):
                self._ended = news
                if not news.error:
                    print(f"shoal: the job has ended: {news.text}", file=sys.stderr, flush=True)
                self._limit = time.monotonic() + (LAST_STEPS if self._worker is not None else 0.0)
            elif isinstance(news, Happened) and isinstance(news.event, StorageFailed) and self._worker is None:
                print(f"shoal: waiting for a number: {news.event.reason}", file=sys.stderr, flush=True)
            elif isinstance(news, Connected) and self._worker is None:
                self._line.send(lambda client: client.enlist())
            elif isinstance(news, Broke) and self._ended is None:
                self._line.open()
        if self._code is None and self._exit_code is not None:
            self._code = self._of_job() if self._is_late(self._exit_code) else self._exit_code

    def _is_late(self, code: int) -> bool:
        """Whether the worker came when the job had ended, and found no coordinator or no token: that is no mistake."""
        is_token_gone = code == Refused.exit_code and not self._job.token_file.exists()
        return self._ended is not None and (code == AddressUnavailable.exit_code or is_token_gone)

    def _start(self, worker: int) -> None:
        self._worker = worker
        spec = worker_process(self._job, worker, place=0, log=Path(os.devnull))
        self._engine.start(spec)
        print(f"shoal: this is worker {worker} of the job at {self._job.coordinator}", file=sys.stderr, flush=True)

    def _signalled(self, number: signal.Signals) -> None:
        if self._worker is None or self._is_handing_over:
            self._engine.stop(grace=0.0)
            self._code = Interrupted.exit_code if number == signal.SIGINT else 128 + number
            return
        self._is_handing_over = True
        self._engine.send_signal(worker_name(self._worker), signal.SIGTERM)
        print("shoal: handing over at the end of a step (Ctrl-C again to stop now)", file=sys.stderr, flush=True)

    def _exited(self, code: int) -> None:
        worker = self._worker
        assert worker is not None
        self._line.send(lambda client: client.process_exited(worker, code, describe_exit(code)))
        if code < 0:
            print(f"shoal: worker {worker} {describe_exit(code)}", file=sys.stderr, flush=True)
        self._exit_code = code if code >= 0 else 128 - code

    def _of_job(self) -> int:
        """What is left to say when the job ended and this worker did not, or never began."""
        ended = self._ended
        if ended is None or not ended.error:
            return 0
        error: ShoalError = by_name(ended.error, ended.text)
        print(f"shoal: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
