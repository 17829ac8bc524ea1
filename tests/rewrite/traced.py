"""Graphs as AOTAutograd hands them over, run under a rewrite, each node held against its fake tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from neaptide._torch import aot_autograd
from neaptide.capture import capturing
from neaptide.graph import expression, spec_of
from neaptide.rewrite import fuse_linear, fuse_matmul, rewritten
from neaptide.rewrite.copies import copied_module
from neaptide.simplify import simplify


class Traced:
    """A model whose inference graphs are rewritten before they run; `changed` is the latest of them.

    `before` has the calls there were, `same` what the latest call gives without the rewrite.
    """

    def __init__(self, model: Callable[..., Any], rewrite: Callable[[fx.GraphModule], Any]) -> None:
        torch._dynamo.reset()
        self.rewrite = rewrite
        self.captures = 0
        self.done: tuple[str, ...] = ()
        self.before: dict[str, int] = {}
        self.same: Any = None
        self.changed = fx.GraphModule(nn.Module(), fx.Graph())
        self._model = torch.compile(model, backend=self._backend, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), capturing():
            return self._model(*args, **kwargs)

    def _backend(self, module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        options: Any = {"keep_inference_input_mutations": True}
        return aot_autograd(fw_compiler=self._compile, inference_compiler=self._compile, **options)(module, inputs)

    def _compile(self, module: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], Any]:
        simplify(module)
        self.before = counts(module)
        self.captures += 1
        unchanged = copied_module(module)
        new = self.rewrite(module)
        self.changed, self.done = new if isinstance(new, tuple) else (module, ())
        kept = self.changed

        def run(args: list[Any]) -> Any:
            with torch.random.fork_rng():
                self.same = unchanged(*args)
            return Judged(kept).run(*args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def whole(module: fx.GraphModule) -> None:
    """What every capture does."""
    fuse_linear(module)
    fuse_matmul(module)


def all_rewrites(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """What a capture does, then all that is done where memory is short."""
    whole(module)
    kept = {node: node.meta.get("val") for node in module.graph.nodes}
    text = str(module.graph)
    new = rewritten(module)
    assert str(module.graph) == text
    assert all(node.meta.get("val") is val for node, val in kept.items())
    return new


def counts(module: fx.GraphModule) -> dict[str, int]:
    """How many calls there are of each op."""
    found: dict[str, int] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            name = str(node.target).removeprefix("aten.")
            found[name] = found.get(name, 0) + 1
    return found


class Judged(fx.Interpreter):
    """Runs a graph and asserts that every fake tensor tells the truth: shape, strides, dtype, and what shares memory."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.sizes: dict[sympy.Symbol, int] = {}
        self.real_of_fake: dict[int, int] = {}
        self.fake_of_real: dict[int, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        fake = n.meta.get("val")
        if n.op == "placeholder":
            self._learn(fake, result)
        if n.op != "output" and fake is not None:
            for told, real in zip(tree_leaves(fake), tree_leaves(result), strict=True):
                if isinstance(told, torch.Tensor):
                    self._judge(n, told, real)
        return result

    def _learn(self, fake: Any, result: Any) -> None:
        pairs = [(fake, result)] if isinstance(fake, torch.SymInt) else zip(fake.shape, result.shape, strict=True)
        for size, number in pairs:
            told = expression(size)
            if isinstance(told, sympy.Symbol):
                self.sizes[told] = number

    def _judge(self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor) -> None:
        told = spec_of(fake)
        at = [[int(sympy.sympify(s).subs(self.sizes)) for s in sizes] for sizes in (told.shape, told.stride)]
        assert at[0] == list(real.shape), node.format_node()
        assert fake.dtype == real.dtype, node.format_node()
        wide = [dim for dim, size in enumerate(real.shape) if size > 1]
        assert [at[1][d] for d in wide] == [real.stride(d) for d in wide], node.format_node()
        if real.numel():
            ours, theirs = fake.untyped_storage()._cdata, real.untyped_storage()._cdata
            assert self.real_of_fake.setdefault(ours, theirs) == theirs, f"{node.format_node()} shares no memory"
            assert self.fake_of_real.setdefault(theirs, ours) == ours, f"{node.format_node()} shares memory"
