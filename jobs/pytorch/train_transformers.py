"""Train a small BERT with Hugging Face's Trainer. It knows nothing of spotmpi::

    torchrun --nproc-per-node 4 jobs/pytorch/train_transformers.py
    spotmpi run -n 4 jobs/pytorch/train_transformers.py

It learns whether eight numbers add up to more than usual. Checkpoints are in the folder ``kept``.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

KINDS, LENGTH, ROWS = 50, 8, 1024


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]  # torch may not be there
    """Numbers, and whether their sum is large."""

    def __init__(self) -> None:
        self.x = torch.randint(0, KINDS, (ROWS, LENGTH))
        self.y = (self.x.sum(1) > LENGTH * (KINDS - 1) / 2).long()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.x[place], "labels": self.y[place]}


class Reports(TrainerCallback):  # type: ignore[misc]  # it may not be there
    """Says how good the model is after each epoch."""

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **known: Any) -> None:
        """Say it on all workers."""
        said = f"rank {args.process_index}: {metrics['eval_right']:.4f} of all rows are right"
        print(f"{said}, epoch {round(state.epoch)}", flush=True)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": KINDS, "intermediate_size": 64, "max_position_embeddings": 16}
    arguments = TrainingArguments(
        "kept",
        num_train_epochs=4,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    rows = Rows()
    trainer = Trainer(
        model=BertForSequenceClassification(BertConfig(num_labels=2, **sizes)),
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[Reports()],
        compute_metrics=lambda found: {
            "right": float((found.predictions.argmax(1) == found.label_ids).mean())
        },
    )
    trainer.train()


if __name__ == "__main__":
    main()
