"""Train a small network with Hugging Face's Accelerate. It knows nothing of spotmpi::

    accelerate launch --cpu --num_processes 4 jobs/pytorch/train_accelerate.py
    spotmpi run -n 4 jobs/pytorch/train_accelerate.py

The network learns which of the first three numbers of a row is the largest. In the end it is saved
in the folder ``kept``.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, RATE = 4, 16, 3e-3


def main() -> None:
    """Train, and say how good the network is after each epoch."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    x = torch.randn(2048, 20)
    rows = TensorDataset(x, x[:, :3].argmax(1))
    layers = torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    train, test = DataLoader(rows, BATCH, shuffle=True), DataLoader(rows, BATCH)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for inputs, wanted in train:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), wanted))
            optimizer.step()
        model.eval()
        right, seen = 0, 0
        for inputs, wanted in test:
            with torch.no_grad():
                guessed = model(inputs).argmax(1)
            guessed, due = accelerator.gather_for_metrics((guessed, wanted))
            right, seen = right + int((guessed == due).sum()), seen + len(due)
        rank = accelerator.process_index
        print(f"rank {rank}: {right / seen:.4f} of all rows are right, epoch {epoch}", flush=True)
    accelerator.save_model(model, "kept")
    accelerator.end_training()


if __name__ == "__main__":
    main()
