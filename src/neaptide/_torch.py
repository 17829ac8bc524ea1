"""Every private name of torch's that Neaptide uses, each with why there is no public one; imported nowhere else."""

import sys
from types import SimpleNamespace
from typing import Any

# Sizes in captured graphs are sympy expressions with torch's own functions (FloorDiv, Mod, ...); this prints them as Python.
from torch.utils._sympy.printers import PythonPrinter as PythonPrinter

# A backend's graphs come through AOTAutograd; the public way (`torch._dynamo.backends.common`) lives under a private name.
from torch._dynamo.backends.common import aot_autograd as aot_autograd

# The joint graph is split by the caller; this tells forward inputs from tangents, as torch itself does.
from torch._functorch.partitioners import (
    _is_tangent as is_tangent,
    # PyTorch's own choice of what to save is one of the starting points of ours.
    min_cut_rematerialization_partition as min_cut_partition,
)

# Descriptions of the inputs and outputs that AOTAutograd puts on a graph's nodes.
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput as BufferAOTInput,
    InputMutationAOTOutput as InputMutationAOTOutput,
    ParamAOTInput as ParamAOTInput,
    PlainAOTInput as PlainAOTInput,
)

# Nodes of a captured graph carry fake tensors; their storages tell what aliases what.
from torch._subclasses import FakeTensor as FakeTensor, FakeTensorMode as FakeTensorMode

# Marks AOTAutograd's saved slots as not donated, so that backward(retain_graph=True) works.
from torch._guards import TracingContext as TracingContext

# Dynamic shapes: two dims that happen to be equal at capture must not become one symbol; there is no public switch.
from torch.fx.experimental import _config as shapes_config

# Whether someone enabled compiled autograd, which would replace our backward.
from torch._dynamo import compiled_autograd as compiled_autograd

# AOTAutograd traces the backward under the forward's autocast, where eager runs it under none.
from torch._functorch import config as functorch_config

# Dynamo's settings during a capture (logging calls, floats as constants).
from torch._dynamo import config as dynamo_config

# The dry run: what a fake tensor cannot answer is an exception of its own, and small known values are computed beside it.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
    DynamicOutputShapeException as DynamicOutputShapeException,
    UnsupportedOperatorException as UnsupportedOperatorException,
    unset_fake_temporarily as unset_fake_temporarily,
)

# Sees every ATen op of a run; torch documents these two for subclass authors but exports them under a private name.
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)

# Whether a backward is under way: a forward that runs inside one repeats another (a checkpoint) and must save the same.
from torch._C import _current_graph_task_id as current_backward

# Whether a backward that is under way comes to a node: with `torch.autograd.grad` it does not come to those of parameters.
from torch._C import _will_engine_execute_node as will_be_run

# The number autograd gave an op in the forward tells which module an op of the backward belongs to.
from torch._C import _current_autograd_node as current_autograd_node
from torch._C._autograd import _get_sequence_nr as autograd_sequence

# Whether someone's hooks pack what is saved for the backward: a checkpoint around a block, or an offload of the user's own.
from torch._C._autograd import _top_saved_tensors_default_hooks

# Whether Dynamo leaves a frame alone, as it does those of torch's own modules (nn.Sequential).
from torch._dynamo.trace_rules import check as dynamo_skips

# What Dynamo raises when it cannot capture; the cause may be an error of our own, which the user should see instead.
from torch._dynamo.exc import TorchDynamoException as TorchDynamoException


# The memory format that a kernel takes a tensor to be in; with a batch of one it need not be the one of the whole batch.
from torch._prims_common import suggest_memory_format as suggest_memory_format

# A rewrite may be asked for while models run on fake tensors, and has to try something on real ones.
from torch.utils._python_dispatch import _disable_current_modes as real_tensors

# The floor of a symbolic quotient, in the form that torch's own sizes have.
from torch.utils._sympy.functions import FloorDiv as FloorDiv

# Called when a capture begins and ends: our settings are in force just then.
from torch._dynamo.callback import callback_handler as compilation_callbacks

# DDP keeps buckets as large as the gradients, which are no attribute of the model inside; only its class knows who is running.
from torch.nn.parallel import DistributedDataParallel


def autograd_context():
    """The autograd context of the compiled forward that is running now, found among the callers' frames; None if it is not.

    AOTAutograd has gradients of unused outputs filled with zeros; only its context can say otherwise, and it is not passed on.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        frame = frame.f_back
        if frame is None:
            return None
        context = frame.f_locals.get("ctx") if "ctx" in frame.f_code.co_varnames else None
        if context is not None and hasattr(context, "set_materialize_grads"):
            return context
    return None


def saved_tensor_hooks():
    """The innermost hooks on saved tensors that are in force; None if there are none."""
    return _top_saved_tensors_default_hooks(False)


def running_ddp():
    """The DistributedDataParallel whose forward is running; None if there is none."""
    return DistributedDataParallel._active_ddp_module


def inductor():
    """What a stretch of a program takes to go to inductor as it is, with no second capture: its public entry takes models.

    Imported when it is asked for, which takes a second.
    """
    from torch._guards import tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner, record_original_output_strides
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    return SimpleNamespace(
        compile=compile_fx_inner,
        config=config,
        decompositions=select_decomp_table,
        passes=joint_graph_passes,
        record_strides=record_original_output_strides,
        tracing=tracing,
        with_fakes=V.set_fake_mode,
    )


def load_kernels(source: str):
    """The `call` of a wrapper that inductor wrote, its kernels loaded from where they were built."""
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache

    with config.patch(compile_threads=1):  # they are there already: no pool of processes is needed
        return PyCodeCache.load(source).call


def new_sizes():
    """A mode for fake tensors with symbolic sizes of its own, none taken for another."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))


def new_size(mode: FakeTensorMode, name: str, hint: int) -> Any:
    """A free size under a name of ours."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    shapes: Any = mode.shape_env
    source = ConstantSource(name)
    free = {"dynamic_dim": DimDynamic.DYNAMIC, "constraint_dim": None, "do_not_specialize_zero_one": True}
    made = shapes.create_symbol(hint, source, **free)
    return shapes.create_symintnode(made, hint=hint, source=source)
