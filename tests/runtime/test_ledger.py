"""The ledger knows what is there whatever graph runs, each storage once, and what forwards have saved."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from neaptide.runtime.ledger import Ledger, Saved


def test_parameters_buffers_gradients_and_optimizer_state_count_once_each() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64, affine=False))
    tied = nn.Linear(64, 64, bias=False)
    tied.weight = model[0].weight  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    by_kind: dict[str, int] = {}
    for held in Ledger([model, tied], optimizer, reserve=1000).resident():
        by_kind[held.kind] = by_kind.get(held.kind, 0) + held.bytes
    weight = 64 * 64 * 4
    assert by_kind["parameter"] == by_kind["gradient"] == weight
    assert 2 * weight <= by_kind["optimizer"] <= 2 * weight + 64
    assert by_kind["buffer"] == 2 * 256 + 64
    assert by_kind["other"] == 1000


def test_a_tensor_made_of_tensors_counts_as_what_it_is_made_of() -> None:
    model = nn.Module()
    model.register_parameter("both", nn.Parameter(TwoTensor(torch.ones(256), torch.ones(256))))
    assert sum(held.bytes for held in Ledger([model]).resident()) == 2 * 1024


def test_what_a_forward_saved_is_struck_off_when_its_header_dies() -> None:
    books = Ledger()
    first, second = torch.empty(1, 0), torch.empty(2, 0)
    books.save(first, Saved(100, ()))
    books.save(second, Saved(50, ()))
    assert books.saved == 150
    del first
    assert books.saved == 50
    del second
    assert books.saved == 0
