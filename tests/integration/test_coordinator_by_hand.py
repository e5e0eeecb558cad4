"""`shoal coordinator` as a command: killed, and started again by hand with the run directory alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shoal.membership.client import CoordinatorClient
from shoal.values import Address
from shoal.wire.messages import ExchangeBroken
from support.membership import join
from support.membership_job import PATIENCE

TOKEN = "a-token-of-this-test"


def start(*options: str | Path) -> tuple[subprocess.Popen[str], Address]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "coordinator", *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    host, port = process.stdout.readline().split()[-1].rsplit(":", 1)
    return process, Address(host, int(port))


def end(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(PATIENCE)


def test_a_coordinator_started_again_by_hand_goes_on_with_the_job_and_its_settings(tmp_path: Path) -> None:
    token_file, run_dir = tmp_path / "token", tmp_path / "run"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    run_dir.mkdir()
    first, address = start(
        *("--workers=1", "--checkpoint-every=never", f"--run-dir={run_dir}", f"--token-file={token_file}"),
        *("--address=127.0.0.1:0", "--", "train.py", "--epochs=3"),
    )
    try:
        with CoordinatorClient.connect(address, TOKEN, join(0), timeout=PATIENCE) as client:
            assert client.wait_for_generation(0).number == 1
            first.kill()
            end(first)
            second, again = start(f"--run-dir={run_dir}", f"--token-file={token_file}")
            assert again == address
            try:
                client.tell(
                    ExchangeBroken(
                        generation=1, step=3, operation="all-reduce", peer=None, reason="on purpose", holds=1
                    )
                )
                assert client.wait_for_generation(1).number == 2
                client.leave(step=4, reason="the script is done")
                assert end(second) == 0
            finally:
                second.kill()
                end(second)
    finally:
        first.kill()
        end(first)
    record = (run_dir / "events.jsonl").read_text()
    assert record.count('"job-started"') == 1
    assert '"arguments":["--epochs=3"]' in record
    assert '"coordinator-returned"' in record
