"""Choices kept between processes: found again, and left alone where they are damaged, foreign or of other sizes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import neaptide


class Net(nn.Module):
    """A few layers, and a loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEAPTIDE_CACHE", str(tmp_path))


def smallest(rows: int = 256, width: int = 32) -> int:
    torch._dynamo.reset()
    return neaptide.plan(Net(width), torch.randn(rows, width), budget="min", train=True, offload=False).peak


def files(folder: Path) -> list[Path]:
    return sorted((folder / "plans").glob("*.json"))


def test_what_was_found_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neaptide.runtime import recomputing

    first = smallest()
    assert files(tmp_path)

    class Never:
        def __init__(self, *_: object) -> None:
            raise AssertionError("choices were sought again")

    monkeypatch.setattr(recomputing, "Chooser", Never)
    assert smallest() == first
    assert smallest(rows=400) > first  # another size, near enough


def test_sizes_far_from_those_that_were_seen_are_looked_at_anew(tmp_path: Path) -> None:
    smallest(rows=64)
    (before,) = (json.loads(path.read_text())["dims"] for path in files(tmp_path))
    smallest(rows=4096)
    (after,) = (json.loads(path.read_text())["dims"] for path in files(tmp_path))
    assert (before, after) == ([64], [4096])


def test_another_graph_has_a_file_of_its_own(tmp_path: Path) -> None:
    smallest()
    smallest(width=48)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda told: "{ not json", "Expecting"),
        (lambda told: json.dumps({**told, "key": "of another"}), "another graph, machine or version"),
        (lambda told: json.dumps({**told, "dims": []}), "other sizes"),
        (lambda told: json.dumps({**told, "choices": []}), "there are none"),
        (lambda told: json.dumps({**told, "choices": [{"keep": [10**6], "away": []}]}), "not in the graph"),
        (lambda told: json.dumps(["a list"]), "are not used"),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_left_alone_with_a_warning(tmp_path: Path, damage: object, said: str) -> None:
    first = smallest()
    (path,) = files(tmp_path)
    whole = json.loads(path.read_text())
    path.write_text(damage(whole))  # type: ignore[operator]
    with pytest.warns(UserWarning, match=said):
        assert smallest() == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert smallest() == first  # it was written anew


def test_a_folder_that_cannot_be_written_to_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NEAPTIDE_CACHE", str(blocked))
    assert smallest() > 0
