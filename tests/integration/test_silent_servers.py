"""Servers that are stopped, not dead: nobody waits for them longer than the setting says."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.parameters.keeper.group_events import GroupServerLost
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.values import Address
from support import served_script
from support.launcher import PATIENCE, started, write_token
from support.served_script import assert_each_sample_once, events_of, result
from support.server_groups import ServerProcess, wait_until

TOKEN = "of the group"


class LentGroup:
    """A keeper in this process and servers that nobody ends: as on machines where the keeper is not."""

    def __init__(self, folder: Path, silence_limit: float) -> None:
        self.file = folder / "group-token"
        write_token(self.file, TOKEN)
        self.events: list[object] = []
        config = KeeperConfig(Address("127.0.0.1", 0), TOKEN, expected=3, replicas=2, silence_limit=silence_limit)
        self.keeper = Keeper(config, self.events.append)
        self.keeper.start()
        self.servers = [ServerProcess(self.keeper.address, self.file, number) for number in range(3)]

    def close(self) -> None:
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            server.process.kill()
            server.process.communicate()
        self.keeper.close()


@contextlib.contextmanager
def lent_group(folder: Path, silence_limit: float) -> Iterator[LentGroup]:
    with contextlib.closing(LentGroup(folder, silence_limit)) as group:
        yield group


def wait_for_steps(folder: Path, process: subprocess.Popen[str], more_than: int) -> int:
    limit = time.monotonic() + PATIENCE
    while True:
        steps = [event["step"] for event in events_of(folder / "run") if event["kind"] == "steps-applied"]
        if steps and max(steps) > more_than:
            return int(max(steps))
        assert process.poll() is None and time.monotonic() < limit, steps
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("more", [(), ("--consistency", "asynchronous", "--staleness-scaling", "none")])
def test_a_job_goes_on_without_a_home_server_that_is_stopped(tmp_path: Path, more: tuple[str, ...]) -> None:
    served_script.write(tmp_path, pause=0.03)
    with lent_group(tmp_path, silence_limit=1.5) as group:
        options = ("--servers", str(group.keeper.address), "--servers-token", str(group.file), "--run-dir", "run")
        command = ("run", "-n", "2", "--strategy", "parameter-server", "--server-limit", "1.5", *options, *more)
        with started(tmp_path, *command, "script.py") as process:
            wait_for_steps(tmp_path, process, more_than=3)
            group.servers[0].process.send_signal(signal.SIGSTOP)
            wait_until(lambda: any(isinstance(event, GroupServerLost) for event in group.events), "the keeper notices")
            stdout, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, stdout[-3000:] + stderr[-3000:]
        assert_each_sample_once(result(tmp_path))
        group.servers[0].process.send_signal(signal.SIGCONT)
        assert group.servers[0].process.wait(PATIENCE) != 0, "it is not wanted any more"
