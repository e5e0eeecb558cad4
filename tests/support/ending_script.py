"""A script with much to do behind its loop: the first worker writes files there, and workers die where they are told.

At each place that a worker comes to it looks for files: `hold-PLACE-N` keeps worker N there for as long as it is there,
`kill-PLACE-N` kills it. Places, in order: import, joined (before the first generation), connect (to its members), start
(of its function), behind (the loop), writing (half of the file is written), evaluated, part (of a checkpoint), done (it
has said so, and waits for the others), main (behind `shoal.main`; where there is a file `goes-on` something follows
it), exit (its interpreter comes to its end). The file `ran` has a line for each place that a worker came to.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

WORKER = os.environ.get("SHOAL_WORKER", "0")


def at(place: str) -> None:
    with Path("ran").open("a", encoding="utf-8") as lines:
        lines.write(f"{place} {WORKER}\n")
    while Path(f"hold-{place}-{WORKER}").exists():
        time.sleep(0.02)
    if Path(f"kill-{place}-{WORKER}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)


at("import")
atexit.register(at, "exit")  # before Shoal's own, so that it runs after that

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import shoal  # noqa: E402
from shoal.checkpoint.parts import part_thread  # noqa: E402
from shoal.checkpoint.parts.part_writer import write_part  # noqa: E402
from shoal.membership.client import CoordinatorClient  # noqa: E402
from shoal.strategies.peers.cluster_peers import ClusterPeers  # noqa: E402
from shoal.values import Generation  # noqa: E402

SAMPLES, EPOCHS = 40, 2
wait_for_word, await_word = CoordinatorClient.wait_for_word, CoordinatorClient._await_word
connect = ClusterPeers.connect


def joined(client: CoordinatorClient, after: int) -> object:
    if after == 0:
        at("joined")
    return wait_for_word(client, after)


def done(client: CoordinatorClient, after: int, timeout: float) -> object:
    at("done")
    return await_word(client, after, timeout)


def connecting(peers: ClusterPeers, generation: Generation) -> None:
    at("connect")
    connect(peers, generation)


def part(*arguments: Any) -> int:
    at("part")
    return write_part(*arguments)


part_thread.write_part = part
ClusterPeers.connect = connecting  # type: ignore[method-assign]  # on purpose
CoordinatorClient.wait_for_word = joined  # type: ignore[assignment, method-assign]  # on purpose
CoordinatorClient._await_word = done  # type: ignore[assignment, method-assign]  # on purpose


def train(run: shoal.Run) -> bool:
    at("start")
    model = run.model(nn.Embedding(SAMPLES, 1, dtype=torch.float64))
    nn.init.zeros_(model.weight)
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    run.keep(rate=rate)
    data = TensorDataset(torch.arange(SAMPLES))
    for epoch in run.epochs(EPOCHS):
        for (index,) in epoch.batches(data, batch_size=4):
            # The gradient is -1 over the step's samples for each use; with that many, and the rate, each use adds one.
            samples = run._session.iteration.step_samples  # type: ignore[union-attr]  # there is one in a loop
            (-model(index).mean() * samples / rate.get_last_lr()[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
        rate.step()
        if run.is_first:
            Path(f"epoch-{epoch.number}").write_text(f"{model.weight.mean().item():.3f}", encoding="utf-8")
    at("behind")
    text = json.dumps({"uses": model.weight.flatten().tolist(), "rate": rate.get_last_lr(), "steps": run.step})
    if run.is_first:
        Path("result.json").write_text(text[: len(text) // 2], encoding="utf-8")
        at("writing")
        Path("result.json").write_text(text, encoding="utf-8")
    score = run.evaluate(lambda index: model(index).mean(), data, batch_size=10)["score"]
    at("evaluated")
    if run.is_first:
        Path("score").write_text(f"{score:.3f}", encoding="utf-8")
    return run.is_first


if __name__ == "__main__":
    if Path("goes-on").exists():
        is_first = shoal.main(train)
        at("main")
        if is_first:
            Path("after-main").write_text("done", encoding="utf-8")
    else:
        shoal.main(train)
