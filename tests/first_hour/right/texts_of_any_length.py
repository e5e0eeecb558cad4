"""Samples are dictionaries of strings and lists, of different lengths, which a function makes into batches.

long
"""

import torch
import torch.nn.functional as F

import shoal


def padded(samples: list[dict[str, object]]) -> tuple[torch.Tensor, torch.Tensor]:
    words = [torch.tensor([float(ord(letter) - 96) for letter in str(sample["text"])]) for sample in samples]
    labels = torch.tensor([sample["label"] for sample in samples])
    return torch.nn.utils.rnn.pad_sequence(words, batch_first=True), labels


def train(run: shoal.Run) -> None:
    texts = [{"text": "abcdefgh"[: 1 + number % 8], "label": number % 2, "spans": [0, number]} for number in range(64)]
    model = run.model(torch.nn.Linear(1, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs, targets in run.batches(texts, batch_size=8, epochs=2, collate=padded):
        loss = F.cross_entropy(model(inputs.mean(dim=1, keepdim=True)), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    shoal.main(train)
