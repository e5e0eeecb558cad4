"""Reinforcement learning: the data are numbers of episodes, and losses are means over their steps.

long
"""

import torch
from torch import nn

import shoal


def train(run: shoal.Run) -> None:
    policy = run.model(nn.Linear(1, 3))
    optimizer = run.optimizer(torch.optim.Adam(policy.parameters(), lr=1e-2))
    for seeds in run.batches(range(64), batch_size=4):
        steps = int(torch.randint(1, 9, ()).item())  # episodes differ in length from worker to worker
        contexts = (seeds[:, None] / 64).repeat(steps, 1)
        odds = policy(contexts).log_softmax(1)
        arms = odds.exp().multinomial(1)
        reward = (arms == 2).float() - run.mean((arms == 2).float().mean())
        run.weight(len(contexts))
        (-odds.gather(1, arms) * reward).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(reward=reward.mean())


if __name__ == "__main__":
    shoal.main(train)
