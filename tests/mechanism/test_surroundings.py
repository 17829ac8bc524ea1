"""What stands around and inside a model: graph breaks, checkpointing, hooks on saved tensors."""

import pytest
import torch
from tests.mechanism.oracle import POINTS, assert_nothing_saved, total, train
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import neaptide

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's, at graph breaks


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8))


class Broken(nn.Module):
    """Four graphs: three breaks, values that cross them, a buffer that changes in the last."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(block() for _ in range(3))
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x):
        first = self.parts[0](x)
        torch._dynamo.graph_break()
        second = self.parts[1](first).sin()
        torch._dynamo.graph_break()
        third = self.parts[2](second + first)
        torch._dynamo.graph_break()
        self.count += third.detach().sum(0)
        return third.cos() * first, second.exp()


def test_graph_breaks_make_several_graphs_that_are_exact(both):
    def scenario(model):
        return [train(model, torch.randn(n, 8, requires_grad=True)) for n in (3, 4, 5)]

    seen = both(Broken, scenario, captures=4)
    assert all(len(found.plan.graphs) == 4 for found in seen.values())


def test_what_graphs_save_is_entered_until_it_is_consumed_or_dropped(forced):
    model = Broken()
    handle = neaptide.compile(model)
    ledger = handle._session.ledger
    for name in POINTS:
        forced.take(name, handle)
        out = model(torch.randn(3, 8))
        assert ledger.saved > 0
        total(out).backward()
        assert_nothing_saved(handle)
        out = model(torch.randn(3, 8))
        assert ledger.saved > 0
        del out
        assert_nothing_saved(handle)
        kept, _ = model(torch.randn(3, 8))
        total(kept).backward()
        assert_nothing_saved(handle)
    handle.release()


class Checkpointed(nn.Module):
    """The user's own checkpointing of the middle block, by whatever policy."""

    def __init__(self, contexts=None, use: bool = True) -> None:
        super().__init__()
        self.first, self.middle, self.last = block(), block(), block()
        self.contexts, self.use = contexts, use

    def forward(self, x):
        h = self.first(x)
        if not self.use:
            return self.last(self.middle(h))
        extra = {} if self.contexts is None else {"context_fn": self.contexts}
        return self.last(checkpoint(self.middle, h, use_reentrant=False, **extra))


def steps(model):
    return [train(model, torch.randn(n, 8, requires_grad=True)) for n in (3, 4, 5)]


def saving_products(ctx, op, *args, **kwargs):
    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


def test_what_the_user_asked_to_recompute_is_not_kept_by_the_loosest_plan_and_what_to_save_is(both):
    def loosest(*settings):
        return both(lambda: Checkpointed(*settings), steps)["nothing"].plan.graphs[0]

    plain, whole = loosest(None, False), loosest()
    selective = loosest(lambda: create_selective_checkpoint_contexts(saving_products))
    assert plain.reruns == 0 < selective.reruns < whole.reruns
    assert whole.saved < selective.saved < plain.saved


@pytest.mark.parametrize("shared", [False, True])
def test_checkpoint_around_a_compiled_module(both, shared):
    def around(model):
        seen = []
        for n in (3, 4, 3):
            h = x = torch.randn(n, 8, requires_grad=True)
            for _ in range(3 if shared else 1):
                h = checkpoint(model, h, use_reentrant=False)
            total(h).backward()
            seen.append((h, x.grad))
        return seen

    both(lambda: nn.Sequential(nn.Tanh(), block()), around, fresh=True)


def test_hooks_of_the_user_on_saved_tensors(both):
    packed = []

    def pack(tensor):
        packed.append(tensor.numel())
        return tensor.detach().clone()

    def scenario(model):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.clone()):
            return [train(model, torch.randn(n, 8, requires_grad=True)) for n in (3, 4, 5)]

    both(block, scenario, fresh=True)
    assert packed


def test_saving_on_the_cpu(both):
    def scenario(model):
        with torch.autograd.graph.save_on_cpu():
            losses = [total(model(torch.randn(n, 8))) for n in (3, 4)]
        for loss in losses:
            loss.backward()
        return losses

    both(block, scenario)
