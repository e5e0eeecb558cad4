"""The coordinator, its record and its clients as real processes over real sockets, with real kills."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import AddressUnavailable, Refused, UsageError
from shoal.events import (
    Advised,
    GenerationFormed,
    JobEnded,
    JobStarted,
    StopRequested,
    Waiting,
    WorkerDied,
    WorkerExpelled,
    WorkerFailed,
    WorkerJoined,
    WorkerLeft,
)
from shoal.membership import channel, texts
from shoal.membership.client import CoordinatorClient
from shoal.membership.coordinator import open_listener
from shoal.transport.connection import strangers as strangers_module
from shoal.transport.connection.handshake import ListenerHandshake
from shoal.values import Address
from shoal.wire.messages import Enlisted, encode
from support.membership import broken, join
from support.membership_job import PATIENCE, Job, ended, kill_quietly, seen


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_job_from_start_to_end(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job:
        watcher = job.watch()
        workers = job.join(1, 0)
        assert [worker.ask("wait 0") for worker in workers] == [
            "generation 1 rank 1 of 2",
            "generation 1 rank 0 of 2",
        ]
        workers[0].tell("advise hello")
        for worker in workers:
            worker.tell("leave")
        assert ended(watcher).text == "all 2 workers finished"
        assert job.exit_code() == 0
        kinds = [type(event) for event in job.events()]
        assert kinds[0] is JobStarted
        assert kinds[-1] is JobEnded
        for kind, times in ((WorkerJoined, 2), (GenerationFormed, 1), (Advised, 1), (WorkerLeft, 2), (JobEnded, 1)):
            assert kinds.count(kind) == times


def test_a_late_watcher_sees_what_happened_before(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        (worker,) = job.join(0)
        assert worker.ask("wait 0") == "generation 1 rank 0 of 1"
        watcher = job.watch()
        seen(watcher, JobStarted)
        seen(watcher, GenerationFormed)
        worker.tell("leave")
        assert ended(watcher).exit_code == 0


def test_the_survivors_of_a_killed_worker_go_on_and_know_who_died(run_dir: Path) -> None:
    with Job(run_dir, workers=3) as job:
        watcher = job.watch()
        workers = job.join(0, 1, 2)
        for worker in workers:
            worker.ask("wait 0")
        victim = workers[2]
        code = victim.kill()
        workers[0].tell("broken 1 17 2")
        workers[1].tell("broken 1 17 2")
        watcher.process_exited(2, code, "killed")
        text = (
            f"worker 2 (process {victim.process.pid} on {socket.gethostname()}) was killed by SIGKILL in step 17, "
            "during all-reduce of gradients"
        )
        for rank, worker in enumerate(workers[:2]):
            assert worker.answer() == f"interrupted: {text}"
            assert worker.ask("wait 1") == f"generation 2 rank {rank} of 2"
        died = seen(watcher, WorkerDied)
        assert (died.worker, died.step, died.reason) == (2, 17, text)
        for worker in workers[:2]:
            worker.tell("leave")
        assert ended(watcher).text == "all 2 workers finished"
        assert job.exit_code() == 0


def test_a_worker_that_is_killed_is_replaced_by_one_with_a_number_of_its_own(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job:
        watcher = job.watch()
        staying, victim = job.join(0, 1)
        for worker in (staying, victim):
            worker.ask("wait 0")
        watcher.process_exited(1, victim.kill(), "killed")
        staying.tell("broken 1 5 1")
        assert staying.answer().startswith("interrupted: worker 1 ")
        assert staying.ask("wait 1") == "generation 2 rank 0 of 1"
        watcher.enlist()
        while not isinstance(message := watcher.receive(PATIENCE), Enlisted):
            assert message is not None
        (newcomer,) = job.join(message.worker)
        assert message.worker == 2
        newcomer.tell("ready 2")
        newcomer.tell("advise ready")
        seen(watcher, Advised)
        # The newcomer's wish has reached the member, which meets it at a step's end.
        staying.tell("broken 2 9 2")
        assert newcomer.ask("wait 2") == "generation 3 rank 1 of 2"
        for worker in (staying, newcomer):
            worker.tell("leave")
        assert ended(watcher).exit_code == 0


def test_a_worker_that_hands_over_leaves_the_job_to_the_others(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job:
        watcher = job.watch()
        staying, going = job.join(0, 1)
        for worker in (staying, going):
            worker.ask("wait 0")
        going.tell("hand-over")
        assert seen(watcher, WorkerLeft).is_handover
        assert staying.answer() == "interrupted: worker 1 handed its place over (script finished)"
        staying.tell("leave")
        assert ended(watcher).exit_code == 0


@pytest.mark.parametrize(
    ("code", "how"), [(7, "exited with code 7"), (0, "ended without finishing its loop (exit code 0)")]
)
def test_a_worker_that_exits_in_a_step_is_lost_and_the_job_waits_for_another(
    run_dir: Path, code: int, how: str
) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        (worker,) = job.join(0)
        worker.ask("wait 0")
        worker.tell(f"exit {code}")
        assert worker.process.wait(PATIENCE) == code
        watcher.process_exited(0, code, "")
        assert how in seen(watcher, WorkerDied).reason
        assert seen(watcher, Waiting).needed == 1


def test_without_anybody_who_could_start_another_the_last_death_ends_the_job(run_dir: Path) -> None:
    with Job(run_dir, workers=1, lease=1.0, heartbeat_limit=0.5) as job:
        (worker,) = job.join(0)
        worker.ask("wait 0")
        worker.kill()
        assert job.exit_code() == 3
        end = job.events()[-1]
        assert isinstance(end, JobEnded)
        assert "closed its connection without leaving" in end.reason


def test_a_stopped_worker_is_expelled_and_hears_of_it_when_it_wakes(run_dir: Path) -> None:
    with Job(run_dir, workers=2, heartbeat_limit=1.0) as job:
        watcher = job.watch()
        staying, stopped = job.join(0, 1)
        for worker in (staying, stopped):
            worker.ask("wait 0")
        stopped.process.send_signal(signal.SIGSTOP)
        expelled = seen(watcher, WorkerExpelled)
        assert expelled.worker == 1
        assert "was silent for 1." in expelled.reason
        assert "--heartbeat-limit" in expelled.reason
        assert staying.answer().startswith(f"interrupted: worker 1 (process {stopped.process.pid} on ")
        assert staying.ask("wait 1") == "generation 2 rank 0 of 1"
        stopped.process.send_signal(signal.SIGCONT)
        assert stopped.answer().startswith(f"interrupted: worker 1 (process {stopped.process.pid} on ")
        stopped.tell("ready 2")
        stopped.tell("advise ready")
        seen(watcher, Advised)
        staying.tell("broken 2 5 1")
        stopped.tell("wait 2")
        while (answer := stopped.answer()).startswith("interrupted: "):
            pass  # it was expelled, and a generation formed without it
        assert answer == "generation 3 rank 1 of 2"


def test_a_child_that_outlives_a_killed_worker_does_not_hide_its_death(run_dir: Path) -> None:
    """DataLoader workers are forks that hold copies of the worker's sockets."""
    with Job(run_dir, workers=2, heartbeat_limit=600.0) as job:
        survivor, victim = job.join(0, 1)
        survivor.ask("wait 0")
        child = int(victim.ask("fork"))
        try:
            victim.kill()
            survivor.tell("broken 1 3 1")
            assert "closed its connection without leaving" in survivor.answer()
        finally:
            kill_quietly(child)


def test_a_script_that_raises_costs_its_worker_and_again_and_again_the_job(run_dir: Path) -> None:
    with Job(run_dir, workers=3, max_failures=2) as job:
        watcher = job.watch()
        workers = job.join(0, 1, 2)
        for worker in workers:
            worker.ask("wait 0")
        workers[1].tell("fail Traceback: ValueError in sample 17")
        assert workers[0].answer() == "interrupted: the script failed on worker 1 in step 3"
        workers[2].tell("fail Traceback: ValueError in sample 18")
        end = ended(watcher)
        assert (end.error, end.text) == (
            "ScriptFailed",
            "the script failed on worker 2 in step 3:\nTraceback: ValueError in sample 18\n"
            "It failed in this way 2 times.",
        )
        assert job.exit_code() == 1
        assert [event.worker for event in job.events() if isinstance(event, WorkerFailed)] == [1, 2]


def test_a_stop_reaches_workers_and_its_reason_the_record(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        client = CoordinatorClient.connect(job.address, job.token, join(0), timeout=PATIENCE)
        with client:
            client.wait_for_generation(0)
            watcher.request_stop("interrupted by Ctrl-C", exit_code=130)
            with client._news:
                assert client._news.wait_for(lambda: client.stop_reason is not None, timeout=PATIENCE)
            assert client.stop_reason == "interrupted by Ctrl-C"
            client.leave(step=1, reason="script finished")
        assert ended(watcher).exit_code == 0


def test_a_worker_can_ask_whether_its_generation_still_counts(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        with CoordinatorClient.connect(job.address, job.token, join(0), timeout=PATIENCE) as client:
            client.wait_for_generation(0)
            assert client.interruption(1) is None
            client.tell(broken(step=2))
            reason = client.wait_for_generation(1).reason
            assert client.interruption(1) == reason
            assert client.interruption(2) is None
            client.leave(step=2, reason="script finished")
        assert job.exit_code() == 0


def test_the_job_ends_when_the_launcher_is_gone(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        (worker,) = job.join(0)
        worker.ask("wait 0")
        watcher.close()
        assert worker.answer() == "interrupted: the launcher is gone"
        assert job.exit_code() == 130
        assert isinstance(job.events()[-1], JobEnded)


def test_a_coordinator_that_is_told_to_stop_closes_its_record(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        job.join(0)
        job.coordinator.send_signal(signal.SIGTERM)  # asks for a stop in good order, which this worker does not heed
        seen(watcher, StopRequested)
        job.coordinator.send_signal(signal.SIGTERM)
        assert ended(watcher).text == "the coordinator was stopped by SIGTERM"
        assert job.exit_code() == 143
        assert isinstance(job.events()[-1], JobEnded)


# Strangers


def test_a_wrong_token_is_told_so_and_harms_nobody(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        (refused,) = job.start(0, token="not the token")
        assert refused.answer() == f"Refused: {texts.wrong_token(job.address)}"
        (worker,) = job.join(0)
        assert worker.ask("wait 0") == "generation 1 rank 0 of 1"


def test_a_worker_that_is_turned_away_reads_why(run_dir: Path) -> None:
    with Job(run_dir, workers=2) as job:
        (first,) = job.join(0)
        with pytest.raises(Refused, match=rf"worker number 0 is in use by process {first.process.pid} on "):
            CoordinatorClient.connect(job.address, job.token, join(0), timeout=PATIENCE)


@pytest.mark.parametrize(
    "garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10_000, bytes(64)], ids=["nothing", "http", "many", "zeros"]
)
def test_garbage_from_a_stranger_closes_that_connection_only(run_dir: Path, garbage: bytes) -> None:
    with Job(run_dir, workers=1) as job, socket.create_connection((job.address.host, job.address.port)) as stranger:
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        while _receive(stranger):
            pass
        (worker,) = job.join(0)
        assert worker.ask("wait 0") == "generation 1 rank 0 of 1"


def test_garbage_from_a_worker_costs_it_its_place(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        connection, _, _ = channel.connect(job.address, job.token, join(0), timeout=PATIENCE)
        with connection:
            connection.sendall(b"\x00\x00\x00\x03abc")
            assert "was cut off (not a message of a client" in seen(watcher, WorkerDied).reason


def test_strangers_that_say_nothing_do_not_keep_workers_out(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()  # the coordinator is up
        strangers = [
            socket.create_connection((job.address.host, job.address.port)) for _ in range(strangers_module.MOST + 20)
        ]
        try:
            (worker,) = job.join(0)
            assert worker.ask("wait 0") == "generation 1 rank 0 of 1"
            # The one that has been there longest had to go, well before its time was up.
            strangers[0].settimeout(strangers_module.SECONDS / 2)
            while _receive(strangers[0]):
                pass
            worker.tell("leave")
            assert ended(watcher).exit_code == 0
        finally:
            for stranger in strangers:
                stranger.close()


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


# Load


def test_a_watcher_that_does_not_read_stalls_nobody_and_hears_of_the_end(run_dir: Path) -> None:
    with Job(run_dir, workers=1) as job:
        watcher = job.watch()
        client = CoordinatorClient.connect(job.address, job.token, join(0), timeout=PATIENCE)
        with client:
            for generation in range(1, 5):
                for _ in range(30):
                    client.report(Advised(worker=0, text="x" * 300_000))
                # The answer shows that the coordinator has read all that.
                client.tell(broken(step=generation, generation=generation))
                client.wait_for_generation(generation)
            client.leave(step=1, reason="script finished")
            with client._news:
                assert client._news.wait_for(lambda: client.ended is not None, timeout=PATIENCE)
        assert ended(watcher).exit_code == 0
        assert job.exit_code() == 0
        assert sum(isinstance(event, Advised) for event in job.events()) == 120


@pytest.fixture
def fifty_clients(run_dir: Path) -> Iterator[tuple[Job, list[CoordinatorClient]]]:
    with Job(run_dir, workers=50) as job:
        clients: list[CoordinatorClient] = []
        try:
            for number in reversed(range(50)):
                clients.append(CoordinatorClient.connect(job.address, job.token, join(number), timeout=PATIENCE))
            yield job, clients
        finally:
            for client in clients:
                client.close()


def test_fifty_workers_join_regroup_and_leave(fifty_clients: tuple[Job, list[CoordinatorClient]]) -> None:
    job, clients = fifty_clients
    watcher = job.watch()
    first = {client.wait_for_generation(0) for client in clients}
    assert [member.worker for member in first.pop().members] == list(range(50))
    assert not first, "workers were told different things"
    for client in clients:
        client.tell(broken(step=2))
    second = {client.wait_for_generation(1).number for client in clients}
    assert second == {2}
    for client in clients:
        client.leave(step=3, reason="script finished")
    assert ended(watcher).text == "all 50 workers finished"
    assert job.exit_code() == 0


# Listening and connecting


def test_a_port_in_use_is_named_with_the_fix() -> None:
    with open_listener(Address("127.0.0.1", 0), "") as taken:
        address = Address(*taken.getsockname())
        with pytest.raises(AddressUnavailable, match=re.escape(texts.port_in_use(address))):
            open_listener(address, "token")


def test_listening_beyond_this_machine_needs_a_token() -> None:
    everywhere = Address("0.0.0.0", 0)
    with pytest.raises(UsageError, match=re.escape(texts.no_token(everywhere))):
        open_listener(everywhere, "")
    open_listener(everywhere, "token").close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_cannot_be_listened_on(host: str) -> None:
    address = Address(host, 0)
    with pytest.raises(AddressUnavailable, match=re.escape(texts.cannot_listen(address, "").partition(";")[0])):
        open_listener(address, "token")


OPENINGS = (b"SSH-2.0-OpenSSH_9.6 and more to come..", ListenerHandshake({}.get).open(insists=False))


@pytest.mark.parametrize("opening", OPENINGS, ids=["a stranger's", "ours"])
def test_somebody_else_at_the_address_is_not_taken_for_the_coordinator(opening: bytes) -> None:
    """It speaks, but cannot prove that it holds the token."""
    with open_listener(Address("127.0.0.1", 0), "") as impostor:
        address = Address(*impostor.getsockname())
        pid = os.fork()
        if pid == 0:
            connection, _ = impostor.accept()
            connection.sendall(opening + b"\x01" * 32 + encode(join(0)))
            connection.recv(1)
            os._exit(0)
        try:
            with pytest.raises(Refused, match=re.escape(texts.foreign_listener(address))):
                CoordinatorClient.connect(address, "token", join(0), timeout=PATIENCE)
        finally:
            kill_quietly(pid)
            os.waitpid(pid, 0)


def test_a_listener_that_never_answers_is_given_up() -> None:
    with open_listener(Address("127.0.0.1", 0), "") as silent:
        address = Address(*silent.getsockname())
        with pytest.raises(AddressUnavailable, match=re.escape(texts.no_answer(address, 0.2))):
            CoordinatorClient.connect(address, "token", join(0), timeout=0.2)
