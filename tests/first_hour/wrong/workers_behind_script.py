"""The number of workers stands behind the script, which would get it: one worker would train, in silence.

run: SCRIPT -n 2
says: -n stands behind workers_behind_script.py, so it would go to the script, which does not mention it
says: use `shoal run -n 2 workers_behind_script.py`
"""

import torch

import shoal


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    for x, y in run.batches(data, batch_size=8):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
