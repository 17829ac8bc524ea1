"""What eager PyTorch will take, predicted on fake tensors: the ops of a real step, nothing changed, clear refusals."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from neaptide._torch import TorchDispatchMode
from neaptide.allocator import allocated
from neaptide.dryrun import Estimate, estimate, run_step
from neaptide.errors import CaptureError, InputError
from tests.workloads.models import FACTORIES, make


class OpLog(TorchDispatchMode):
    """The names of the ops of a real step, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("prim", "profiler") and not func.is_view:
            self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", FACTORIES)
def test_a_dry_run_does_the_ops_of_a_real_step(name: str, train: bool) -> None:
    model, inputs = make(name, 1, train=train)
    optimizer = torch.optim.AdamW(model.parameters()) if train and name in ("gpt2", "resnet") else None
    predicted = estimate(model, inputs, train, optimizer)
    if optimizer is not None:
        run_step(model, inputs, train, optimizer)
        model.zero_grad()
    with OpLog() as log:
        run_step(model, inputs, train, optimizer)
    assert [step.split(" ")[0] for step in predicted.timeline.steps[1:]] == log.names
    assert predicted.notes == ()


def test_nothing_of_the_users_is_changed() -> None:
    model, inputs = make("resnet", 0)
    optimizer = torch.optim.AdamW(model.parameters())
    run_step(model, inputs, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), "input": inputs}
    values = {name: (tensor, tensor.detach().clone(), tensor._version) for name, tensor in tensors.items()}
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None}
    state, drawn = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}

    estimate(model, inputs, optimizer=optimizer)

    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        kept, value, version = values[name]
        assert tensor is kept
        assert torch.equal(tensor, value)
        assert tensor._version == version
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(parameter.grad, gradients[name][1])
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for index, held in state["state"].items():
        assert all(torch.equal(tensor, after["state"][index][key]) for key, tensor in held.items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    assert schedule.last_epoch == 0
    run_step(model, inputs, optimizer=optimizer)


def test_random_numbers_of_others_are_not_used_up() -> None:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = torch.from_numpy(np.random.rand(*x.shape) > 0.5)
            return (self.layer(x) * random.random() * kept).sum()

    model, x = Masks(), torch.ones(4, 8)
    found = []
    for foretold in (False, True):
        random.seed(0)
        np.random.seed(0)
        if foretold:
            estimate(model, x)
        found.append(model(x).item())
    assert found[0] == found[1]


def test_parts_are_told_apart() -> None:
    model = mlp()
    weights = sum(allocated(p.nbytes) for p in model.parameters())
    predicted = estimate(model, torch.ones(64, 128), optimizer=torch.optim.AdamW(model.parameters()))
    assert predicted.parts["parameter"] == weights
    assert predicted.parts["optimizer"] == 2 * weights + 64 * 4
    assert predicted.parts["gradient"] == weights
    assert predicted.parts["input"] == predicted.parts["output"] - 64 == allocated(64 * 128 * 4)
    kept = [life for life in predicted.timeline.lives if life.kind == "activation"]
    assert [(life.name, life.path, life.bytes) for life in kept] == [("relu", "1", allocated(64 * 512 * 4))]
    backward = [step for step in predicted.timeline.steps if step.startswith("threshold_backward")]
    assert backward == ["threshold_backward (1)"]


def test_every_life_knows_the_line_it_came_from() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.exp() + 1).sum()

    lives = estimate(Model(), torch.ones(64, requires_grad=True)).timeline.lives
    assert {life.name for life in lives if "test_dryrun.py" in life.source} >= {"exp", "sum"}


def test_a_model_on_meta_is_taken_as_one_on_the_cpu() -> None:
    model, inputs = mlp(), torch.ones(64, 128)
    real = estimate(model, inputs, optimizer=torch.optim.AdamW(model.parameters()))
    meta = copy.deepcopy(model).to("meta")
    faked = estimate(meta, inputs.to("meta"), optimizer=torch.optim.AdamW(meta.parameters()))
    assert (faked.timeline.steps, faked.timeline.bytes) == (real.timeline.steps, real.timeline.bytes)
    assert all(p.is_meta for p in meta.parameters())


def test_gradients_that_are_there_are_added_to() -> None:
    model, inputs = mlp(), torch.ones(64, 128)
    fresh = estimate(model, inputs)
    run_step(model, inputs)
    again = estimate(model, inputs)
    assert again.timeline.bytes[0] - fresh.timeline.bytes[0] == sum(allocated(p.nbytes) for p in model.parameters())
    assert again.peak > fresh.peak


def test_tied_weights_count_once_and_views_nothing() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 64)
            self.head = nn.Linear(64, 100, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(ids).view(-1, 64).t().t())

    assert estimate(Tied(), torch.zeros(4, 8, dtype=torch.int64), train=False).parts["parameter"] == 100 * 64 * 4


def test_sums_of_gradients_are_made_in_place_as_autograd_does() -> None:
    def forked(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return (y * 3).sum() + (y * 5).sum()

    size = allocated((1 << 18) * 4)
    predicted = estimate(forked, torch.ones(1 << 18, requires_grad=True))
    at = predicted.timeline.steps.index("add", predicted.timeline.steps.index("add") + 1)
    assert sum(life.bytes >= size for life in predicted.timeline.at(at)) == 3


def test_a_gradient_that_is_a_view_is_not_added_to_in_place() -> None:
    words = nn.Embedding(4096, 64)

    def tied(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(words(ids), words.weight).sum()

    predicted = estimate(tied, torch.zeros(2, 3, dtype=torch.int64))
    assert predicted.timeline.steps[-1].startswith("add")
    assert sum(life.bytes >= words.weight.nbytes for life in predicted.timeline.at(len(predicted.timeline.steps) - 1)) == 4


def test_checkpointing_inside_a_model_is_seen() -> None:
    class Model(nn.Module):
        def __init__(self, keep: bool) -> None:
            super().__init__()
            self.blocks, self.keep = nn.ModuleList(mlp() for _ in range(4)), keep

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x) if self.keep else checkpoint(block, x, use_reentrant=False)
            return x

    inputs = torch.ones(4096, 128)
    assert estimate(Model(keep=False), inputs).peak < 0.65 * estimate(Model(keep=True), inputs).peak


def test_functions_and_bound_methods_work_where_they_close_over_modules() -> None:
    model = mlp()
    weights = sum(allocated(p.nbytes) for p in model.parameters())
    for call in (lambda x: model(x).relu(), model.forward):
        assert estimate(call, torch.ones(64, 128), train=False).parts["parameter"] == weights


def test_a_loss_can_be_given_or_found() -> None:
    model, inputs = mlp(), torch.ones(64, 128)
    given = estimate(model, inputs, loss=lambda output: output.square().mean())
    assert any(step.startswith("pow") for step in given.timeline.steps)
    with pytest.raises(InputError, match="train=False"):
        estimate(lambda x: x.argmax(), inputs)


def test_masks_and_lengths_among_the_inputs_are_followed() -> None:
    def ragged(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = x[mask]
        return rows[: int(mask.sum()) - 2] if mask.any() else rows

    mask = torch.arange(64) < 40
    predicted = estimate(ragged, (torch.ones(64, 256), mask), train=False)
    assert predicted.parts["output"] == allocated(40 * 256 * 4)
    assert predicted.notes == ()


def test_masks_that_only_a_real_run_knows_are_taken_whole_and_noted() -> None:
    predicted = estimate(lambda x: x[x > 0], torch.ones(64, 256), train=False)
    assert predicted.parts["output"] == allocated(64 * 256 * 4)
    assert "all were taken" in predicted.notes[0]
    assert "test_dryrun.py" in predicted.notes[0]


def test_questions_about_computed_values_are_noted_or_refused() -> None:
    def careful(x: torch.Tensor) -> torch.Tensor:
        return x.nan_to_num() if x.isnan().any() else x * 2

    assert "taken as False" in estimate(careful, torch.ones(64), train=False).notes[0]
    with pytest.raises(CaptureError, match="only a real run knows"):
        estimate(lambda x: x[: int(x.argmax())], torch.ones(64), train=False)
    with pytest.raises(CaptureError, match="measure a real step"):
        estimate(lambda x: torch.from_numpy(x.numpy() + 1), torch.ones(64), train=False)


def test_an_op_without_a_fake_kernel_is_named() -> None:
    library = torch.library.Library("neaptide_test", "DEF")
    library.define("plain(Tensor x) -> Tensor")
    library.impl("plain", lambda x: x.clone(), "CPU")
    with pytest.raises(CaptureError, match=r"neaptide_test\.plain"):
        estimate(torch.ops.neaptide_test.plain, torch.ones(4), train=False)


@pytest.mark.parametrize("inputs", [[torch.ones(2)], 3, None, (), (1, 2), {"x": 1}])
def test_inputs_of_another_form_say_what_would_work(inputs: Any) -> None:
    with pytest.raises(InputError, match="pass a tensor, a tuple of arguments or a dict of keyword arguments") as raised:
        estimate(mlp(), inputs)
    assert "\n" not in str(raised.value)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    model = mlp()
    with pytest.raises(InputError, match="LBFGS"):
        estimate(model, torch.ones(2, 128), optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor, torch.optim.RMSprop])
def test_optimizers_make_their_state_beforehand(kind: Any) -> None:
    model = mlp()
    predicted = estimate(model, torch.ones(2, 128), optimizer=kind(model.parameters(), lr=0.1))
    assert model[0].weight.grad is None
    state = [life for life in predicted.timeline.lives if life.kind == "optimizer"]
    assert all(life.born == 0 for life in state)
    assert bool(state) == (kind is not torch.optim.SGD)


def test_wrapper_subclasses_count_by_what_is_inside_them() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Linear(256, 256, bias=False)
    model.weight = nn.Parameter(TwoTensor(torch.ones(256, 256), torch.ones(256, 256)))
    assert estimate(model, torch.ones(4, 256), train=False).parts["parameter"] == 2 * allocated(256 * 256 * 4)


def test_an_estimate_reads_well_and_survives_json() -> None:
    predicted = estimate(mlp(), torch.ones(64, 128))
    assert Estimate.from_json(predicted.to_json()) == predicted
    text = str(predicted)
    assert text.startswith("peak ")
    assert "parameter" in text
    assert "2.weight" in text


def test_steps_count_ops_once() -> None:
    steps = Counter(estimate(mlp(), torch.ones(4, 128), train=False).timeline.steps)
    assert steps == {"start": 1, "addmm (0)": 1, "relu (1)": 1, "addmm (2)": 1}
