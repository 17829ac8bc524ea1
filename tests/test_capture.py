"""A captured graph knows its storages, its sizes, and where in the model each op came from."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import neaptide
from neaptide.graph import Graph

pytestmark = pytest.mark.usefixtures("fresh_captures")

log = logging.getLogger(__name__)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        log.warning("this must not break the graph")
        return (self.block(words) * self.scale).view(-1, 8)


def graph_of(model: nn.Module, *args: Any, train: bool = True) -> Graph:
    handle = neaptide.compile(model)
    with torch.set_grad_enabled(train):
        model(*args)
    assert handle.stats.captures == 1
    return handle._session.units[0].graph


def test_inputs_parameters_and_buffers_are_told_apart_under_the_users_names() -> None:
    graph = graph_of(Model(), torch.randn(3, 5, 8))
    kinds = {(storage.name, storage.kind) for storage in graph.storages}
    assert {("block.0.weight", "parameter"), ("scale", "buffer"), ("words", "input")} <= kinds


def test_a_logging_call_does_not_break_the_graph() -> None:
    assert len(graph_of(Model(), torch.randn(3, 5, 8), train=False).ops) > 3


def test_each_op_knows_its_module_and_its_line_in_the_forward_and_the_backward() -> None:
    graph = graph_of(Model(), torch.randn(3, 5, 8))
    places = {(op.phase, op.path) for op in graph.ops}
    assert {("forward", "block.0"), ("forward", "block.2"), ("backward", "block.0")} <= places
    assert any(op.source.split(":")[0] == __file__ for op in graph.ops)


def test_views_share_the_storage_of_what_they_view() -> None:
    graph = graph_of(Model(), torch.randn(3, 5, 8), train=False)
    (output,) = graph.outputs
    assert output is not None
    storage = graph.values[output].storage
    assert sum(value.storage == storage for value in graph.values) >= 2


def test_the_bytes_of_every_storage_are_an_expression_of_the_input_sizes() -> None:
    graph = graph_of(Model(), torch.randn(3, 5, 8), train=False)
    assert [symbol.origin for symbol in graph.sizes.symbols] == ["words.shape[0]", "words.shape[1]"]
    wide = max(graph.storages, key=lambda s: graph.sizes.evaluate((100, 100))[s.size])
    assert graph.sizes.evaluate((7, 11))[wide.size] == 7 * 11 * 32 * 4


def test_two_sizes_that_happen_to_be_equal_are_not_taken_for_one() -> None:
    model = Model()
    handle = neaptide.compile(model)
    with torch.no_grad():
        for shape in ((4, 4, 8), (4, 6, 8), (9, 2, 8)):
            model(torch.randn(shape))
    assert handle.stats.captures == 1


def test_a_size_that_the_model_asks_for_by_value_is_named_as_fixed() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[1] == 5 else x

    model = Picky()
    handle = neaptide.compile(model)
    model(torch.randn(3, 5))
    text = handle.plan.explain()
    assert "x.shape[1]=5 is fixed" in text
    assert "asks for this very size" in text


def test_a_plain_function_can_be_compiled() -> None:
    handle = neaptide.compile(lambda a, b: (a @ b).relu())
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert torch.equal(handle(a, b), (a @ b).relu())


def test_the_backend_works_by_name_with_options() -> None:
    model = Model()
    compiled = torch.compile(model, backend="neaptide", options={"budget": "1GiB"})
    x = torch.randn(3, 5, 8)
    assert torch.allclose(compiled(x), model(x))
    with pytest.raises(Exception, match="unknown option 'bugdet' for the neaptide backend; there are budget"):
        torch.compile(Model(), backend="neaptide", options={"bugdet": 1})(x)
