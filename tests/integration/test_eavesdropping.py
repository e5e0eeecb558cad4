"""Whoever hears every byte of a job with servers learns nothing that opens a door, and cannot use what it has heard."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import BroughtFile
from shoal.launching.servers.job_servers import space_name
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.transport.connection.handshake import CLAIM_BYTES, MAGIC, OPENING_BYTES
from shoal.wire.derived_keys import group_key, space_key
from shoal.wire.token_file import new_token
from support import eavesdropping, served_script
from support.engines import printed, python, until_exits
from support.launcher import PATIENCE, SHOAL, processes_in, write_token
from support.network import PROGRAMS, Network
from support.network_job import NetworkJob
from support.nodes import TestNode, open_nodes
from support.served_script import assert_each_sample_once, events_of, result
from support.server_groups import TOKEN, begin, group_of, table_for, wait_until


def traces(secret: str) -> list[bytes]:
    """What would betray a secret: its text, and the bytes that a token's digits stand for."""
    with contextlib.suppress(ValueError):
        return [secret.encode(), bytes.fromhex(secret)]
    return [secret.encode()]


class Tap:
    """Everything that sockets of this process send."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = bytearray()
        send_all, send_message = socket.socket.sendall, socket.socket.sendmsg

        def sendall(endpoint: socket.socket, data: bytes, *flags: int) -> None:
            self.heard += data
            send_all(endpoint, data, *flags)

        def sendmsg(endpoint: socket.socket, parts: list[memoryview]) -> int:
            sent = send_message(endpoint, parts)
            self.heard += b"".join(parts)[:sent]
            return sent

        monkeypatch.setattr(socket.socket, "sendall", sendall)
        monkeypatch.setattr(socket.socket, "sendmsg", sendmsg)


def test_no_key_of_a_space_and_no_token_of_a_group_crosses_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    token = new_token()
    key = space_key(token, "another job")
    tap = Tap(monkeypatch)
    with group_of(2, 2) as group:
        with KeeperClient(group.keeper.address, TOKEN) as keeper:
            keeper.open_space(SpaceTerms("another job", key))
        begin(group, table_for(), job="another job", key=key)
        group.start(2)
        wait_until(lambda: group.is_settled() and len(group.holders()) == 3, "a newcomer is told the keys too")
    assert b"another job" in tap.heard, "this is what is said"
    for secret in (token, key, TOKEN, "of the job"):
        assert not any(trace in tap.heard for trace in traces(secret)), secret


# A real job, on a machine of its own


class Job:
    """On one machine of a network, with everything that crosses its loopback interface recorded."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self.folder = folder
        self.recording = folder / "recording"
        self._variables = {"XDG_RUNTIME_DIR": str(folder / "runtime"), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        (folder / "runtime").mkdir()
        tap = network.start(0, eavesdropping.__file__, self.recording, "lo")
        assert tap.stdout is not None and tap.stdout.readline() == "ready\n"

    def shoal(self, *arguments: str) -> psutil.Popen:
        options = {"cwd": self.folder, "env": {**dict(psutil.Process().environ()), **self._variables}}
        return self._network.start(0, *SHOAL[1:], *arguments, start_new_session=True, **options)

    def tokens(self) -> dict[Path, str]:
        """Private files, with what is in them."""
        return {path: path.read_text() for path in (self.folder / "runtime").glob("*/token")}

    def until_step(self, step: int) -> None:
        limit = time.monotonic() + PATIENCE
        while not any(
            event["kind"] == "steps-applied" and event["step"] >= step for event in events_of(self.folder / "run")
        ):
            assert time.monotonic() < limit
            time.sleep(0.05)


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Job]:
    network = Network(1)
    try:
        yield Job(network, folder)
    finally:
        network.close()


def check_processes(folder: Path, secrets: list[str]) -> None:
    """No command line, no variable of any process of the job has one of them."""
    for process in processes_in(folder):
        with contextlib.suppress(psutil.Error):
            said = " ".join([*process.cmdline(), *(f"{key}={value}" for key, value in process.environ().items())])
            assert not any(secret in said for secret in secrets), process.cmdline()


def check_files(folder: Path, secrets: list[str]) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(trace in data for secret in secrets for trace in traces(secret)), path


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("is_borrowed", [True, False])
def test_a_whole_job_with_servers_betrays_nothing_and_its_recording_is_of_no_use(
    tmp_path: Path, is_borrowed: bool
) -> None:
    served_script.write(tmp_path, pause=0.1)
    script = tmp_path / "script.py"
    script.write_text("import os\n" + script.read_text().replace("            time.sleep(0.1)\n", HELD))
    with recorded(tmp_path) as job:
        options: tuple[str, ...] = ("--servers", "2")
        secrets = []
        if is_borrowed:
            group = job.shoal("servers", "start", "-n", "2", "--token-file", "group-token")
            assert group.stdout is not None
            address = group.stdout.readline().split()[3].rstrip(",")
            secrets.append((tmp_path / "group-token").read_text())
            options = ("--servers", address, "--servers-token", "group-token")
        command = ("run", "-n", "2", "--replicas", "2") if not is_borrowed else ("run", "-n", "2")
        process = job.shoal(*command, "--strategy", "parameter-server", *options, "--run-dir", "run", "script.py")
        job.until_step(5)
        files = job.tokens()
        assert len(files) == (1 if is_borrowed else 2)
        assert all(
            (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700) for path in files
        )
        token = next(text for text in files.values() if is_borrowed or group_key(text) in files.values())
        secrets += [group_key(token), space_key(token, space_name(tmp_path / "run"))]
        assert at_the_coordinator(job, *secrets) == ["refused"] * len(secrets), "what servers hold does not open it"
        assert at_the_coordinator(job, token) == ["let-in"]
        secrets.append(token)
        check_processes(tmp_path, secrets)
        replay(job)
        (tmp_path / "go-on").touch()
        stdout, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, stdout[-3000:]
        assert_each_sample_once(result(tmp_path))
        heard = b"\n".join(eavesdropping.streams(job.recording).values())
        assert space_name(tmp_path / "run").encode() in heard, "this is what was said"
        for secret in secrets:
            assert not any(trace in heard for trace in traces(secret)), secrets.index(secret)
            assert secret not in stdout
        check_files(tmp_path / "run", secrets)


def test_whoever_hears_a_job_between_machines_reads_nothing(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with Network(3) as network:
        tap = network.start(1, eavesdropping.__file__, recording, "eth0")
        assert tap.stdout is not None and tap.stdout.readline() == "ready\n"
        job = NetworkJob(network, tmp_path, (1, 2), epochs=1)
        assert [job.result(worker) for worker in range(2)] == ["exact", "exact"]
        assert job.exit_code(job.coordinator) == 0
    found = eavesdropping.streams(recording)
    said = {flow: data for flow, data in found.items() if len(data) > OPENING_BYTES}
    assert len(said) >= 4, "both ways with the coordinator, and with the other worker"
    for data in said.values():
        assert data.startswith(MAGIC + b"\1"), "each end insists on TLS"
        rest = data[OPENING_BYTES:]
        for word in (b"control", b"SHPR", b"SHOL", b"type", b"worker", b"config", b"a token for tests"):
            assert word not in rest, word


def test_whoever_hears_a_launcher_and_its_agent_between_machines_reads_nothing(tmp_path: Path) -> None:
    recording, carried = tmp_path / "recording", tmp_path / "carried"
    carried.write_text("in-a-private-file")
    with Network(2) as network:
        tap = network.start(1, eavesdropping.__file__, recording, "eth0")
        assert tap.stdout is not None and tap.stdout.readline() == "ready\n"
        with network.inside(0):
            engine, _ = open_nodes({"a": TestNode(namespace=network.namespaces[1])}, host=network.host(0))
        with contextlib.closing(engine):
            engine.gather(1)
            files = (BroughtFile(carried, "CARRIED"),)
            engine.start(python("import os; print(open(os.environ['CARRIED']).read())", files=files))
            assert printed(until_exits(engine)) == b"in-a-private-file\n"
            token = engine._lines.token
    said = {flow: data for flow, data in eavesdropping.streams(recording).items() if len(data) > OPENING_BYTES}
    assert len(said) >= 2, "both ways"
    for data in said.values():
        assert data.startswith(MAGIC + b"\1"), "each end insists on TLS"
        for word in (b"agent", b"hello", b"CARRIED", b"in-a-private-file", *traces(token)):
            assert word not in data[OPENING_BYTES:], word


@pytest.mark.timeout(240)
@pytest.mark.long
def test_a_job_in_plaintext_between_machines_trains_right_says_so_and_can_be_read(tmp_path: Path) -> None:
    recording, token = tmp_path / "recording", tmp_path / "token"
    write_token(token, "a token for tests")
    shutil.copy(PROGRAMS / "network_training.py", tmp_path / "train.py")
    with Network(3) as network:
        tap = network.start(1, eavesdropping.__file__, recording, "eth0")
        assert tap.stdout is not None and tap.stdout.readline() == "ready\n"
        options = {
            "cwd": tmp_path,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
            "env": {**os.environ, "EPOCHS": "1", "OMP_NUM_THREADS": "1"},
        }
        address = f"{network.host(0)}:7000"
        job = ("--address", address, "--workers", "2", "--run-dir", tmp_path / "run", "--plaintext", "train.py")
        shoal = ("-m", "shoal")
        parts = [network.start(0, *shoal, "coordinator", "--token-file", token, *job, **options)]
        wait_until((tmp_path / "run" / "events.jsonl").exists, "the coordinator listens")
        parts += [network.start(at, *shoal, "join", address, "--token-file", token, **options) for at in (1, 2)]
        said = [part.communicate(timeout=3 * PATIENCE) for part in parts]
    assert [part.returncode for part in parts] == [0, 0, 0], said
    assert all("exact" in stdout for stdout, _ in said[1:]), said
    assert all("--plaintext: connections to other machines are not encrypted" in stderr for _, stderr in said), said
    heard = b"\n".join(eavesdropping.streams(recording).values())
    for word in (b"SHPR", b"SHOL", b"worker"):
        assert word in heard, "between the workers and with the coordinator"
    assert not any(trace in heard for trace in traces("a token for tests")), "the token is never said"


# The job lasts until everything was tried on it.
HELD = """            time.sleep(0.05)
            while run.step > 8 and not os.path.exists("go-on"):
                time.sleep(0.05)
"""


def at_the_coordinator(job: Job, *keys: str) -> list[str]:
    where = (job.folder / "run" / "join").read_text().split()[2]
    program = job._network.start(0, "-c", CONNECT, where, *keys)
    said, _ = program.communicate(timeout=PATIENCE)
    return said.split()


CONNECT = """
import sys
from shoal.environment import parse_address
from shoal.errors import Refused
from shoal.membership.watcher import WatcherClient
for key in sys.argv[2:]:
    try:
        address = parse_address(sys.argv[1], named="it")
        WatcherClient.connect(address, key, timeout=20.0, is_launcher=False).close()
        print("let-in")
    except Refused:
        print("refused")
"""


def replay(job: Job) -> None:
    """What was said to those who listen is said again: nobody takes it for anybody."""
    found = eavesdropping.streams(job.recording)
    proof = OPENING_BYTES + CLAIM_BYTES
    said = {flow[3]: data for flow, data in found.items() if len(data) > proof and flow[3] < flow[1]}
    said |= {flow[3]: data for flow, data in found.items() if len(data) > 3 * proof}
    program = job._network.start(0, "-c", REPLAY)
    assert program.stdin is not None
    for port, data in said.items():
        program.stdin.write(f"{port} {data[:20_000].hex()}\n")
    program.stdin.close()
    program.stdin = None
    told, _ = program.communicate(timeout=PATIENCE)
    outcomes = [line.split()[1] for line in told.splitlines()]
    assert len(outcomes) >= 4, "the coordinator, the keeper and two servers listen"
    assert set(outcomes) == {"refused"}, told


REPLAY = """
import socket, sys
for line in sys.stdin:
    port, data = line.split()
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5.0) as again:
            again.recv(39, socket.MSG_WAITALL)
            again.sendall(bytes.fromhex(data))
            while more := again.recv(1000):
                answer += more
    except ConnectionRefusedError:
        continue
    except ConnectionError:  # with bytes of it unread
        pass
    print(port, "refused" if answer in (b"", bytes(32)) else "answered")
"""
