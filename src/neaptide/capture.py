"""From a model to graphs: a `torch.compile` backend, through AOTAutograd, with symbolic sizes.

In: what Dynamo traced. Out: a `Graph` for each traced piece, handed to a session, and the callables that run it. A training
graph is captured once, forward and backward in one. The split that is declared to AOTAutograd carries what *any* plan of the
graph may save; which of it is really saved is decided at each call, by the sizes of that call.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from neaptide._torch import (
    BufferAOTInput,
    ParamAOTInput,
    PlainAOTInput,
    TracingContext,
    aot_autograd,
    compilation_callbacks,
    compiled_autograd,
    dynamo_config,
    functorch_config,
    is_tangent,
    shapes_config,
)
from neaptide.declare import declare, refuse_to_run
from neaptide.graph import Input
from neaptide.rewrite import fuse_linear, fuse_matmul, part_dropouts
from neaptide.search.recompute import starting_points
from neaptide.simplify import simplify
from neaptide.trace import build_graph

if TYPE_CHECKING:
    from neaptide.runtime.session import Session
    from neaptide.runtime.training import Training


def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """The entry point of `torch.compile(model, backend="neaptide", options={"budget": ...})`."""
    from neaptide.runtime.session import session_for

    settings.pop("mode", None)
    return capture(gm, example_inputs, session_for(settings.pop("options", None) or {}))


def capture(gm: fx.GraphModule, example_inputs: Sequence[Any], session: Session) -> Callable[..., Any]:
    """The callable that runs one piece that Dynamo traced, its graph registered with the session."""
    refuse_compiled_autograd()
    piece = _Piece(session, describe(gm))
    compiler = aot_autograd(
        fw_compiler=piece.forward,
        bw_compiler=piece.backward,
        inference_compiler=piece.inference,
        partition_fn=piece.partition,
        keep_inference_input_mutations=True,
    )
    with functorch_config.patch(backward_pass_autocast="off"):  # as eager: autocast chose the dtypes in the forward
        return compiler(gm, example_inputs)


class _Piece:
    """One traced piece on its way through AOTAutograd, which calls the methods in this order."""

    def __init__(self, session: Session, inputs: Sequence[Input]) -> None:
        self.session, self.inputs = session, inputs
        self.unit: Training | None = None

    def inference(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        simplify(gm)
        fuse_linear(gm)
        fuse_matmul(gm)
        named = self.named(gm)
        graph = build_graph(gm, named, name=self.session.next_name())
        return _boxed(self.session.add_inference(graph, named))

    def partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **settings: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        part_dropouts(joint)
        tangents = [n.name for n in joint.graph.nodes if n.op == "placeholder" and is_tangent(n)]
        named = self.named(joint)
        graph = build_graph(joint, named, num_fwd_outputs, tangents, self.session.next_name())
        fused = self.session.lowering is not None
        points = starting_points(graph, joint, joint_inputs, num_fwd_outputs, settings, fused)
        self.unit = self.session.add_training(graph, points, named)
        return declare(graph, self.unit.slots)

    def forward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        _keep_saved_tensors()
        assert self.unit is not None
        return _boxed(self.unit.forward)

    def backward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        _keep_saved_tensors()
        assert self.unit is not None
        return _boxed(self.unit.backward)

    def named(self, gm: fx.GraphModule) -> Mapping[str, Input]:
        """What each placeholder of an AOTAutograd graph is, from what Dynamo knew of it."""
        found: dict[str, Input] = {}
        for node in gm.graph.nodes:
            about = node.meta.get("desc") if node.op == "placeholder" else None
            if isinstance(about, PlainAOTInput) and about.idx < len(self.inputs):
                found[node.name] = self.inputs[about.idx]
            elif isinstance(about, (ParamAOTInput, BufferAOTInput)):
                kind = "parameter" if isinstance(about, ParamAOTInput) else "buffer"
                found[node.name] = Input(about.target, kind, about.target.rpartition(".")[0])
        return found


def describe(gm: fx.GraphModule) -> tuple[Input, ...]:
    """What each input of a piece that Dynamo traced is: a parameter, a buffer, or an input, under the user's name for it."""
    found = []
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        source = getattr(node.meta.get("grapharg"), "source", None) or getattr(node, "_dynamo_source", None)
        name = source.name if source is not None else str(node.target)
        path = ".".join(re.findall(r"\._modules\['([^']+)'\]", name))
        if owned := re.search(r"\._(parameters|buffers)\['([^']+)'\]", name):
            kind = "parameter" if owned[1] == "parameters" else "buffer"
            found.append(Input(f"{path}.{owned[2]}".lstrip("."), kind, path))
        else:
            found.append(Input(_plain(name), "input"))
    return tuple(found)


def _plain(source: str) -> str:
    """Dynamo's name for an argument as the user would write it: L['kwargs']['input_ids'] is input_ids."""
    tensor, _, dim = re.sub(r"\.size\(\)\[(\d+)\]$", r" \1", source).partition(" ")
    parts = re.findall(r"\['?([^\]']+)'?\]|\.(\w+)", tensor)
    names = [a or b for a, b in parts if (a or b) not in ("kwargs", "args")]
    return (".".join(names) or tensor) + (f".shape[{dim}]" if dim else "")


def refuse_compiled_autograd() -> None:
    """Compiled autograd replaces the backward, which is where the plan is carried out."""
    if dynamo_config.compiled_autograd or compiled_autograd.compiled_autograd_enabled:
        refuse_to_run()


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """`run` as a function that AOTAutograd knows to take one list, which it may clear."""

    def boxed(args: list[Any]) -> Any:
        return run(args)

    boxed._boxed_call = True
    return boxed


def _keep_saved_tensors() -> None:
    """Let AOTAutograd take no saved slot for its own, so that `backward(retain_graph=True)` finds them again."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


_LOGGING = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")


def _logging_methods() -> set[Callable[..., Any]]:
    """Every logging method there is now, those that libraries added to `Logger` (`warning_once`) included."""
    added = (f for name, f in vars(logging.Logger).items() if name in _LOGGING or name.endswith("_once"))
    return {f for f in added if callable(f)}


class capturing:  # noqa: N801  (used as a function is)
    """While this lasts, whatever Dynamo captures on this thread is captured under our settings.

    The settings themselves are put in place when a capture begins and taken back when it ends, so that a call that captures
    nothing pays next to nothing.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        if _begin not in compilation_callbacks.start_callbacks:  # `torch._dynamo.reset` forgets them
            compilation_callbacks.register_start_callback(_begin)
            compilation_callbacks.register_end_callback(_end)
        self._before = getattr(_thread, "ours", False)
        _thread.ours = True

    def __exit__(self, *error: object) -> None:
        _thread.ours = self._before


_thread = threading.local()


def _begin(about: Any) -> None:
    """No two sizes taken for one, floats as constants, logging calls left out."""
    if not getattr(_thread, "ours", False):
        return
    ignored = dynamo_config.ignore_logging_functions
    _thread.before = (shapes_config.use_duck_shape, dynamo_config.specialize_float, ignored)
    shapes_config.use_duck_shape = False
    dynamo_config.specialize_float = True
    dynamo_config.ignore_logging_functions = ignored | _logging_methods()


def _end(about: Any) -> None:
    before = getattr(_thread, "before", None)
    if before is not None:
        _thread.before = None
        shapes_config.use_duck_shape, dynamo_config.specialize_float, dynamo_config.ignore_logging_functions = before
