"""`shoal run` with scripts and circumstances that do not work: one message, a documented code, nothing left running."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from shoal.launching import texts
from support.launcher import (
    command_of,
    leftovers,
    processes_in,
    shoal,
    started,
    wait_for_file,
    without_frame,
    write_script,
)

STEPS = """
print("hello from", me.worker, flush=True)
with open("started", "a") as file:
    print(os.getpid(), file=file)
for step in range(1, 10_000):
    report(step, loss=1.0)
    time.sleep(0.02)
"""


def test_killed_worker_that_nobody_can_replace_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    script = write_script(tmp_path, STEPS, joins=True)
    script.write_text("import os\nif os.path.exists('broken'):\n    os.kill(os.getpid(), 9)\n" + script.read_text())
    with started(tmp_path, "run", "--run-dir", "out", "--max-failures", "1", "script.py") as process:
        [pid] = wait_for_file(tmp_path / "started")
        assert wait_for_file(tmp_path / "out/logs/worker-0.log") == ["hello from 0"]
        (tmp_path / "broken").touch()
        os.kill(int(pid), signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 3
    assert stderr.count("shoal: error:") == 1
    assert "worker 1" in stderr
    assert "was killed by SIGKILL" in stderr
    assert "worker 1 had printed nothing" in stderr
    assert "hello from 0" in stdout
    assert leftovers(tmp_path) == []


def test_traceback_of_a_joined_worker_is_shown_once_with_its_number(tmp_path: Path) -> None:
    text = """
if me.worker == 1:
    client.failed(step=0, error="ScriptFailed", text="Traceback (most recent call last):\\nValueError: bad batch")
    client.close()
    sys.exit(1)
wait_for_generation(1)
"""
    write_script(tmp_path, text, joins=True)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 1
    assert (outcome.stdout + outcome.stderr).count("ValueError: bad batch") == 1
    assert "worker 1" in outcome.stderr


def test_plain_script_that_raises_is_shown_once(tmp_path: Path) -> None:
    write_script(tmp_path, "if os.environ['RANK'] == '1':\n    raise ValueError('bad batch')\ntime.sleep(100)\n")
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 1
    assert (outcome.stdout + outcome.stderr).count("bad batch") == 2  # the source line and the error, once
    assert "[worker 1] ValueError: bad batch" in outcome.stdout
    assert "worker 1 exited with code 1" in outcome.stderr


def test_failure_after_training_still_counts(tmp_path: Path) -> None:
    write_script(tmp_path, "report(1)\nleave(1)\nsys.exit(5 if me.worker == 0 else 0)\n", joins=True)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 1
    assert "worker 0" in outcome.stderr
    assert "exited with code 5" in outcome.stderr


def test_children_of_a_dead_worker_go_with_it(tmp_path: Path) -> None:
    text = "subprocess.Popen(['sleep', '1000'])\nopen('started', 'a').write('x\\n')\nos.kill(os.getpid(), 9)\n"
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "script.py")
    assert outcome.code == 3
    assert "was killed by SIGKILL" in outcome.stderr


def test_worker_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("started", "a").write("x\\n")
while os.environ["RANK"] == "1" and len(open("started").read()) < 4:
    time.sleep(0.02)
sys.exit(4) if os.environ["RANK"] == "1" else time.sleep(1000)
"""
    write_script(tmp_path, text)
    assert shoal(tmp_path, "run", "-n", "2", "script.py").code == 1


def test_a_coordinator_that_cannot_live_is_a_clear_error(tmp_path: Path) -> None:
    write_script(tmp_path, STEPS, joins=True)
    with started(tmp_path, "run", "-n", "2", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        while process.poll() is None:
            for one in processes_in(tmp_path):
                with contextlib.suppress(psutil.Error):
                    if "coordinator" in command_of(one):
                        one.kill()
            time.sleep(0.02)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 70
    [line] = without_frame(stderr).splitlines()
    assert texts.coordinator_gone("was killed by SIGKILL", 11) in line
    assert leftovers(tmp_path) == []


def test_nothing_survives_a_killed_launcher(tmp_path: Path) -> None:
    text = "subprocess.Popen(['sleep', '1000'])\nopen('started', 'a').write('x\\n')\ntime.sleep(1000)\n"
    write_script(tmp_path, text)
    with started(tmp_path, "run", "-n", "2", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert leftovers(tmp_path) == []  # sleepers, coordinator and the token's folder included


def test_token_is_private_and_outside_the_run_directory(tmp_path: Path) -> None:
    text = """
path = os.environ["SHOAL_TOKEN_FILE"]
print(path, oct(os.stat(path).st_mode), oct(os.stat(os.path.dirname(path)).st_mode))
"""
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "--run-dir", "out", "script.py")
    path, mode, folder_mode = outcome.stdout.split()
    assert (mode, folder_mode) == ("0o100600", "0o40700")
    assert path.startswith(str(tmp_path / "runtime"))
    assert not Path(path).parent.exists()


def test_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    write_script(tmp_path, "print('never')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = shoal(tmp_path, "run", "--address", f"127.0.0.1:{port}", "script.py")
    assert outcome.code == 6
    [line] = outcome.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert outcome.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_existing_run_directory_is_left_alone(tmp_path: Path) -> None:
    write_script(tmp_path, "print('never')")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").write_text("mine")
    outcome = shoal(tmp_path, "run", "--run-dir", "out", "script.py")
    assert outcome.code == 7
    assert "--run-dir" in outcome.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runtime", "script.py"]


@pytest.mark.parametrize("arguments", [("--address", "0.0.0.0:0"), ("--address", "192.0.2.1:7000")])
def test_coordinator_beyond_loopback_needs_a_token(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = shoal(tmp_path, "coordinator", *arguments)
    assert outcome.code == 2
    [line] = outcome.stderr.splitlines()
    assert "token" in line
