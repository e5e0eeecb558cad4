"""torch's compiler is not imported where nobody uses it, optimizers do the same as ever, and compiling still works."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TRAIN = """
import json, sys
import torch
from torch import nn
{before}
torch.manual_seed(0)
model = nn.Linear(5, 3)
found = []
for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad):
    optimizer = kind(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        model(torch.ones(2, 5)).pow(2).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        assert torch.is_grad_enabled()
    optimizer.load_state_dict(optimizer.state_dict())
    found.append(model.weight.sum().item())
has_compiler = "torch._dynamo" in sys.modules
{after}
print(json.dumps([has_compiler, found]))
"""
LEAN = "from shoal.training.lean_torch import spare_compiler\nspare_compiler()"
COMPILE = """
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
compiled(torch.ones(2, 5)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
found.append(model.weight.sum().item())
"""


def run(before: str) -> tuple[bool, list[float]]:
    program = TRAIN.format(before=before, after=COMPILE)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    has_compiler, found = json.loads(done.stdout)
    return has_compiler, found


@pytest.mark.long
def test_the_compiler_stays_out_and_results_are_the_same() -> None:
    """Whether it was imported is seen before the first use of the compiler, which then works."""
    has_compiler, plain = run("")
    assert has_compiler, "torch has learnt it: lean_torch.py can go"
    is_imported, lean = run(LEAN)
    assert not is_imported
    assert lean == plain
