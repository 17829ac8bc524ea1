"""What a training step computes: the same outputs, gradients, buffers and random state as eager, on every rung."""

import pytest
import torch
from tests.mechanism.oracle import total, train
from torch import nn
from torch.nn import functional as F


def mlp(*extra: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), *extra, nn.Linear(16, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4))


def steps(count: int = 3):
    """A scenario of a few steps of different sizes."""
    return lambda model: [train(model, torch.randn(3 + i, 8, requires_grad=True)) for i in range(count)]


def test_the_harder_rungs_do_recompute(both):
    reruns = {name: seen.plan.graphs[0].reruns for name, seen in both(mlp, steps()).items()}
    assert reruns["everything"] > reruns["min-cut"] > reruns["nothing"] == 0


def test_recomputed_dropout_draws_the_numbers_it_drew(both):
    seen = both(lambda: mlp(nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5)), steps())
    assert seen["everything"].plan.graphs[0].reruns > 4


def test_attention_with_dropout_and_random_noise_inside_the_model_draw_the_numbers_they_drew(both):
    def noisy(q):
        attended = F.scaled_dot_product_attention(q, q.cos(), q.sin(), dropout_p=0.2, is_causal=True)
        return (attended + torch.rand_like(attended) * torch.randn(4)).tanh().sin()

    both(lambda: noisy, lambda call: [train(call, torch.randn(2, 2, t, 4, requires_grad=True)) for t in (3, 5, 4)])


class Counting(nn.Module):
    """A buffer that each forward reads and then changes, and a count of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("average", torch.ones(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        h = torch.sin(self.inner(x) + self.average)
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.calls += 1
        return (h * self.average).tanh().cos()


def test_batch_norm_updates_its_statistics_once(both):
    both(lambda: mlp(nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)), steps())


def test_a_convolutional_net_with_batch_norm_and_pooling(both):
    def make():
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4, momentum=0.3),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LazyLinear(3),
        )

    def primed():
        model = make()
        with torch.no_grad():
            model(torch.randn(2, 3, 8, 8))
        return model

    both(primed, lambda model: [train(model, torch.randn(n, 3, 8, 8, requires_grad=True)) for n in (2, 3)])


def test_buffers_that_the_forward_changes_are_changed_once(both):
    both(Counting, steps())


def test_the_gradient_reads_a_buffer_as_it_was_before_the_forward_changed_it(both):
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buf", torch.ones(3))

        def forward(self, x):
            w = torch.sin(x + self.buf)
            self.buf.mul_(0.5)
            return w.sum()

    def scenario(model):
        x = torch.zeros(3, requires_grad=True)
        model(x).backward()
        return x.grad

    for seen in both(Halving, scenario).values():
        assert seen.results[0][0].item() == pytest.approx(0.5403, abs=1e-4)


def test_an_input_that_the_model_itself_changes_in_place(both):
    def step(x, state):
        h = torch.sin(x + state)
        state.add_(h.detach()).mul_(2)
        return h.cos() * state

    def scenario(call):
        state = torch.ones(3, 4)
        return [(train(call, torch.randn(3, 4, requires_grad=True), state), state.clone()) for _ in range(3)]

    both(lambda: step, scenario)


class Tied(nn.Module):
    """One weight for the words in and out, one layer that is frozen, one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.frozen, self.unused = nn.Linear(8, 8).requires_grad_(False), nn.Linear(2, 2)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(self.frozen(self.middle(self.words(ids)).tanh()).sin())


def test_tied_frozen_and_unused_weights(both):
    both(Tied, lambda model: [train(model, torch.randint(11, (2, t))) for t in (3, 4, 5)])


def test_a_loss_inside_the_model(both):
    class WithLoss(Tied):
        def forward(self, ids):
            logits = super().forward(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            return loss, logits

    def scenario(model):
        seen = []
        for length in (4, 6, 5):
            loss, logits = model(torch.randint(11, (2, length)))
            loss.backward()
            seen.append((loss, logits))
        return seen

    both(WithLoss, scenario)


def test_sizes_that_the_backward_reads(both):
    def sized(x, n: int):
        batch, length, width = x.shape
        h = x.reshape(batch * length, width).sin().mean(0, keepdim=True).expand(length, width) * n
        return (x.narrow(1, 1, length - 1).cumsum(1) / length).sum((0, 1)) + h.cos().sum(0) * (batch + n), h.repeat(2, batch)

    def scenario(call):
        sizes = [(2, 3, 4), (5, 4, 3), (3, 6, 2)]
        return [train(call, torch.randn(*size, requires_grad=True), n) for n, size in enumerate(sizes, 3)]

    both(lambda: sized, scenario)


def test_views_aliases_and_outputs_that_are_no_floats(both):
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            y = self.inner(x).sin()
            z = y * 2
            picked = {
                "same": y,
                "view": z[1:],
                "turned": z.t(),
                "given": x,
                "given view": x.view(-1),
                "weight": self.inner.weight,
            }
            return y, y, y > 0, y.argmax(-1), x.shape[0], None, 1.5, picked, y.detach(), y.cos().chunk(2, -1)

    both(Many, steps())


def test_outputs_share_memory_where_those_of_eager_do(both):
    def make():
        return lambda x: (lambda y: (y, y.view(-1), x.view(-1)))(x.sin())

    def scenario(call):
        x = torch.randn(3, 4)
        y, flat, given = call(x)
        y.mul_(2)
        given.add_(1)
        return y, flat, x

    both(make, scenario)


class Thrice(torch.autograd.Function):
    """A gradient that no formula of the forward gives."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return 3 * grad * y + x.cos()


def test_a_custom_autograd_function_keeps_its_own_gradient(both):
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return Thrice.apply(self.inner(x).sin()).cos()

    both(Custom, steps())


def test_torch_cond_takes_either_branch(both):
    def branching(x, which):
        h = x.sin()
        return torch.cond(which, lambda a: a.cos() * 2, lambda a: a.tanh() - 1, (h,)).exp()

    def plainly(x, which):
        h = x.sin()
        return (h.cos() * 2 if which else h.tanh() - 1).exp()

    def scenario(call):
        return [train(call, torch.randn(n, 4, requires_grad=True), torch.tensor(n > 3)) for n in (2, 4, 3, 5)]

    made = iter([plainly, branching])
    both(lambda: next(made), scenario)


def test_an_output_that_nothing_flows_back_from(both):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            h = self.shared(x).tanh()
            both_halves = torch.cat([self.left(h), self.right(h).sin()], 1)
            a, b = both_halves.chunk(2, 1)
            return a.cos(), b.cos(), h.sum(), both_halves[:, 3:11].exp()

    def scenario(model):
        seen = []
        for used in ([0], [1], [0, 1], [2], [3], [0, 3], [0, 1, 2, 3], [2, 0]):
            x = torch.randn(3, 8, requires_grad=True)
            outputs = model(x)
            total([outputs[i] for i in used]).backward()
            seen.append((outputs, x.grad))
        return seen

    both(Two, scenario)
