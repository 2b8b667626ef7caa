"""Train a small network with Lightning. It knows nothing of spotmpi::

    python jobs/pytorch/train_lightning.py
    spotmpi run -n 4 jobs/pytorch/train_lightning.py

The network learns which of the first three numbers of a row is the largest. The best one is kept in
the folder ``kept``. Under spotmpi it needs as many ``devices`` as there are workers.
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, RATE = 4, 16, 3e-3


class Network(lightning.LightningModule):  # type: ignore[misc]  # it may not be there
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, wanted = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), wanted)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, _number: int) -> None:
        """Note how many rows of a batch are right."""
        inputs, wanted = batch
        right = (self.layers(inputs).argmax(1) == wanted).float().mean()
        self.log("right", right, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Say how many rows are right."""
        right = float(self.trainer.callback_metrics["right"])
        said = f"rank {self.global_rank}: {right:.4f} of all rows are right"
        print(f"{said}, epoch {self.current_epoch + 1}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=RATE)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    x = torch.randn(2048, 20)
    rows = TensorDataset(x, x[:, :3].argmax(1))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        logger=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint("kept", "best", monitor="right", mode="max")],
    )
    trainer.fit(Network(), DataLoader(rows, BATCH, shuffle=True), DataLoader(rows, 64))


if __name__ == "__main__":
    main()
