import gc
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from neaptide import measurement
from neaptide.errors import InputError, NeaptideError
from neaptide.measurement import live_tensor_bytes, measure


def run(code: str, **environment: str) -> str:
    """Run code in a fresh process, with freed tensors going back to the kernel unless told otherwise."""
    clean = {key: value for key, value in os.environ.items() if key not in ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", "import torch\nfrom neaptide.measurement import *\n" + textwrap.dedent(code)],
        env={**clean, "MALLOC_MMAP_THRESHOLD_": "65536", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_tensor_that_lives_only_inside_the_call_is_in_the_peak():
    out = run("print(measure(lambda: float(torch.ones(50_000_000).sum())).peak)")
    assert int(out) == pytest.approx(200_000_000, rel=0.02)


def test_what_was_there_before_counts_and_is_not_counted_twice():
    out = run("""
        held = torch.ones(50_000_000)
        view = held[10:].reshape(2, -1)
        twice = lambda: float((held * 2).sum())
        twice()
        print(measure(twice).peak)
        print(measure(twice).peak)
    """)
    for line in out.split():
        assert int(line) == pytest.approx(400_000_000, rel=0.02)


def test_the_second_measurement_does_not_remember_the_first():
    out = run("""
        measure(lambda: torch.ones(100_000_000).sum())
        print(measure(lambda: torch.ones(25_000_000).sum()).peak)
    """)
    assert int(out) == pytest.approx(100_000_000, rel=0.02)


def test_gradients_that_python_never_saw_are_counted():
    out = run("""
        layer = torch.nn.Linear(5000, 5000, bias=False)
        layer(torch.ones(1, 5000)).sum().backward()
        print(live_tensor_bytes())
    """)
    assert int(out) == pytest.approx(2 * 100_000_000, rel=0.01)


def test_the_value_and_the_time_come_back():
    taken = measure(lambda a, b=1: a + b, 2, b=3)
    assert taken.value == 5
    assert taken.seconds >= 0
    assert taken.peak >= 0


def test_what_the_call_raises_passes_through_unchanged():
    error = KeyError("mine")

    def fail():
        raise error

    with pytest.raises(KeyError) as caught:
        measure(fail)
    assert caught.value is error


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="something to call, not int"):
        measure(3)  # type: ignore[arg-type]


def test_objects_that_lie_about_their_class_do_no_harm():
    class Liar:
        @property
        def __class__(self):
            raise RuntimeError("do not ask")

    liars = [Liar(), Liar()]
    assert live_tensor_bytes() >= 0
    assert len(liars) == 2


def test_fake_and_meta_tensors_take_nothing():
    from torch._subclasses import FakeTensorMode

    gc.collect()
    before = live_tensor_bytes()
    with FakeTensorMode():
        fake = torch.ones(1000, 1000)
    meta = torch.empty(1000, 1000, device="meta")
    assert live_tensor_bytes() == before
    assert fake.shape == meta.shape


def test_an_allocator_that_keeps_freed_tensors_is_told_of_once_with_the_way_out():
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            note = measure(lambda: None).note
            measure(lambda: None)
        print(len(seen), note)
    """
    assert run(code).startswith("0 \n")
    for value in ("", "1000000"):
        out = run(code, MALLOC_MMAP_THRESHOLD_=value)
        assert out.startswith("1 freed tensors stay resident")
        assert "MALLOC_MMAP_THRESHOLD_=65536" in out


def test_setting_the_variable_inside_the_process_is_too_late_and_said_to_be():
    out = run(
        "import os; os.environ['MALLOC_MMAP_THRESHOLD_'] = '65536'; print(measure(lambda: None).note)",
        MALLOC_MMAP_THRESHOLD_="",
    )
    assert "stay resident" in out


def test_other_allocators_and_other_ways_to_set_the_threshold_are_known():
    assert "jemalloc" in measurement._allocator_note({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"})
    assert measurement._allocator_note({"GLIBC_TUNABLES": "a=1:glibc.malloc.mmap_threshold=65536"}) == ""


def test_elsewhere_than_on_linux_the_answer_is_an_honest_no(monkeypatch):
    monkeypatch.setattr(measurement.sys, "platform", "darwin")
    with pytest.raises(NeaptideError, match="cannot be reset"):
        measure(lambda: None)


def test_on_an_accelerator_its_own_statistics_are_read(monkeypatch):
    calls = []
    fake = {
        "is_available": lambda: True,
        "memory_allocated": lambda device=None: 5,
        "current_accelerator": lambda: torch.device("cuda"),
        "synchronize": lambda device: calls.append("synchronize"),
        "reset_peak_memory_stats": lambda device: calls.append("reset"),
        "max_memory_allocated": lambda device: 12345,
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.accelerator, name, function)
    taken = measure(lambda: calls.append("run"))
    assert taken.peak == 12345
    assert calls == ["synchronize", "reset", "run", "synchronize"]


def test_a_call_on_the_cpu_is_measured_on_the_cpu_although_there_is_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    x = torch.ones(3)
    assert measure(lambda: x.sum()).value == 3
    assert measure(torch.nn.Linear(3, 2), x).value.shape == (2,)


def test_a_measurement_prints_as_a_sentence():
    assert str(measurement.Measurement(3 << 20, 0.5, None)) == "peak 3 MiB in 0.5 s"
