import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide import budget
from neaptide.budget import Budget, host_memory, parse_budget
from neaptide.errors import InputError


@pytest.mark.parametrize(
    ("written", "bytes"),
    [
        ("6GiB", 6 << 30),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        (" 1.5 GiB ", 3 << 29),
        (".5KiB", 512),
        ("2TB", 2 * 10**12),
        ("6_000_000_000", 6_000_000_000),
        ("6,000 B", 6000),
        (6_000_000_000, 6_000_000_000),
        (6e9, 6_000_000_000),
        (np.int64(4096), 4096),
    ],
)
def test_a_size_is_read_in_the_units_it_is_written_in(written, bytes):
    assert parse_budget(written).limit == bytes


@given(st.integers(1, 10**18))
def test_whole_numbers_lose_nothing(count):
    assert parse_budget(count).limit == count
    assert parse_budget(str(count)).limit == count
    assert parse_budget(f"{count}B").limit == count


def test_min_asks_for_the_smallest_peak_and_none_for_no_limit():
    assert parse_budget("min") == Budget(smallest=True, text="min")
    assert parse_budget("MIN").smallest
    assert parse_budget(None).limit is None
    assert not parse_budget(None).smallest
    assert parse_budget(None).allows(1 << 60)


def test_a_budget_is_its_own_parse():
    once = parse_budget("6GiB")
    assert parse_budget(once) is once
    assert str(once) == "6 GiB"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "six",
        "6 apples",
        "6G",
        "-6GiB",
        "0",
        "0MB",
        "120%",
        "0%",
        "6GiB!",
        True,
        0,
        -1,
        1.5,
        float("nan"),
        [6],
        b"6GiB",
    ],
)
def test_anything_else_is_refused_with_the_accepted_forms(wrong):
    with pytest.raises(InputError) as caught:
        parse_budget(wrong)
    message = str(caught.value)
    assert repr(wrong) in message
    for form in ('"6GiB"', '"512MB"', '"80%"', '"min"'):
        assert form in message
    assert "\n" not in message


def test_a_percentage_is_of_what_the_host_may_use():
    assert parse_budget("80%").limit == int(host_memory() * 0.8)
    assert parse_budget("100%", torch.device("cpu")).limit == host_memory()


def test_a_percentage_of_an_accelerator_is_of_its_total_memory(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (1 << 30, 16 << 30))
    assert parse_budget("50%", "cuda:0").limit == 8 << 30


def test_an_accelerator_that_is_not_there_is_one_line():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(InputError, match="cannot be read") as caught:
        parse_budget("50%", "cuda:0")
    assert "\n" not in str(caught.value)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_control_group_above_the_process_binds(tmp_path):
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/memory.max": "max\n",
            "sys/fs/cgroup/user/memory.max": "1048576\n",
        },
    )
    assert host_memory(root) == 1 << 20


def test_version_1_of_control_groups_is_read_too_also_where_the_path_is_that_outside_the_container(tmp_path):
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2097152\n",
        },
    )
    assert host_memory(root) == 2 << 20


def test_without_a_control_group_the_ram_is_the_limit(tmp_path):
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host_memory(tmp_path) == ram
    unlimited = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert host_memory(_write(tmp_path, unlimited)) == ram


def test_every_accepted_form_of_the_message_is_accepted():
    for form in ("6GiB", "512MB", "80%", "min"):
        assert f'"{form}"' in budget.FORMS
        parse_budget(form)
