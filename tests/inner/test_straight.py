"""Stretches of a program: they make what its steps make, identical layers are one message, and nothing else is touched."""

from __future__ import annotations

import pickle

import torch
from torch import nn

import neaptide
from neaptide.inner import message
from neaptide.inner.straight import Stretch, stretches
from neaptide.program import Program


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(self.norm(x)) * 2) + 1))


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def trained(dropout: float = 0.0) -> Program:
    model = Model(dropout)
    handle = neaptide.compile(model)
    for _ in range(2):
        model(torch.randn(3, 5, 16)).sum().backward()
    program = handle._session.units[0].rungs[0].usual
    handle.release()
    return program


def found(program: Program) -> list[Stretch]:
    steps = program.steps[program.turn :]
    wanted = {v for v in program.gradients if v is not None}
    return [each for each in stretches(program.graph, steps, wanted) if isinstance(each, Stretch)]


def test_identical_layers_are_one_message() -> None:
    messages = [pickle.dumps(message.write(stretch)) for stretch in found(trained())]
    assert len(messages) >= 3
    assert len(set(messages)) < len(messages)


def test_every_step_is_there_once() -> None:
    program = trained(0.1)
    steps = program.steps[program.turn :]
    wanted = {v for v in program.gradients if v is not None}
    seen = [
        s for each in stretches(program.graph, steps, wanted) for s in (each.steps if isinstance(each, Stretch) else (each,))
    ]
    assert seen == list(steps)


def test_random_ops_stay_where_they_are() -> None:
    program = trained(0.1)
    steps = program.steps[: program.turn]
    inside = [s for each in stretches(program.graph, steps, set()) if isinstance(each, Stretch) for s in each.steps]
    ops = [program.graph.ops[s.op] for s in inside if hasattr(s, "op")]
    assert ops
    assert not any(op.random for op in ops)


def test_a_message_comes_back_as_the_same_graph() -> None:
    for stretch in found(trained()):
        module, fakes, _, names = message.read(pickle.loads(pickle.dumps(message.write(stretch))))
        expected = [node.target for node in stretch.module.graph.nodes if node.op == "call_function"]
        assert [node.target for node in module.graph.nodes if node.op == "call_function"] == expected
        assert len(fakes) == len(stretch.sizes) + len(stretch.looks)
        assert set(names.values()) == {s.name for s in stretch.graph.sizes.symbols}
