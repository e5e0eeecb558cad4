"""Run as a program: a coordinator on an inherited listening socket.

Argument: JSON of fd, token, settings, run_dir and, where checkpoints are published, the folder in which a publisher
without a store leaves what it was asked for.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from shoal.events import JobStarted
from shoal.job_config import from_mapping
from shoal.membership.coordinator import CoordinatorSettings, serve
from shoal.membership.publisher import Publisher, PublishOutcome, PublishRequest
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.codec_settings import CodecSettings


class FolderPublisher(Publisher):
    """Takes its time while there is a file `slow` in its folder, and fails while there is a file `full`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, request: PublishRequest) -> PublishOutcome:
        self._write("asked", request.checkpoint)
        while (self._folder / "slow").exists():
            time.sleep(0.01)
        if (self._folder / "full").exists():
            raise OSError(28, "No space left on device")
        self._write("published", f"{request.checkpoint} {' '.join(request.files)}")
        return PublishOutcome(size=42, removed=("step-00000001-g1",))

    def discard(self, checkpoint: str) -> None:
        self._write("discarded", checkpoint)

    def clean(self) -> None:
        pass

    def _write(self, file: str, line: str) -> None:
        with (self._folder / file).open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")


def main() -> int:
    given = json.loads(sys.argv[1])
    config = from_mapping(given["settings"], origin="test")
    started = JobStarted(
        script="train.py",
        arguments=(),
        workers=config.workers,
        strategy=config.strategy,
        schedule=config.of(AllReduceSettings).schedule,
        codec=config.of(CodecSettings).codec,
        seed=config.seed,
    )
    listener = socket.socket(fileno=given["fd"])
    run_dir = Path(given["run_dir"])
    publisher = FolderPublisher(Path(given["publisher"])) if given["publisher"] else None
    return serve(CoordinatorSettings(listener, given["token"], config, run_dir, started, publisher, given["past"]))


if __name__ == "__main__":
    code = main()
    assert "torch" not in sys.modules, "the coordinator must not wait for torch"
    sys.exit(code)
