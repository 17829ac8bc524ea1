"""Random small graphs with views, in-place ops and shared storages: prediction, bound and code agree with plain execution."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from neaptide.apply import straight, write_in_place
from neaptide.emit import emit_inference
from neaptide.graph import Graph
from neaptide.memory import envelope, timeline
from neaptide.program import Program
from neaptide.trace import build_graph
from tests.properties.live import Live

INSTRUCTIONS = st.tuples(st.sampled_from(sorted("amrstvceipgxuo")), st.integers(0, 7), st.integers(0, 7))
PROGRAMS = st.lists(INSTRUCTIONS, min_size=1, max_size=14)
SIZES = st.tuples(st.integers(2, 40), st.integers(2, 40))


def run(instructions: list[tuple[str, int, int]], first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A little machine: each instruction makes a value of shape (n, m) from earlier ones, some by view or in place."""
    values = [first.sin(), second + 1]
    for op, i, j in instructions:
        a, b = values[i % len(values)], values[j % len(values)]
        match op:
            case "a":
                made = a + b
            case "m":
                made = a * b
            case "r":
                made = a.relu()
            case "s":
                made = a.sin()
            case "t":
                made = a.t().contiguous().t()
            case "v":
                made = a.reshape(-1).view(a.shape)
            case "c":
                made = torch.cat([a[:1], b[1:]])
            case "e":
                made = a.sum(0, keepdim=True).expand_as(b)
            case "i":
                made = a.clone().add_(b)
            case "p":
                made = a.clone()
                made[:1].mul_(2)
            case "g":
                made = torch.stack([a, b]).select(0, 1)
            case "x":
                made = torch.slice_scatter(a, b[:1], 0, 0, 1)
            case "u":
                made = torch.unbind(torch.stack([a, b, a]))[j % 3]
            case _:
                made = torch.index_put(a, (torch.tensor([0]),), b[0])
        values.append(made)
    return values[-1], values[len(values) // 2]


def capture(instructions: list[tuple[str, int, int]]) -> Graph:
    traced = make_fx(lambda x, y: run(instructions, x, y), tracing_mode="symbolic")
    return build_graph(traced(torch.randn(5, 7), torch.randn(5, 7)), {})


def arguments(graph: Graph, n: int, m: int) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Inputs of a size, and the dims of the graph's symbols there."""
    tensors = [torch.randn(n, m), torch.randn(n, m)]
    known = {str(s): n if d == 0 else m for v in graph.inputs for d, s in enumerate(graph.values[v].fake.shape)}
    return tensors, tuple(known[s.name] for s in graph.sizes.symbols)


def replayed(program: Program, tensors: list[torch.Tensor]) -> tuple[Any, list[int]]:
    piece = emit_inference(program)
    constants = [getattr(program.graph.module, program.graph.values[v].node.target) for v in program.graph.constants]
    with Live([*tensors, *constants]) as live:
        out = piece.run(list(tensors))
    return out, live.bytes


@settings(max_examples=60)
@given(PROGRAMS, SIZES, SIZES)
@example([("a", 0, 0)] * 3 + [("u", 0, 0), ("x", 5, 0)], (2, 2), (2, 3))  # a part of one memory, copied with all of it
@example([("a", 0, 0), ("e", 0, 0), ("x", 3, 0)], (2, 2), (3, 6))  # a row that stands for many, copied as many
def test_timeline_envelope_and_code_agree_with_plain_execution(instructions: Any, one: Any, other: Any) -> None:
    graph = capture(instructions)
    for program in (straight(graph), write_in_place(straight(graph))):
        bound = envelope(program)
        for n, m in (one, other):
            tensors, dims = arguments(graph, n, m)
            expected = run(instructions, *[t.clone() for t in tensors])
            out, counted = replayed(program, tensors)
            assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
            line = timeline(program, dims)
            assert max(counted) == _without_workspace(line)
            lent = sum(life.bytes for life in line.lives if life.kind in ("input", "other"))
            assert bound.peak(dims) + lent == line.peak


@settings(max_examples=60)
@given(PROGRAMS)
def test_writing_in_place_never_raises_the_peak(instructions: Any) -> None:
    graph = capture(instructions)
    _, dims = arguments(graph, 9, 33)
    plain = straight(graph)
    assert timeline(write_in_place(plain), dims).peak <= timeline(plain, dims).peak


def _without_workspace(line: Any) -> int:
    work = [0] * len(line.steps)
    for life in line.lives:
        if life.kind == "workspace":
            work[life.born] += life.bytes
    return max(total - w for total, w in zip(line.bytes, work, strict=True))
