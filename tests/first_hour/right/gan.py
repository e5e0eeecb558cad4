"""A GAN: two models, two optimizers, and a generator whose loss goes through the discriminator."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import shoal


def data() -> TensorDataset:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(run: shoal.Run) -> None:
    generator = run.model(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)))
    critic = run.model(nn.Linear(4, 1))
    optimizer_g = run.optimizer(torch.optim.Adam(generator.parameters()))
    optimizer_c = run.optimizer(torch.optim.Adam(critic.parameters()))
    for real, _ in run.batches(data(), batch_size=8, epochs=2):
        fake = generator(torch.randn(len(real), 2))
        optimizer_c.zero_grad()
        (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
        optimizer_c.step()
        optimizer_g.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        optimizer_g.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-1.0, 1.0)


if __name__ == "__main__":
    shoal.main(train)
