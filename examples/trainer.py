"""Fine-tuning with transformers' Trainer inside a memory budget: one callback.

python examples/trainer.py --budget 400MB
"""

from __future__ import annotations

import argparse
import random
import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from neaptide.integrations.transformers import adapt_trainer


class Texts(torch.utils.data.Dataset):
    """Token ids of realistic lengths."""

    def __init__(self, count: int) -> None:
        draw = random.Random(0)
        self._lengths = [min(256, max(16, int(draw.lognormvariate(4.3, 0.5)))) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.randint(2, 8000, (self._lengths[number],))}


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", default="700MB")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    width: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8}
    model = BertForMaskedLM(BertConfig(vocab_size=8000, num_hidden_layers=8, **width))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=options.steps,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            logging_steps=4,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Texts(16 * options.steps), data_collator=padded)
        callback = adapt_trainer(trainer, budget=options.budget)
        seen = []
        end = callback.on_train_end

        def on_train_end(*args: Any, **given: Any) -> None:
            seen.append((str(callback.handle.stats), str(callback.handle.plan)))
            end(*args, **given)

        callback.on_train_end = on_train_end
        trainer.train()
    for line in seen[0]:
        print(line)


if __name__ == "__main__":
    main()
