"""Without gradients: caches are written in place, and higher-order ops run."""

import warnings

import pytest
import torch
from tests.mechanism.oracle import assert_same
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import neaptide


def test_flex_attention_without_gradients_equals_eager(both):
    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1) * 2

    def scenario(call):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [call(*(torch.randn(2, 2, t, 16) for _ in range(3))) for t in (16, 32)]

    both(lambda: attend, scenario, captures=None)


def by_index(cache, value, i):
    cache[:, i] = value


def by_copy(cache, value, i):
    cache.index_copy_(1, torch.tensor([i]), value[:, None])


def by_slice(cache, value, i):
    cache[:, i : i + 1] = value[:, None]


@pytest.mark.parametrize("write", [by_index, by_copy, by_slice])
def test_a_row_written_into_a_cache_takes_no_second_cache(write):
    def step(cache, x, i):
        write(cache, x.sin(), i)
        return cache[:, : i + 1].sum(1)

    handle = neaptide.compile(step)
    ours, theirs = torch.zeros(2, 512, 1024), torch.zeros(2, 512, 1024)
    with torch.no_grad():
        for i in (3, 4, 7):
            x = torch.randn(2, 1024)
            out = handle.step(lambda x=x, i=i: handle(ours, x, i))
            assert_same((out, ours), (step(theirs, x, i), theirs))
    size = ours.numel() * ours.element_size()
    assert size <= handle.plan.peak < 1.5 * size
    handle.release()


def test_a_cache_that_is_a_buffer_takes_no_second_cache():
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 512, 1024))

        def forward(self, x, i):
            self.keys[:, i] = x.sin()
            return (self.keys[:, : i + 1] * x[:, None]).sum(-1)

    plain, model = Cached(), Cached()
    handle = neaptide.compile(model)
    with torch.no_grad():
        for i in (3, 4, 7):
            x = torch.randn(2, 1024)
            out = handle.step(lambda x=x, i=i: model(x, i))
            assert_same((out, model.keys), (plain(x, i), plain.keys))
    assert handle.plan.peak < 1.5 * model.keys.nbytes
    handle.release()
