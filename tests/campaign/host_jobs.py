"""A job of a campaign on hosts that are network namespaces, with one to three workers each, whose links are cut.

Host 0 has the coordinator, which nobody starts again; workers that are killed are replaced by `shoal join`. Cuts are of
one direction or both, between hosts with workers, and are mended after a while, or never.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from campaign.plans import JobPlan
from campaign.running import SCRIPT, Outcome, Running
from shoal import events
from support.network import Network

LAYOUTS = ((2, 2), (1, 2, 1), (2, 2, 1), (1, 2, 2), (2, 2, 2))  # workers by host, without that of the coordinator
PORT = 7000
SETTINGS = {"heartbeat-limit": 2, "lease": 20, "checkpoint-every": 10, "min-workers": 1, "max-failures": 50}


class Hosts:
    """The network and the workers on it."""

    def __init__(self, network: Network, folder: Path, layout: tuple[int, ...]) -> None:
        self.network = network
        self._folder = folder
        self._token = folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text("a token for tests")
        self.host_of: dict[int, int] = {}  # by the worker's process
        self.cut_hosts: set[int] = set()  # that were ever part of a cut
        workers = [host for host, count in enumerate(layout, 1) for _ in range(count)]
        given = {"workers": len(workers), "run-dir": folder / "run", **SETTINGS}
        options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        place = ("--address", self._address, "--token-file", self._token)
        self.coordinator = self._start(0, "output", "-m", "shoal", "coordinator", *place, *options, SCRIPT)
        for worker, host in enumerate(workers):
            self.start_worker(host, worker)

    @property
    def _address(self) -> str:
        return f"{self.network.host(0)}:{PORT}"

    def _start(self, host: int, log: str, *command: object, **variables: str):  # type: ignore[no-untyped-def]
        with (self._folder / log).open("a") as output:
            return self.network.start(
                host,
                *map(str, command),
                cwd=self._folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_worker(self, host: int, worker: int) -> None:
        ours = {"SHOAL_COORDINATOR": self._address, "SHOAL_TOKEN_FILE": str(self._token), "SHOAL_WORKER": str(worker)}
        self.host_of[self._start(host, f"worker-{worker}", SCRIPT, **ours).pid] = host

    def join(self, host: int) -> None:
        place = (self._address, "--token-file", self._token)
        self.host_of[self._start(host, f"joined-{host}", "-m", "shoal", "join", *place, SCRIPT).pid] = host


def run(plan: JobPlan, folder: Path) -> Outcome:
    draw = plan.draw()
    layout = draw.choice(LAYOUTS)
    with Network(1 + len(layout)) as network:
        hosts = Hosts(network, folder, layout)
        job = Running(folder, hosts.coordinator, run_dir=folder / "run")
        (folder / "runtime").mkdir()
        job.wait_until(lambda: job.of(events.StepsApplied))
        _disturb(job, hosts, plan, draw)
        code = job.end()
        outcome = Outcome(code, (folder / "output").read_text(errors="replace"), job.signals)
        for process in network.processes:  # who was cut off for good has nobody to tell it that the job is over
            process.kill()
        outcome.faults += _needlessly_out(job, hosts)
    return outcome


def _disturb(job: Running, hosts: Hosts, plan: JobPlan, draw: random.Random) -> None:
    with contextlib.ExitStack() as cuts:
        while len(job.signals) < plan.signals and not job.is_over:
            time.sleep(draw.uniform(0.3, 2.0))
            if draw.random() < 0.35:
                cuts.close()  # one at a time: two hosts must stay connected with somebody
                cuts.enter_context(_cut(job, hosts, draw))
            else:
                _strike(job, hosts, draw)


@contextlib.contextmanager
def _cut(job: Running, hosts: Hosts, draw: random.Random) -> Iterator[None]:
    one, other = draw.sample(range(1, hosts.network.size), 2)
    ways = [(one, other)] if draw.random() < 0.4 else [(one, other), (other, one)]
    job.signals.append(f"{time.monotonic() - job.began:.1f}s CUT {ways}")
    hosts.cut_hosts |= {one, other}
    for way in ways:
        hosts.network.cut(*way)
    try:
        yield
    finally:
        for way in ways:
            hosts.network.mend(*way)


def _strike(job: Running, hosts: Hosts, draw: random.Random) -> None:
    workers = job.processes().get("worker", [])
    if not workers:
        return
    victim = draw.choice(workers)
    if draw.random() < 0.4:
        if job.send(victim, "STOP", "worker"):
            time.sleep(draw.uniform(0.3, 4.0))
            with contextlib.suppress(psutil.Error):
                victim.send_signal(signal.SIGCONT)
    elif len(workers) > 1 and job.send(victim, "KILL", "worker"):
        hosts.join(draw.choice(range(1, hosts.network.size)))


def _needlessly_out(job: Running, hosts: Hosts) -> list[str]:
    """Nobody is put out for a cut that its host has no part in. Whoever was stopped may be."""
    stopped = {int(text.split()[-1]) for text in job.signals if "STOP" in text}
    process_of = {event.worker: event.process for event in job.of(events.WorkerJoined)}
    found = []
    for event in job.of(events.WorkerExpelled):
        process = process_of.get(event.worker, 0)
        host = hosts.host_of.get(process)
        if process not in stopped and host is not None and host not in hosts.cut_hosts:
            found.append(f"worker {event.worker} on host {host}, which no cut was about, was put out: {event.reason}")
    return found
