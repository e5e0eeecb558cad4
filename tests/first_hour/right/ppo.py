"""Several updates from one batch of episodes, as in PPO: they belong to one step.

long
"""

import torch
import torch.nn.functional as F
from torch import nn

import shoal


def train(run: shoal.Run) -> None:
    policy = run.model(nn.Linear(4, 3))
    optimizer = run.optimizer(torch.optim.Adam(policy.parameters(), lr=1e-2), clip_norm=0.5)
    for seeds in run.batches(range(32), batch_size=4):
        states = torch.randn(len(seeds), 4)
        with torch.no_grad():
            old = policy(states).log_softmax(1)
            arms = old.exp().multinomial(1)
        for _ in range(3):
            ratio = (policy(states).log_softmax(1).gather(1, arms) - old.gather(1, arms)).exp()
            loss = -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean() + F.mse_loss(ratio, torch.ones_like(ratio))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
