"""Figures of a machine: kept between processes, the fastest of all, and never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch._subclasses import FakeTensorMode

from neaptide import hardware
from neaptide.hardware import BUSY, LOOKS, figures, time_probes

LESS = round(1 / BUSY)
"""Looks on a busy machine that are worth one on a calm one."""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEAPTIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "watch_others", lambda: lambda: 0.0)


def look() -> hardware.Machine:
    """What a new process would find."""
    return hardware.this_machine.__wrapped__("cpu")


def test_every_figure_is_of_a_plausible_size() -> None:
    machine = figures(time_probes("cpu")[0])
    assert 1e-8 < machine.view < 1e-3
    assert 1e-8 < machine.call < 1e-3
    assert 1e-13 < machine.product < 1e-8
    assert 1e-12 < machine.byte < 1e-8


def test_tensors_are_real_where_a_plan_is_made_on_fake_ones(kept: Path) -> None:
    with FakeTensorMode():
        machine = look()
    assert machine.touch + machine.byte > 1e-12
    assert machine.product < 1e-8


@pytest.mark.usefixtures("alone")
def test_the_fastest_time_is_kept_and_after_a_few_looks_nothing_is_timed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([3.0, 1.0, 2.0, 5.0])
    names = tuple(time_probes("cpu")[0])
    monkeypatch.setattr(hardware, "time_probes", lambda device: (dict.fromkeys(names, next(times)), 1.0))
    found = [look().call for _ in range(LOOKS + 2)]
    assert found == [6.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    (file,) = kept.iterdir()
    assert json.loads(file.read_text())["looks"] == LOOKS


@pytest.mark.usefixtures("alone")
def test_a_day_later_there_is_another_look(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(time_probes("cpu")[0])
    taken = iter([3.0] * LOOKS + [1.0])
    monkeypatch.setattr(hardware, "time_probes", lambda device: (dict.fromkeys(names, next(taken)), 1.0))
    assert [look().call for _ in range(LOOKS + 1)] == [6.0] * (LOOKS + 1)
    now = hardware.time.time()
    monkeypatch.setattr(hardware.time, "time", lambda: now + 2 * hardware.A_DAY)
    assert look().call == 2.0


@pytest.mark.usefixtures("alone")
def test_looks_whose_times_scatter_count_for_little(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(time_probes("cpu")[0])
    found = iter([(9.0, 3.0)] * LESS + [(2.0, 1.1)] * (LOOKS - 1))
    monkeypatch.setattr(hardware, "time_probes", lambda device: (dict.fromkeys(names, (each := next(found))[0]), each[1]))
    assert [look().call for _ in range(LESS + LOOKS + 2)] == [18.0] * LESS + [4.0] * (LOOKS + 2)


def test_looks_while_others_use_the_processors_count_for_little(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(time_probes("cpu")[0])
    shares, taken = iter([0.5] * LESS + [0.02] * (LOOKS - 1)), iter([9.0] * LESS + [2.0] * (LOOKS - 1))
    monkeypatch.setattr(hardware, "watch_others", lambda: lambda: next(shares))
    monkeypatch.setattr(hardware, "time_probes", lambda device: (dict.fromkeys(names, next(taken)), 1.0))
    assert [look().call for _ in range(LESS + LOOKS + 2)] == [18.0] * LESS + [4.0] * (LOOKS + 2)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux tells it")
def test_another_process_at_work_is_seen() -> None:
    others = hardware.watch_others()
    with subprocess.Popen([sys.executable, "-c", "import time\nend = time.time() + 1\nwhile time.time() < end: pass"]) as busy:
        busy.wait()
    assert others() > 0.5 / (os.cpu_count() or 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"looks": 9, "seconds": {}}', '{"looks": "x"}'])
def test_a_broken_file_is_as_good_as_none(kept: Path, text: str) -> None:
    look()
    (file,) = kept.iterdir()
    file.write_text(text)
    assert look().call > 0
    assert json.loads(file.read_text())["looks"] <= 1


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    monkeypatch.setenv("NEAPTIDE_CACHE", str(blocked / "cache"))
    assert look().call > 0
