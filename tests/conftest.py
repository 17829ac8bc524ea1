"""What every test runs under: no network, the same random numbers, an instruction set that all machines have."""

import gc
import importlib
import os
from collections.abc import Iterator
from typing import Any

# Before torch is imported: AMX can be advertised and not usable, and bf16 then dies with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from hypothesis import HealthCheck, settings

# A busy machine is no failure: nothing is judged by how long one example took.
settings.register_profile("neaptide", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("neaptide")


LIBRARIES = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "diffusers.models.unets.unet_2d_condition",
    "transformers",
    "transformers.trainer",
)
MODELS = ("bert", "gpt2", "llama", "t5", "vit")


def pytest_configure(config: pytest.Config) -> None:
    """Whatever the tests import is imported first, and Python's search for garbage passes over it: each search goes over all
    objects there are, of which these are most, and every measurement begins with one."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        return  # the tests run in other processes
    for name in (*LIBRARIES, *(f"transformers.models.{model}.modeling_{model}" for model in MODELS)):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fresh_captures() -> Iterator[None]:
    """Nothing captured before the test, nothing left after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _nothing_left_in_force(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models that a test adapted are let go of after it; no mode is left, under which later tests would capture nothing."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from neaptide.eager.adapt import Adapter

    made: list[Adapter] = []
    plain = Adapter.__init__

    def noted(self: Adapter, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Adapter, "__init__", noted)
    yield
    for adapter in made:
        adapter.release()
    left = _get_current_dispatch_mode_stack()
    assert not left, f"left in force: {left}"
