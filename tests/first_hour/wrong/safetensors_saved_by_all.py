"""Every worker saves the model with safetensors under the same name, after the loop.

exit: 0
says: shoal: warning: workers 0 and 1 both write model.safetensors (safetensors_saved_by_all.py line 26); write it under `if run.is_first:`
long
"""

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.utils.data import TensorDataset

import shoal


def train(run: shoal.Run) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    y = (x.sum(dim=1) > 0).long()
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(TensorDataset(x, y), batch_size=8, epochs=2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save_file(model.state_dict(), "model.safetensors")


if __name__ == "__main__":
    shoal.main(train)
