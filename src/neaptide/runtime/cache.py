"""Choices that earlier processes found for a graph, kept as JSON in the cache folder.

In: a graph, and what else the choices depend on. Out: the choices, and the sizes they were sought at. A file belongs to one
graph, machine and version of Neaptide and PyTorch, and says so itself; one that is damaged or another's is left alone with a
warning. A choice from a file is only ever a suggestion: the program made of it is checked and judged like any other.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from neaptide.folders import cache_folder
from neaptide.graph import Graph
from neaptide.hardware import machine_key
from neaptide.search.recompute import Choice

FORMAT = 1
LARGEST = 16 << 20
"""Bytes of a file beyond which it is none of ours."""


@dataclass(frozen=True, slots=True)
class Found:
    """Choices, and the sizes at which they were sought."""

    dims: tuple[int, ...]
    choices: tuple[Choice, ...]


class Shelf:
    """The place on the disk for the choices of one graph, for backwards that lack some tangents.

    `offload` says whether values may be sent away, `storages` what choices may speak of.
    """

    def __init__(self, graph: Graph, absent: Collection[int], offload: bool, storages: Collection[int]) -> None:
        self._graph, self._absent, self._offload = graph, absent, offload
        self._storages = frozenset(storages)

    @cached_property
    def key(self) -> str:
        """What the choices depend on, in one word."""
        graph = self._graph
        sizes = [str(expression) for expression in graph.sizes.expressions]
        absent = sorted(graph.values[v].name for v in self._absent)
        facts = (FORMAT, version("neaptide"), torch.__version__, machine_key(graph.device), self._offload, absent)
        facts += (graph.held, sizes, [symbol.name for symbol in graph.sizes.symbols], [op.name for op in graph.ops])
        return sha256("\n".join([*map(repr, facts), graph.source_text()]).encode()).hexdigest()

    @property
    def _path(self) -> Path:
        return cache_folder() / "plans" / f"{self.key[:32]}.json"

    def read(self) -> Found | None:
        """What an earlier process left; None where that is nothing, or nothing that can be used."""
        path = self._path
        try:
            if not path.exists():
                return None
            if path.stat().st_size > LARGEST:
                raise ValueError("it is too large")
            return self._parsed(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"plans in {path} are not used, and made anew: {error or type(error).__name__}", stacklevel=2)
            return None

    def write(self, found: Found) -> None:
        """Leave choices to later processes, where that is possible; none of them ever sees half a file."""
        told = {
            "key": self.key,
            "dims": list(found.dims),
            "choices": [{"keep": sorted(choice.keep), "away": sorted(choice.away)} for choice in found.choices],
        }
        path = self._path
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(told))
            fresh.replace(path)

    def _parsed(self, told: Mapping[str, Any]) -> Found:
        if told["key"] != self.key:
            raise ValueError("they are of another graph, machine or version")
        dims = tuple(map(int, told["dims"]))
        if len(dims) != len(self._graph.sizes.symbols):
            raise ValueError("they are of other sizes")
        choices = [Choice(self._checked(one["keep"]), self._checked(one["away"])) for one in told["choices"]]
        if not choices:
            raise ValueError("there are none")
        return Found(dims, tuple(choices))

    def _checked(self, storages: Sequence[int]) -> frozenset[int]:
        found = frozenset(map(int, storages))
        if not found <= self._storages:
            raise ValueError("they speak of what is not in the graph")
        return found
