"""`shoal run` and Ctrl-C, SIGTERM, a reader that leaves, a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from pathlib import Path

import pytest

from shoal.launching import texts
from support.launcher import (
    PATIENCE,
    SHOAL,
    leftovers,
    shoal,
    started,
    wait_for_file,
    wait_for_line,
    without_frame,
    write_script,
)

UNTIL_STOPPED = """
open("started", "a").write("x\\n")
step = 0
while client.stop_reason is None:
    step += 1
    report(step, loss=1.0)
    time.sleep(0.02)
if me.worker == 0:
    client.report(events.StopAgreed(step=step, reason=client.stop_reason))
leave(step, client.stop_reason)
"""
STUBBORN = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('started', 'a').write('x\\n')\ntime.sleep(1000)\n"
# In short sleeps: Python sleeps through a signal that comes between its last look for one and the system call.
PATIENT = "open('started', 'a').write('x\\n')\nwhile True:\n    time.sleep(0.05)\n"


STOPPED = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))  # exit codes


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(number, code, texts.STOP_WORDS[number]) for number, code in STOPPED],
)
def test_one_signal_stops_a_joined_job_after_its_step(
    tmp_path: Path, number: signal.Signals, code: int, words: str
) -> None:
    write_script(tmp_path, UNTIL_STOPPED, joins=True)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_line(process, "step ")  # the launcher knows that they have joined
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert texts.STOPPING_AFTER_STEP in stdout
    assert "interrupted (" in stdout  # the summary
    last = (tmp_path / "out/events.jsonl").read_text().splitlines()[-1]
    assert f'"outcome":"interrupted","exit_code":{code}' in last
    [line] = without_frame(stderr).splitlines()
    assert words in line
    assert leftovers(tmp_path) == []


def test_ctrl_c_interrupts_a_plain_script_without_its_traceback(tmp_path: Path) -> None:
    write_script(tmp_path, "print('before', flush=True)\n" + PATIENT)
    with started(tmp_path, "run", "-n", "2", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in stdout + stderr
    assert stdout.count("before") == 2
    assert leftovers(tmp_path) == []


def test_plain_script_may_clean_up_after_ctrl_c(tmp_path: Path) -> None:
    text = "try:\n    " + PATIENT.replace("\n", "\n    ") + "\nexcept KeyboardInterrupt:\n    print('saved')\n"
    write_script(tmp_path, text)
    with started(tmp_path, "run", "script.py") as process:
        wait_for_file(tmp_path / "started")
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "saved" in stdout


def test_second_ctrl_c_stops_now(tmp_path: Path) -> None:
    write_script(tmp_path, STUBBORN)
    with started(tmp_path, "run", "-n", "2", "script.py") as process:
        wait_for_file(tmp_path / "started", count=2)
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "Ctrl-C again")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert leftovers(tmp_path) == []


def test_job_stops_when_nobody_reads_its_output(tmp_path: Path) -> None:
    write_script(tmp_path, "while True:\n    print('line')\n    time.sleep(0.01)\n")
    with started(tmp_path, "run", "script.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE
        assert process.stderr is not None
        [line] = without_frame(process.stderr.read()).splitlines()
        assert "nobody reads its output" in line
    assert leftovers(tmp_path) == []


def read_terminal(terminal: int, until: str | None = None) -> str:
    """Until these words were shown, or the other side has closed it."""
    data = b""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit and (until is None or until.encode() not in data):
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # EIO: nobody has the terminal open any more
                break
            data += piece
    return data.decode(errors="replace")


def test_live_progress_in_a_terminal_and_ctrl_c_restores_it(tmp_path: Path) -> None:
    write_script(tmp_path, "print('a line', flush=True)\n" + UNTIL_STOPPED, joins=True)
    (tmp_path / "runtime").mkdir()
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "TERM": "xterm", "COLUMNS": "150"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(SHOAL[0], [*SHOAL, "run", "-n", "2", "script.py"], variables)
    try:
        shown = read_terminal(terminal, until="worker 1  step")
        os.write(terminal, b"\x03")
        shown += read_terminal(terminal)
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert "[worker 1] a line" in shown
    assert "worker 0  step" in shown
    assert texts.STOPPING_AFTER_STEP in shown
    assert texts.STOP_WORDS[signal.SIGINT] in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is visible again
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_ctrl_c_after_training_reaches_the_script(tmp_path: Path) -> None:
    write_script(tmp_path, "report(1)\nleave(1)\n" + PATIENT, joins=True)
    with started(tmp_path, "run", "script.py") as process:
        wait_for_file(tmp_path / "started")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert leftovers(tmp_path) == []


def test_worker_output_is_shown_while_it_runs(tmp_path: Path) -> None:
    write_script(tmp_path, "print('first')\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\nprint('second')\n")
    with started(tmp_path, "run", "script.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        (tmp_path / "go").touch()
        assert process.stdout.readline() == "second\n"
        assert process.wait(timeout=PATIENCE) == 0


def test_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    waiting = "while not os.path.exists('go'):\n    time.sleep(0.02)\n"
    write_script(tmp_path, f"open('started', 'a').write('x\\n')\n{waiting}print('done')\n")
    with started(tmp_path, "--version") as probe:
        probe.communicate(timeout=PATIENCE)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by what is started next
    try:
        with started(tmp_path, "run", "script.py") as process:
            wait_for_file(tmp_path / "started")
            process.send_signal(signal.SIGHUP)
            (tmp_path / "go").touch()
            stdout, _ = process.communicate(timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (process.returncode, stdout) == (0, "done\n")


def test_a_misspelt_variable_is_doubted_once_and_variables_of_others_are_not(tmp_path: Path) -> None:
    write_script(tmp_path, "report(1)\nleave(1)", joins=True)
    variables = {"SHOAL_NATVIE": "1", "SHOAL_PORT": "tcp://10.0.0.11:7000", "SHOAL_SERVICE_HOST": "10.0.0.11"}
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py", variables=variables)
    assert outcome.code == 0
    assert (outcome.stdout + outcome.stderr).count("SHOAL_NATVIE") == 1
    assert "did you mean SHOAL_NATIVE?" in outcome.stderr
    assert "SHOAL_PORT" not in outcome.stdout + outcome.stderr
    assert "SHOAL_SERVICE_HOST" not in outcome.stdout + outcome.stderr
