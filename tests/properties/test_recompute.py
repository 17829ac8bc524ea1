"""Any set of kept values gives a legal program, the same gradients, and the memory that was predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import neaptide
from neaptide.apply import chunk, recompute, without, write_in_place
from neaptide.emit import Slots, emit_backward, emit_forward
from neaptide.graph import Graph
from neaptide.memory import envelope, timeline
from neaptide.program import Program
from neaptide.runtime.training import Training
from neaptide.search.chunk.net import Net
from neaptide.search.chunk.regions import Region, grow
from neaptide.search.recompute import keep_all
from tests.properties.live import Live


class Block(nn.Module):
    """Attention, dropout and an MLP: views, random ops and results of several parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.up, self.down = (
            nn.LayerNorm(16),
            nn.Linear(16, 48),
            nn.Linear(16, 64),
            nn.Linear(64, 16),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        weights = F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.3)
        x = x + weights @ v
        return (x + self.down(F.dropout(F.gelu(self.up(x)), 0.2))).tanh(), x.relu()


class Conv(nn.Module):
    """Convolutions with batch statistics and in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.relu(self.norm(self.one(x)), inplace=True)).mean((-1, -2))


SHAPES: dict[type[nn.Module], Callable[[int, int], tuple[int, ...]]] = {
    Block: lambda a, b: (a, b, 16),
    Conv: lambda a, b: (a, 3, b + 4, b + 5),
}


@cache
def captured(kind: type[nn.Module], sizes: tuple[int, int]) -> tuple[Graph, list[Any], tuple[int, ...]]:
    """A model's joint graph, with the arguments and dims of a call at these sizes."""
    torch.manual_seed(0)
    model, _ = _compiled(kind)
    seen: list[Any] = []
    plain = Training.call

    def watch(self: Training, args: list[Any]) -> Any:
        seen[:] = [self, list(args)]
        return plain(self, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "call", watch)
        model(torch.randn(SHAPES[kind](*sizes)))
    unit, args = seen
    return unit.graph, [a.detach() if isinstance(a, torch.Tensor) else a for a in args], unit.last


@cache
def _compiled(kind: type[nn.Module]) -> tuple[nn.Module, neaptide.Handle]:
    model = kind()
    return model, neaptide.compile(model)


def run(program: Program, args: list[Any], tangents: list[Any], dims: tuple[int, ...]) -> tuple[list[Any], int]:
    """A forward and its backward by the emitted pieces: outputs and gradients, and the most bytes alive during it."""
    graph = program.graph
    slots = [v for v in program.saved if isinstance(graph.values[v].fake, torch.Tensor)]
    sizes = [v for v in program.saved if graph.values[v].storage is None]
    ranks = tuple(graph.values[v].fake.dim() for v in slots)
    carried_across = Slots(tuple(slots), ranks, program.marks, tuple(sizes))
    forward, backward = emit_forward(program, carried_across), emit_backward(program, carried_across)
    torch.manual_seed(7)
    with Live(args) as live:
        results = list(forward.run(list(args)))
        outputs, carried = results[: len(graph.outputs)], results[len(graph.outputs) :]
        del results
        live._see(tangents)
        boxed = [*dims, *carried[len(carried) - len(sizes) :], *carried[: len(carried) - len(sizes)], *tangents]
        tangents.clear()
        del carried
        gradients = backward.run(boxed)
    return [*(o.clone() if isinstance(o, torch.Tensor) else o for o in outputs), *gradients], max(live.bytes)


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("kind", [Block, Conv])
def test_every_set_of_kept_values_gives_the_same_gradients_in_the_predicted_memory(kind: type[nn.Module], data: Any) -> None:
    sizes = data.draw(st.sampled_from([(3, 5), (2, 70), (9, 17)]))
    graph, args, dims = captured(kind, sizes)
    forward = [v for v, maker in enumerate(graph.maker) if maker is not None and graph.ops[maker].phase == "forward"]
    tensors = [v for v in forward if isinstance(graph.values[v].fake, torch.Tensor)]
    keep = data.draw(st.sets(st.sampled_from(tensors)))
    tangents = [torch.randn(graph.sizes.shape([_expr(s) for s in graph.values[v].fake.shape], dims)) for v in graph.tangents]
    absent = frozenset(data.draw(st.sets(st.sampled_from(graph.tangents), max_size=len(graph.tangents) - 1)))

    expected, _ = run(recompute(graph, keep_all(graph), graph.mutated), _fresh(args), list(tangents), dims)
    program = write_in_place(recompute(graph, keep, graph.mutated))
    got, most = run(program, _fresh(args), [t.clone() for t in tangents], dims)
    assert all(_same(a, b) for a, b in zip(got, expected, strict=True))
    line = timeline(program, dims)
    assert most == pytest.approx(_plain(line), abs=8192 * (1 + len(program.marks)))
    assert envelope(program).peak(dims) + sum(s.bytes for s in line.lives if s.kind in _LENT) == line.peak

    zeros = [torch.zeros_like(t) if v in absent else t for v, t in zip(graph.tangents, tangents, strict=True)]
    expected, _ = run(recompute(graph, keep_all(graph), graph.mutated), _fresh(args), list(zeros), dims)
    fewer = write_in_place(without(program, absent))
    given = [None if v in fewer.absent else t for v, t in zip(graph.tangents, zeros, strict=True)]
    got, _ = run(fewer, _fresh(args), given, dims)
    assert all(_same(a, b) or (a is None and not b.any()) for a, b in zip(got, expected, strict=True))


_LENT = ("parameter", "buffer", "input", "other")


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _fresh(args: list[Any]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b or a == b


def _plain(line: Any) -> int:
    """The peak without what ops allocate inside themselves, which a count of storages cannot see."""
    lives = tuple(life for life in line.lives if life.kind != "workspace")
    return type(line)(line.steps, lives).peak


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("sizes", [(3, 70), pytest.param((2, 131), marks=pytest.mark.slow)])
def test_pieces_of_a_training_program_run_in_parts(sizes: tuple[int, int], phase: str) -> None:
    graph, args, dims = captured(Block, sizes)
    tangents = [torch.randn(graph.sizes.shape([_expr(s) for s in graph.values[v].fake.shape], dims)) for v in graph.tangents]
    for keep in (keep_all(graph), frozenset()):
        plain = recompute(graph, keep, graph.mutated)
        expected, _ = run(plain, _fresh(args), [t.clone() for t in tangents], dims)
        regions = list(_regions(graph, phase))
        assert regions
        for region in regions:
            program = write_in_place(chunk(plain, [(region, 16)]))
            got, most = run(program, _fresh(args), [t.clone() for t in tangents], dims)
            for mine, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
            assert most <= timeline(program, dims).peak


def _regions(graph: Graph, phase: str) -> Iterator[Region]:
    """Every region on one side of the turn, as wide as it can be."""
    net = Net(graph)
    own = [i for i, op in enumerate(graph.ops) if op.phase == phase]
    seen = set()
    for seed in own:
        for axis in net.axes(seed):
            region = grow(net, seed, axis, own[0], own[-1] + 1)
            if region is None or region in seen:
                continue
            seen.add(region)
            if all(graph.ops[i].phase == phase for i in range(region.start, region.stop)):
                yield region
