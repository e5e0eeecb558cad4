"""The script that `shoal bench recovery` runs: a language model on the standard library's source, with a diary.

Each worker writes when it had imported torch, and when it applied which step in which generation, by the clock that all
processes of a machine share. At the end it writes what being ready for faults has cost it.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import threading
import time
from pathlib import Path
from typing import IO

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import shoal

IMPORTED = time.monotonic()
CONTEXT, WIDTH, LAYERS, BATCH, BYTES = 128, 128, 4, 8, 4_000_000  # as in the example gpt.py


class Windows(Dataset[torch.Tensor]):
    """Bytes of the standard library's modules, in windows."""

    def __init__(self) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
        self.text = torch.frombuffer(bytearray(text[:BYTES]), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


class ByteModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return torch.as_tensor(self.head(self.blocks(x, mask=self.mask, is_causal=True)))


def write(diary: IO[str], **line: object) -> None:
    diary.write(json.dumps(line) + "\n")
    diary.flush()


def heartbeat_seconds() -> float:
    """Processor time of the thread that talks to the coordinator."""
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "shoal-coordinator-client")
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def train(run: shoal.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--diaries", type=Path, required=True)
    parser.add_argument("--until", type=Path, required=True, help="training ends when this file is there")
    options = parser.parse_args()
    peers = run._session.peers
    with (options.diaries / f"{peers.worker}.jsonl").open("a", encoding="utf-8") as diary:
        write(diary, imported=IMPORTED, pid=os.getpid())
        model = run.model(ByteModel)
        optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), clip_norm=1.0)
        for batch in run.batches(Windows(), batch_size=BATCH, steps=10**6):
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            if run.applied:
                samples = run._session.iteration.step_samples  # type: ignore[union-attr]  # there is one in a loop
                write(
                    diary, at=time.monotonic(), step=run.step + 1, generation=peers.generation.number, samples=samples
                )
            optimizer.zero_grad()
            run.log(loss=loss)
            if run.is_first and options.until.exists():
                run.stop("measured")
        write(diary, costs={**run._session.progress.costs, "heartbeats": heartbeat_seconds()}, steps=run.step)


if __name__ == "__main__":
    shoal.main(train)
