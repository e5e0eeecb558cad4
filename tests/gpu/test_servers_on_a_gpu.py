"""Jobs with parameter servers whose workers share a GPU: they learn what all-reduce learns there, and lose servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.launcher import shoal
from support.served_device_jobs import ALL_REDUCE, BOUNDED, FREE, SERVED, ServedJobs, trained

EXAMPLES = Path(__file__).parents[2] / "examples"
REPLICATED = ("--servers", "2", "--replicas", "2")


@pytest.mark.timeout(300)  # three jobs in a test
class TestOnAGpu(ServedJobs):
    on, kind, beside = "own", "cuda", "own"

    def test_a_checkpoint_moves_to_all_reduce(self, tmp_path: Path) -> None:
        stopped = trained(tmp_path, *SERVED, "--run-dir", "stopped", on=self.on, stop=25)
        resumed = trained(tmp_path, "--resume", "stopped", *ALL_REDUCE, on=self.beside)
        assert resumed.accuracy > max(stopped.accuracy, 0.7)

    def test_a_checkpoint_moves_from_all_reduce(self, tmp_path: Path) -> None:
        stopped = trained(tmp_path, "--run-dir", "stopped", on=self.beside, stop=25)
        resumed = trained(tmp_path, "--resume", "stopped", *SERVED, on=self.on)
        assert resumed.kinds == {self.kind}
        assert resumed.accuracy > max(stopped.accuracy, 0.7)


@pytest.mark.parametrize("who", ["worker", "server"])
def test_a_killed_process_does_not_end_the_job(tmp_path: Path, who: str) -> None:
    chaos = ("--chaos", f"kill {who} at step 20")
    found = trained(tmp_path, "--strategy", "parameter-server", *REPLICATED, *chaos, "--digest-every", "5", on="own")
    assert found.kinds == {"cuda"}
    assert len(found.digests) == 1


@pytest.mark.parametrize("settings", [SERVED, FREE, BOUNDED], ids=["synchronous", "asynchronous", "bounded"])
@pytest.mark.parametrize(
    ("example", "arguments", "says"),
    [
        ("digits.py", ("--epochs", "2"), r"epoch 2: held-out accuracy ([\d.]+)%"),
        ("gpt.py", ("--steps", "60", "--bytes", "500000"), r"held-out loss ([\d.]+) nats"),
    ],
)
def test_examples_learn_with_servers_what_they_learn_without(
    tmp_path: Path, settings: tuple[str, ...], example: str, arguments: tuple[str, ...], says: str
) -> None:
    found = []
    for options in (settings, ("--strategy", "all-reduce")):
        outcome = shoal(tmp_path, "run", "-n", "2", *options, str(EXAMPLES / example), *arguments)
        assert outcome.code == 0, outcome.stderr + outcome.stdout
        found.append(float(re.findall(says, outcome.stdout)[0]))
    # Updates of one worker's gradient each are smaller steps, taken twice as often; `steps=` counts them all.
    assert found[0] == pytest.approx(found[1], rel=0.02 if settings is SERVED else 0.2)
