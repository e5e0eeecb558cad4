"""Servers and workers that are killed at random moments: every sample still counts once in every epoch."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support import served_script
from support.launcher import PATIENCE, leftovers, processes_in, started
from support.served_script import assert_each_sample_once, events_of, result

SERVERS = 3
KILLS = 25  # per mode
MOST_PER_JOB = 6
OPTIONS = ("--strategy", "parameter-server", "--servers", str(SERVERS), "--replicas", "2", "--run-dir", "run")
FREE = ("--consistency", "asynchronous", "--staleness-scaling", "none")


def victims(folder: Path, killed: Collection[int] = ()) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Servers, where every block is on two of them, and workers that train. `killed`: processes that may still end."""
    lines = [(process, process.cmdline()) for process in processes_in(folder) if process.pid not in killed]
    servers = [process for process, line in lines if "server" in line]
    workers = [
        process for process, line in lines if line[-1:] == ["script.py"] and "shoal" not in line and "run" not in line
    ]
    told = events_of(folder / "run")
    at = {event["server"]: event["process"] for event in told if event["kind"] == "server-joined"}
    changes = [event for event in told if event["kind"] == "servers-changed"]
    is_settled = bool(changes) and changes[-1]["is_settled"] and len(changes[-1]["servers"]) == SERVERS
    # What is told may lag behind what was killed: the processes must be those that it is told of.
    is_whole = is_settled and {at[server] for server in changes[-1]["servers"]} == {each.pid for each in servers}
    return servers if is_whole else [], workers


@contextmanager
def killing(folder: Path, draw: random.Random) -> Iterator[list[str]]:
    """While the block runs; the list says what was killed."""
    over, killed, ended = threading.Event(), list[str](), set[int]()

    def kill() -> None:
        while len(killed) < MOST_PER_JOB and not over.wait(draw.uniform(0.3, 1.5)):
            try:
                servers, workers = victims(folder, ended)
                kind = draw.choice(["server", "worker"])
                chosen = servers if kind == "server" else workers
                has_begun = any(event["kind"] == "steps-applied" for event in events_of(folder / "run"))
                if has_begun and chosen:
                    victim = draw.choice(chosen)
                    ended.add(victim.pid)
                    victim.kill()
                    killed.append(kind)
            except psutil.Error:
                continue  # it has just ended

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("more", [(), FREE], ids=["synchronous", "asynchronous"])
def test_all_servers_at_once_take_the_job_back_to_its_checkpoint(more: tuple[str, ...], tmp_path: Path) -> None:
    served_script.write(tmp_path, pause=0.1)
    options = ("-n", "2", *OPTIONS, "--checkpoint-every", "10", *more)
    with started(tmp_path, "run", *options, "script.py") as process:
        limit = time.monotonic() + PATIENCE
        servers: list[psutil.Process] = []
        while not servers:  # on a busy machine one may have been taken for lost, and is replaced
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
            if any(event["kind"] == "checkpoint-published" for event in events_of(tmp_path / "run")):
                servers = victims(tmp_path)[0]
        for server in servers:
            server.kill()
        stdout, stderr = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, stdout[-3000:] + stderr[-2000:]
    assert_each_sample_once(result(tmp_path))
    assert any(event["kind"] == "resumed" for event in events_of(tmp_path / "run"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [(), FREE], ids=["synchronous", "asynchronous"])
def test_random_kills_of_servers_and_workers(more: tuple[str, ...], tmp_path: Path) -> None:
    done: list[str] = []
    job = 0
    while len(done) < KILLS:
        job += 1
        folder = tmp_path / str(job)
        folder.mkdir()
        served_script.write(folder, pause=0.12)
        draw = random.Random(1000 * len(more) + job)
        command = ("run", "-n", "3", "--min-workers", "1", *OPTIONS, *more, "script.py")
        with started(folder, *command) as process, killing(folder, draw) as killed:
            stdout, stderr = process.communicate(timeout=3 * PATIENCE)
        assert process.returncode == 0, f"job {job}, killed {killed}: {stdout[-3000:]}{stderr[-2000:]}"
        assert leftovers(folder) == []
        assert_each_sample_once(result(folder))
        done += killed
    assert {"server", "worker"} <= set(done)
