"""`shoal run` when processes die on the way: workers are replaced, the coordinator is started again, all goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from shoal.events import (
    AnyEvent,
    CoordinatorReturned,
    FaultInjected,
    GenerationFormed,
    JobEnded,
    JobStarted,
    WorkerDied,
    WorkerLeft,
    WorkerStarted,
)
from shoal.launching import texts
from shoal.launching.chaos.texts import wrong_word
from shoal.membership.texts import no_coordinator
from shoal.values import Address
from support.launcher import (
    PATIENCE,
    SHOAL,
    STEPPING,
    command_of,
    events_in,
    leftovers,
    processes_in,
    shoal,
    started,
    wait_for_file,
    without_frame,
    write_script,
    write_token,
)

E = TypeVar("E", bound=AnyEvent)
NOBODY_THERE = no_coordinator(Address("127.0.0.1", 1), "Connection refused")


def events(folder: Path, kind: type[E]) -> list[E]:
    return [event for event in events_in(folder / "out") if isinstance(event, kind)]


def process_of(folder: Path, worker: int) -> int:
    lines = wait_for_file(folder / "started", count=1)
    return next(int(line.split()[1]) for line in lines if line.split()[0] == str(worker))


def coordinator_in(folder: Path) -> psutil.Process:
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        for process in processes_in(folder):
            if "coordinator" in command_of(process):
                return process
        time.sleep(0.02)
    raise AssertionError("there is no coordinator")


def wait_for_generation(folder: Path, workers: tuple[int, ...]) -> None:
    """Until every one of these workers has been in a generation of exactly them."""
    limit = time.monotonic() + PATIENCE
    wanted = " ".join(map(str, workers))
    lines: list[str] = []
    while time.monotonic() < limit:
        lines = (folder / "entered").read_text().splitlines() if (folder / "entered").exists() else []
        there = {line.split(" ", 1)[0] for line in lines if line.split(" ", 2)[2] == wanted}
        if there == set(wanted.split()):
            return
        time.sleep(0.02)
    raise AssertionError(f"no generation of workers {wanted}: {lines}")


def wait_for(folder: Path, kind: type[E]) -> list[E]:
    """The events of this kind in the record, once there is one."""
    limit = time.monotonic() + PATIENCE
    while not (found := events(folder, kind)):
        assert time.monotonic() < limit, f"no {kind.__name__} came"
        time.sleep(0.02)
    return found


def finish(folder: Path, process: subprocess.Popen[str]) -> tuple[str, str]:
    (folder / "done").touch()
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stdout + stderr
    assert leftovers(folder) == []
    return stdout, without_frame(stderr)


def run(*options: str) -> tuple[str, ...]:
    return ("run", "-n", "2", "--run-dir", "out", "--heartbeat-limit", "2", *options, "script.py")


def test_a_killed_worker_is_replaced_and_the_survivor_goes_on(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        survivor, victim = process_of(tmp_path, 0), process_of(tmp_path, 1)
        os.kill(victim, signal.SIGKILL)
        wait_for_generation(tmp_path, (0, 2))
        assert psutil.pid_exists(survivor)
        stdout, stderr = finish(tmp_path, process)
    assert stderr == ""
    [died] = events(tmp_path, WorkerDied)
    assert (died.worker, died.process) == (1, victim)
    [start] = events(tmp_path, WorkerStarted)
    assert (start.worker, start.is_spare, start.reason) == (2, False, "worker 1 was killed by SIGKILL")
    assert {line.split()[0] for line in wait_for_file(tmp_path / "started")} == {"0", "1", "2"}
    assert (tmp_path / "out/logs/worker-2.log").exists()
    assert "worker 2" in stdout


def test_sigterm_to_one_worker_makes_it_hand_over_and_the_job_goes_on(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        os.kill(process_of(tmp_path, 1), signal.SIGTERM)
        wait_for_generation(tmp_path, (0, 2))
        finish(tmp_path, process)
    assert events(tmp_path, WorkerDied) == []
    assert [event.worker for event in events(tmp_path, WorkerLeft) if event.is_handover] == [1]
    assert [event.worker for event in events(tmp_path, WorkerStarted)] == [2]


def test_all_workers_may_die_at_once(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        for worker in (0, 1):
            os.kill(process_of(tmp_path, worker), signal.SIGKILL)
        wait_for_generation(tmp_path, (2, 3))
        finish(tmp_path, process)
    assert len(events(tmp_path, WorkerDied)) == 2


def test_a_killed_coordinator_is_started_again_and_the_job_goes_on(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run("--progress", "plain")) as process:
        wait_for_generation(tmp_path, (0, 1))
        before = coordinator_in(tmp_path)
        before.kill()
        before.wait()
        after = coordinator_in(tmp_path)
        assert after.pid != before.pid
        wait_for(tmp_path, CoordinatorReturned)
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)  # what it remembers is good enough to replace somebody
        wait_for_generation(tmp_path, (0, 2))
        stdout, stderr = finish(tmp_path, process)
    assert stderr == ""
    assert len(events(tmp_path, JobStarted)) == len(events(tmp_path, JobEnded)) == 1
    numbers = [event.generation for event in events(tmp_path, GenerationFormed)]
    assert numbers == sorted(set(numbers))
    assert stdout.count("worker 2 is started") == 1


def test_a_coordinator_and_a_worker_killed_at_once(tmp_path: Path) -> None:
    """The death is told to the coordinator that comes back."""
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        coordinator = coordinator_in(tmp_path)
        coordinator.suspend()  # it hears nothing of the death
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        time.sleep(0.3)
        coordinator.kill()
        wait_for_generation(tmp_path, (0, 2))
        finish(tmp_path, process)
    assert [event.worker for event in events(tmp_path, WorkerDied)] == [1]


def test_ctrl_c_while_the_coordinator_comes_back(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        coordinator_in(tmp_path).kill()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert texts.STOP_WORDS[signal.SIGINT] in stderr
    assert leftovers(tmp_path) == []
    assert events(tmp_path, JobEnded)[-1].outcome == "interrupted"


def test_a_script_that_always_dies_at_its_start_ends_the_job(tmp_path: Path) -> None:
    script = write_script(tmp_path, STEPPING, joins=True)
    deadly = "import os\nif os.path.exists('broken'):\n    print('no', flush=True)\n    os.kill(os.getpid(), 9)\n"
    script.write_text(deadly + script.read_text())
    with started(tmp_path, "run", "--run-dir", "out", "--max-failures", "2", "script.py") as process:
        wait_for_generation(tmp_path, (0,))
        (tmp_path / "broken").touch()
        os.kill(process_of(tmp_path, 0), signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3, stdout + stderr
    assert "worker 2" in stderr
    assert "was killed by SIGKILL" in stderr
    assert stdout.count("no\n") == 2
    assert leftovers(tmp_path) == []


# Spares


@pytest.mark.long
@pytest.mark.timeout(600)  # waits for two spares
def test_a_spare_takes_the_place_of_a_killed_worker_and_is_replaced_itself(tmp_path: Path) -> None:
    text = STEPPING.replace("print(me.worker, os.getpid(), file=file)", REPORTING)
    write_script(tmp_path, text, joins=True)
    (tmp_path / "helper_of_script.py").write_text("HERE = True\n")
    with started(tmp_path, *run("--spares", "1"), "--its-own", "x") as process:
        wait_for_generation(tmp_path, (0, 1))
        spare = wait_for_spare(tmp_path)
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        wait_for_generation(tmp_path, (0, 2))
        assert process_of(tmp_path, 2) == spare.pid
        assert wait_for_spare(tmp_path).pid != spare.pid
        finish(tmp_path, process)
    [start] = events(tmp_path, WorkerStarted)
    assert start.is_spare
    lines = [line.split(" ", 2)[2].split(" and ") for line in wait_for_file(tmp_path / "started")]
    assert lines[2][0] == lines[0][0], "it runs the script as the others do"
    assert "'--its-own', 'x'" in lines[2][0]
    assert lines[2][1] == "shoal.torch_autoload", "it has torch already, which knows that this is a worker"


REPORTING = """
    import helper_of_script
    argv = [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    extensions = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    seen = (__name__, __file__, argv, sys.path[0], os.getppid(), os.environ["LOCAL_RANK"] in "01", extensions)
    torch = sys.modules.get("torch")
    print(me.worker, os.getpid(), seen, "and", torch and torch.multiprocessing.spawn.__module__, file=file)
"""


def wait_for_spare(folder: Path) -> psutil.Process:
    """One that is ready. It gives way to other processes while it imports torch, so a busy machine keeps it waiting."""
    limit = time.monotonic() + 3 * PATIENCE
    while time.monotonic() < limit:
        log = folder / "out/logs/spares.log"
        ready = log.read_text().count("ready") if log.exists() else 0
        spares = [process for process in processes_in(folder) if "shoal.entry.spare" in command_of(process)]
        waiting = [process for process in spares if not is_worker(folder, process.pid)]
        if waiting and ready == len(spares):
            return waiting[0]
        time.sleep(0.05)
    raise AssertionError("there is no spare")


def is_worker(folder: Path, pid: int) -> bool:
    return any(line.split()[1] == str(pid) for line in (folder / "started").read_text().splitlines())


@pytest.mark.long
def test_nothing_survives_a_killed_launcher_with_spares_and_replacements(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run("--spares", "1")) as process:
        wait_for_generation(tmp_path, (0, 1))
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        wait_for_generation(tmp_path, (0, 2))
        wait_for_spare(tmp_path)
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert leftovers(tmp_path) == []


# Faults on purpose


@pytest.mark.parametrize(
    ("chaos", "fault"),
    [
        ("kill worker at step 20", "kill"),
        pytest.param("stop worker at step 20 for 4s", "stop", marks=pytest.mark.long),
        pytest.param("kill-coordinator at step 20", "kill-coordinator", marks=pytest.mark.long),
    ],
)
def test_faults_on_purpose_are_noted_and_lived_through(tmp_path: Path, chaos: str, fault: str) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run("--chaos", chaos, "--seed", "3")) as process:
        wait_for_generation(tmp_path, (0, 1))
        happened = wait_for(tmp_path, FaultInjected)
        if fault == "kill":
            wait_for_generation(tmp_path, (1 - (happened[0].worker or 0), 2))
        else:
            time.sleep(1.0)
        finish(tmp_path, process)
    [event] = events(tmp_path, FaultInjected)
    assert (event.fault, event.reason) == (fault, chaos)


def test_chaos_that_makes_no_sense_is_said_before_anything_starts(tmp_path: Path) -> None:
    write_script(tmp_path, STEPPING, joins=True)
    with started(tmp_path, *run("--chaos", "kill worker now")) as process:
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    [line] = stderr.splitlines()
    assert wrong_word("now", "kill worker now", "") in line
    assert not (tmp_path / "out").exists()


# Joining from elsewhere


def way_in(folder: Path) -> list[str]:
    """The arguments with which a worker is added, as `shoal show` says."""
    shown = subprocess.run([*SHOAL, "show", "out"], cwd=folder, check=True, capture_output=True, text=True).stdout
    return next(line for line in shown.splitlines() if "shoal join" in line).partition("shoal ")[2].split()


# Replacements that the launcher starts are held back, so that there is room for others.
HELD_BACK = """
import os, time
while int(os.environ["SHOAL_WORKER"]) >= 2 and "ELSEWHERE" not in os.environ and not os.path.exists("done"):
    time.sleep(0.02)
"""
ELSEWHERE = {"ELSEWHERE": "1"}


def write_roomy_script(folder: Path) -> None:
    script = write_script(folder, "print('arguments', sys.argv[1:])\n" + STEPPING, joins=True)
    script.write_text(HELD_BACK + script.read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_worker_may_join_from_elsewhere_and_hand_over(tmp_path: Path, number: signal.Signals, code: int) -> None:
    write_roomy_script(tmp_path)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        wait_for_generation(tmp_path, (0,))
        wait_for(tmp_path, WorkerStarted)  # number 2 is given: the next one gets 3
        with started(tmp_path, *way_in(tmp_path), variables=ELSEWHERE) as joined:
            wait_for_generation(tmp_path, (0, 3))
            joined.send_signal(number)
            _, stderr = joined.communicate(timeout=PATIENCE)
        assert joined.returncode == code, stderr
        assert "this is worker 3 of the job at" in stderr
        assert "worker 3 is in the job with 2 workers" in stderr
        assert "handing over" in stderr
        finish(tmp_path, process)
    assert [event.worker for event in events(tmp_path, WorkerLeft) if event.is_handover] == [3]
    assert not (tmp_path / "out/join").exists()


# Each newcomer begins when all of them are there.
TOGETHER = """
import os, time
me = int(os.environ["SHOAL_WORKER"])
open(f"here-{me}", "w").close()
while me >= 2 and sum(name.startswith("here-") for name in os.listdir()) < 2 + 4:
    time.sleep(0.01)
"""


@pytest.mark.long
def test_workers_from_elsewhere_that_come_together_cost_fewer_regroupings_than_they_are(tmp_path: Path) -> None:
    script = write_script(tmp_path, STEPPING, joins=True)
    script.write_text(TOGETHER + script.read_text())
    with started(tmp_path, *run()) as process, ExitStack() as joiners:
        wait_for_generation(tmp_path, (0, 1))
        arguments = way_in(tmp_path)
        joined = [joiners.enter_context(started(tmp_path, *arguments)) for _ in range(4)]
        wait_for_generation(tmp_path, tuple(range(6)))
        (tmp_path / "done").touch()
        for one in joined:
            assert one.wait(timeout=PATIENCE) == 0
        finish(tmp_path, process)
    sizes = [len(event.workers) for event in events(tmp_path, GenerationFormed)]
    assert sizes[0] == 2
    assert max(sizes) == 6
    assert sizes.index(6) in (1, 2), sizes


@pytest.mark.long
def test_a_worker_from_elsewhere_ends_with_the_job(tmp_path: Path) -> None:
    write_roomy_script(tmp_path)
    with started(tmp_path, *run(), "--lr", "1") as process:
        wait_for_generation(tmp_path, (0, 1))
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        wait_for(tmp_path, WorkerStarted)  # number 2 is given: the next one gets 3
        with started(tmp_path, *way_in(tmp_path), variables=ELSEWHERE) as joined:
            wait_for_generation(tmp_path, (0, 3))
            coordinator_in(tmp_path).kill()  # and outlives the coordinator
            time.sleep(0.5)
            (tmp_path / "done").touch()
            stdout, stderr = joined.communicate(timeout=PATIENCE)
            assert (joined.returncode, stdout) == (0, "arguments ['--lr', '1']\n"), stderr
        finish(tmp_path, process)


LATE = """
import os, time, shoal, torch
print("waits", flush=True)
while not os.path.exists("over"):
    time.sleep(0.02)
shoal.main(lambda run: None)
"""


@pytest.mark.long
@pytest.mark.parametrize("has_own_token", [False, True])
def test_a_worker_from_elsewhere_that_comes_when_the_job_has_ended_is_no_mistake(
    tmp_path: Path, has_own_token: bool
) -> None:
    write_roomy_script(tmp_path)
    write_script(tmp_path, LATE, name="late.py")
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        way = way_in(tmp_path)
        if has_own_token:  # else the launcher takes the file with it
            way[-1] = shutil.copy(way[-1], tmp_path / "token")
        with started(tmp_path, *way, "late.py", variables=ELSEWHERE) as joined:
            assert joined.stdout is not None
            assert joined.stdout.readline() == "waits\n"
            (tmp_path / "done").touch()
            assert process.wait(PATIENCE) == 0
            (tmp_path / "over").touch()
            _, stderr = joined.communicate(timeout=PATIENCE)
    assert "the job has ended: " in stderr
    assert joined.returncode == 0, stderr


@pytest.mark.long
def test_a_killed_joiner_takes_its_worker_with_it(tmp_path: Path) -> None:
    write_roomy_script(tmp_path)
    with started(tmp_path, *run()) as process:
        wait_for_generation(tmp_path, (0, 1))
        os.kill(process_of(tmp_path, 1), signal.SIGKILL)
        wait_for(tmp_path, WorkerStarted)  # number 2 is given: the next one gets 3
        with started(tmp_path, *way_in(tmp_path), variables=ELSEWHERE) as joined:
            wait_for_generation(tmp_path, (0, 3))
            joined.kill()
            joined.wait()
            psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid := process_of(tmp_path, 3)) else [], 30)
            assert not psutil.pid_exists(pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("127.0.0.1:1", "--token-file", "token"), 6, NOBODY_THERE),
        (("127.0.0.1:1", "--token-file", "absent"), 2, "--token-file"),
        (("--token-file", "token", "nowhere:port"), 2, "ADDRESS is 'nowhere:port'"),
        (("127.0.0.1:1",), 2, "--token-file"),
        (("127.0.0.1:1", "--token-fil", "token"), 2, "--token-file"),
    ],
)
def test_mistakes_in_joining_are_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    write_token(tmp_path / "token", "secret")
    outcome = shoal(tmp_path, "join", *arguments)
    assert outcome.code == code
    [line] = outcome.stderr.splitlines()
    assert words in line
