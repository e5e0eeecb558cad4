"""The commands of rendered pods, run as pods of one machine: they fit together, and the job trains to its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.launcher import PATIENCE, SHOAL
from support.network import Network
from support.pods import Pods

TRAIN = """
import sys, time
import torch
import shoal

def train(run):
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for x, y in run.batches(data, batch_size=4, epochs=int(sys.argv[1])):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(sys.argv[2]))
    print("trained with", sys.argv[3:], flush=True)

if __name__ == "__main__":
    shoal.main(train)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(4) as made:
        yield made


def rendered(folder: Path, *words: str, place: str = "claim:runs") -> list[dict[str, Any]]:
    (folder / "train.py").write_text(TRAIN)
    command = [
        *SHOAL,
        "manifests",
        "train.py",
        "-n",
        "2:3",
        "--image",
        "train:1",
        "--checkpoint-to",
        place,
        *words,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def happened(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events so far, from the record on the volume."""
    lines = [line for file in folder.glob("claims/runs/*/events.jsonl") for line in file.read_text().splitlines()]
    return [event for line in lines if (event := json.loads(line)["event"])["kind"] == kind]


def wait_for_members(folder: Path, *wanted: int) -> None:
    """Until the job has these workers."""
    until = time.monotonic() + PATIENCE
    while not any(tuple(event["workers"]) == wanted for event in happened(folder, "generation-formed")):
        assert time.monotonic() < until, happened(folder, "generation-formed")
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_pods_of_a_job_train_to_its_end(tmp_path: Path, network: Network) -> None:
    documents = rendered(tmp_path, "--checkpoint-every", "20", "--", "8", "0.02", "--lr", "$(HOME) $$ $", "a b")
    pods = Pods(documents, network, tmp_path)
    coordinator = pods.start("train-coordinator", 0)
    workers = [pods.start("train-workers", machine) for machine in (1, 2)]
    said = [worker.communicate(timeout=PATIENCE)[0] for worker in workers]
    told, _ = coordinator.communicate(timeout=PATIENCE)
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert coordinator.returncode == 0, told
    assert all("trained with ['--lr', '$(HOME) $$ $', 'a b']" in each for each in said)
    assert list(tmp_path.glob("claims/runs/*-train/checkpoints/step-*/manifest*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_wait_hand_over_and_are_replaced_and_so_is_the_coordinator(tmp_path: Path, network: Network) -> None:
    pods = Pods(rendered(tmp_path, "--", "60", "0.05"), network, tmp_path)
    first = pods.start("train-workers", 1)  # the coordinator's pod comes later
    second = pods.start("train-workers", 2)
    coordinator = pods.start("train-coordinator", 0)
    wait_for_members(tmp_path, 3, 4)
    third = pods.start("train-workers", 3)
    wait_for_members(tmp_path, 3, 4, 5)
    first.send_signal(signal.SIGTERM)  # as for a node that is drained
    said, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 143, said  # 0 would tell Kubernetes that the job is done
    coordinator.kill()
    coordinator.communicate(timeout=PATIENCE)
    again = pods.start("train-coordinator", 0)
    replacement = pods.start("train-workers", 1)
    second.kill()
    second.communicate(timeout=PATIENCE)
    for pod in (third, replacement, again):
        said, _ = pod.communicate(timeout=2 * PATIENCE)
        assert pod.returncode == 0, said
    assert len(happened(tmp_path, "coordinator-returned")) == 1
    assert [event["is_handover"] for event in happened(tmp_path, "worker-left")].count(True) == 1


# A client on the object store's machine: it makes the bucket, or prints what is in it.
ASK = """
import sys, time, urllib.error, urllib.request
for _ in range(600):
    try:
        print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:5000/bucket", method=sys.argv[1])).read())
        break
    except urllib.error.URLError:
        time.sleep(0.1)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_pods_keep_checkpoints_in_an_object_store_with_keys_from_a_secret(tmp_path: Path, network: Network) -> None:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    network.start(3, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000", **quiet)
    assert network.start(3, "-c", ASK, "PUT").wait(PATIENCE) == 0
    documents = rendered(tmp_path, "--env-from", "keys", "--", "2", "0.02", place="s3://bucket/runs")
    pods = Pods(documents, network, tmp_path)
    pods.secrets["keys"] = {
        "AWS_ENDPOINT_URL": f"http://{network.host(3)}:5000",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    started = [pods.start("train-coordinator", 0), *(pods.start("train-workers", machine) for machine in (1, 2))]
    for pod in started:
        said, _ = pod.communicate(timeout=2 * PATIENCE)
        assert pod.returncode == 0, said
    there, _ = network.start(3, "-c", ASK, "GET").communicate(timeout=PATIENCE)
    assert re.search(r"<Key>runs/[0-9-]+-train/step-[^<]*/manifest", there), there
