"""A LightningModule under `adapt` ends with the weights of a plain one."""

from __future__ import annotations

import copy
import warnings

import lightning
import pytest
import torch
from torch import Tensor

from neaptide.integrations.lightning import AdaptCallback
from tests.eager.models import Stack


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Stack()

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        return self.model(batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


@pytest.mark.filterwarnings("ignore")
def test_lightning_ends_with_the_weights_of_a_plain_run() -> None:
    batches = [torch.randint(0, 50, (2, 8 + n)) for n in range(5)]
    plain = Module()
    ours = copy.deepcopy(plain)
    callback = AdaptCallback(budget="min")
    for module, callbacks in ((plain, []), (ours, [callback])):
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                max_epochs=1,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                callbacks=callbacks,
            )
            trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    assert callback.handle is None
    assert "forward" not in vars(ours.model)
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, other)
