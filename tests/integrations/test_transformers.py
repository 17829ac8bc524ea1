"""A Trainer under `adapt` ends with the weights of a plain one, inside its budget, and with the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from neaptide.integrations.transformers import AdaptCallback, adapt_trainer


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(2, 50, (16,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": ids, "labels": ids.clone()}


def together(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    length = 8 + int(rows[0]["input_ids"][0]) % 8
    return {key: torch.stack([row[key][:length] for row in rows]) for key in rows[0]}


def trainer(folder: Path, **given: Any) -> Trainer:
    torch.manual_seed(0)
    width: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=4, vocab_size=50, **width))
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=model, args=arguments, train_dataset=Texts(), data_collator=together, **given)


def test_a_trainer_ends_with_the_weights_of_a_plain_one(tmp_path: Path) -> None:
    plain = trainer(tmp_path)
    plain.train()
    callback = AdaptCallback(budget="min")
    ours = trainer(tmp_path, callbacks=[callback])
    before = repr(ours.model)
    ours.train()
    assert callback.handle is None
    assert repr(ours.model) == before
    assert "forward" not in vars(ours.model)
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, ours.model.get_parameter(name)), name


def test_a_trainers_step_survives_memory_that_runs_out(tmp_path: Path) -> None:
    plain = trainer(tmp_path)
    plain.train()
    ours = trainer(tmp_path)
    callback = adapt_trainer(ours, budget="1GiB")
    fails = iter([False, False, True])
    recoveries = []

    def hook(*_: Any) -> None:
        if next(fails, False):
            raise torch.OutOfMemoryError("once")

    ours.model.bert.encoder.layer[2].register_forward_hook(hook)
    end = callback.on_train_end

    def on_train_end(*args: Any, **given: Any) -> None:
        recoveries.append(callback.handle.stats.recoveries)
        end(*args, **given)

    callback.on_train_end = on_train_end
    ours.train()
    assert recoveries == [1]
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, ours.model.get_parameter(name)), name
