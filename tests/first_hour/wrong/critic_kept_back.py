"""Two models are trained, and only one of them was handed over.

exit: 0
says: shoal: warning: Adam.step() trains a parameter of shape [1, 4] that is in no model of run.model
says: write model = run.model(model) and optimizer = run.optimizer(optimizer)
long
"""

# A warning also on several workers: whether the result is wrong is not certain. Scripts for personalised and federated
# learning, and agents that each have a baseline of their own, train a part that never leaves its worker on purpose.

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    actor = run.model(nn.Linear(4, 2))
    critic = nn.Linear(4, 1)
    actor_optimizer = run.optimizer(torch.optim.Adam(actor.parameters()))
    critic_optimizer = torch.optim.Adam(critic.parameters())
    for x, y in run.batches(data(), batch_size=8):
        value = critic(x).squeeze(1)
        F.mse_loss(value, y.float()).backward()
        critic_optimizer.step()
        critic_optimizer.zero_grad()
        advantage = (y - value).detach()
        (F.cross_entropy(actor(x), y, reduction="none") * advantage).mean().backward()
        actor_optimizer.step()
        actor_optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
