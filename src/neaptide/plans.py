"""What will be done and what it will take, before it is done: frozen, printable, JSON both ways.

In: a session's choices for the graphs of a step. Out: a `Plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from neaptide.timeline import Predicted, Timeline


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """A region that runs in parts: the modules it runs through, the result and the dim it is cut along, and the parts."""

    path: str
    result: str
    dim: int
    """-1 where the parts of the result are combined (a sum is split: not the same bits)."""
    along: str
    extent: int
    parts: int
    rows: int
    ops: int
    whole: int
    """Bytes of all its results, were they made whole."""

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        where = self.path or self.result
        cut = f"dim {self.dim} of" if self.dim >= 0 else "put together into"
        return (
            f"{where}: {self.ops} ops in {self.parts} parts of {self.rows} along {self.along} = {self.extent} "
            f"({cut} {self.result}; {format_bytes(self.whole)} if whole)"
        )


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """How one captured graph runs at one size: its free sizes, what is recomputed, what it saves and takes."""

    name: str
    sizes: Mapping[str, int]
    fixed: Mapping[str, str]
    recompute: str
    ops: int
    reruns: int
    in_place: int
    saved: int
    peak: int
    """Bytes at its highest step beyond parameters, buffers and inputs."""
    notes: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    regions: tuple[RegionPlan, ...] = ()
    seconds: float = 0.0
    sent: int = 0
    """Bytes that are sent away between forward and backward."""

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "fixed sizes"
        again = f"recomputes {self.reruns} ops ({self.recompute})" if self.reruns else "recomputes nothing"
        away = f"sends {format_bytes(self.sent)} away, " if self.sent else ""
        parts = f"{len(self.regions)} regions in parts, " if self.regions else ""
        return (
            f"{self.name} at {at}: {self.ops} ops, {self.in_place} in place, {parts}{again}, "
            f"saves {format_bytes(self.saved)}, {away}takes {format_bytes(self.peak)}"
        )


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """How one call of a block runs under `adapt`: its way, bytes it leaves behind, seconds to do again."""

    name: str
    way: str
    kept: int
    seconds: float = 0.0

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        return f"{self.name}: {self.way}, leaves {format_bytes(self.kept)} behind"


@dataclass(frozen=True)
class Plan(Predicted):
    """What a step will take under a budget, and how each of its graphs will run.

    >>> from neaptide.timeline import Life
    >>> plan = Plan(budget=None, graphs=(), timeline=Timeline(("op",), (Life("x", "input", 8, 0, 1),)))
    >>> plan.peak
    8
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    budget: int | None
    graphs: tuple[GraphPlan, ...]
    timeline: Timeline
    notes: tuple[str, ...] = field(default=())
    blocks: tuple[BlockPlan, ...] = ()
    """The calls of blocks, where there is no graph."""

    @property
    def seconds(self) -> float:
        """The predicted time of the graphs' inference, by a model of this machine that is meant for comparing plans."""
        return sum(graph.seconds for graph in self.graphs)

    def __str__(self) -> str:
        from neaptide.report import format_bytes

        budget = "no budget" if self.budget is None else f"budget {format_bytes(self.budget)}"
        if self.blocks:
            ways = Counter(block.way for block in self.blocks)
            told = ", ".join(f"{count} {way}" for way, count in ways.items())
            return f"peak {format_bytes(self.peak)}, {budget}, {len(self.blocks)} blocks: {told}"
        lines = [f"peak {format_bytes(self.peak)}, {budget}, {len(self.graphs)} graph{'s' * (len(self.graphs) != 1)}"]
        return "\n".join([*lines, *(f"  {graph}" for graph in self.graphs)])

    def explain(self) -> str:
        """The plan in words: each graph, which of its sizes are free or fixed, and who holds the peak."""
        from neaptide.report import format_bytes

        lines = [
            str(self),
            f"the peak is at: {self.timeline.steps[self.timeline.peak_step] if self.timeline.steps else '-'}",
        ]
        for life in self.held_by[:10]:
            where = " ".join(part for part in (life.path, life.source) if part)
            lines.append(f"  {format_bytes(life.bytes):>10}  {life.kind:<10}  {life.name}  {where}")
        for graph in self.graphs:
            lines += [f"{graph.name}: in parts: {region}" for region in graph.regions]
            lines += [f"{graph.name}: rewritten: {rewrite}" for rewrite in graph.rewrites]
            lines += [f"{graph.name}: {dim} is fixed: {why}" for dim, why in graph.fixed.items()]
            lines += [f"{graph.name}: {note}" for note in graph.notes]
        return "\n".join([*lines, *map(str, self.blocks), *self.notes])

    def to_json(self) -> dict[str, Any]:
        return {
            "budget": self.budget,
            "peak": self.peak,
            "graphs": [asdict(graph) for graph in self.graphs],
            "timeline": self.timeline.to_json(),
            "notes": list(self.notes),
            "blocks": [asdict(block) for block in self.blocks],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        return Plan(
            data["budget"],
            tuple(map(_graph_from_json, data["graphs"])),
            Timeline.from_json(data["timeline"]),
            tuple(data["notes"]),
            tuple(BlockPlan(**block) for block in data.get("blocks", ())),
        )


def _graph_from_json(data: Mapping[str, Any]) -> GraphPlan:
    regions = tuple(RegionPlan(**region) for region in data["regions"])
    return GraphPlan(**{**data, "notes": tuple(data["notes"]), "rewrites": tuple(data["rewrites"]), "regions": regions})
