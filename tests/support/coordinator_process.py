"""Run as a program: a coordinator on an inherited listening socket. Arguments: JSON of fd, token, settings, run_dir."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from shoal.events import JobStarted
from shoal.job_config import from_mapping
from shoal.membership.coordinator import CoordinatorSettings, serve


def main() -> int:
    given = json.loads(sys.argv[1])
    config = from_mapping(given["settings"], origin="test")
    started = JobStarted(
        script="train.py",
        arguments=(),
        workers=config.workers,
        strategy=config.strategy,
        schedule=config.schedule,
        codec=config.codec,
        seed=config.seed,
    )
    listener = socket.socket(fileno=given["fd"])
    run_dir = Path(given["run_dir"])
    return serve(CoordinatorSettings(listener, given["token"], config, run_dir, started))


if __name__ == "__main__":
    code = main()
    assert "torch" not in sys.modules, "the coordinator must not wait for torch"
    sys.exit(code)
