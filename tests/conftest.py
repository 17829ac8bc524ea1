"""What every test runs under: no network, the same random numbers, an instruction set that all machines have."""

import os
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture
def fresh_captures() -> Iterator[None]:
    """Nothing captured before the test, nothing left after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
