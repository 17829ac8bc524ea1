"""A process that compiles fragments: messages come in, sources of kernels go out.

Inductor changes how modules are called while it traces, and holds Python's lock for seconds: it must not do so in the process
that trains. Kernels are built here too, into inductor's own folder, where the process that asks finds them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from neaptide._torch import FakeTensorMode, TracingContext, inductor
from neaptide.inner.message import Answer, Message, read
from neaptide.sizes import print_expression


def compile_message(message: Message) -> Answer:
    """The kernels of a fragment. Whatever inductor cannot do, it raises."""
    module, given, mode, names = read(message)
    parts = inductor()
    with _noting(mode) as conditions:
        with mode, torch.no_grad():
            made = make_fx(module, decomposition_table=parts.decompositions(), tracing_mode="symbolic")(*given)
        if not message.trains:
            made = parts.passes(made)
        parts.record_strides(made)
        end = next(node for node in made.graph.nodes if node.op == "output")
        end.meta["user_visible_output_idxs"] = [i for i, n in enumerate(end.args[0]) if isinstance(n, fx.Node)]
        with parts.tracing(TracingContext(mode)), parts.with_fakes(mode), parts.config.patch(reorder_for_peak_memory=False):
            code: Any = parts.compile(made, given, is_inference=not message.trains)
    if code.constants:
        raise NotImplementedError("kernels with constants of their own")
    ours = {symbol: sympy.Symbol(name, integer=True, positive=True) for symbol, name in names.items()}
    return Answer(code.source_code, tuple(dict.fromkeys(print_expression(each.xreplace(ours)) for each in conditions)))


@contextmanager
def _noting(mode: FakeTensorMode) -> Iterator[list[Any]]:
    """What is asked about sizes meanwhile."""
    shapes: Any = mode.shape_env
    before, found = len(shapes.guards), []
    yield found
    found.extend(guard.expr for guard in shapes.guards[before:])


def main() -> None:
    """Answer messages until the one who asks is gone. What anybody prints goes to the error stream."""
    asking, answering = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    os.nice(5)
    with contextlib.suppress(EOFError, OSError):
        while True:
            answering.send(_answer(asking.recv()))


def _answer(message: Message) -> Answer | str:
    try:
        return compile_message(message)
    except Exception as error:  # the asker is told, and goes on without
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


if __name__ == "__main__":
    main()
