"""Which memory each value lives in as a program's steps are followed: the one reading of aliasing that all judges share.

In: a program, step by step. Out: instances of storages: an op that makes fresh memory starts one, views and in-place results
join the instance of what they view or overwrite, and an instance dies when its last value is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from neaptide.program import Program
from neaptide.steps import Copy, Drop, Fetch, Loop, Rerun, Run, Same, Step, Turn


class Instances:
    """Which instance each value lives in after the steps followed so far.

    `follow` yields what each step does to instances: those that are born by it and those that die with it.
    """

    def __init__(self, program: Program) -> None:
        graph = self.graph = program.graph
        self.tangents = program.tangents
        self._lies = graph.lies
        self.home: dict[int, int | None] = {}
        self.storage: list[int] = []
        self.values: list[int] = []
        self._copies: dict[int, int] = {}
        self.lent = dict.fromkeys((*self.enter(graph.inputs), *self.enter(graph.constants)))

    def enter(self, values: Iterable[int]) -> tuple[int, ...]:
        """Values from outside: those of one storage share one instance. Returns the new instances."""
        homes: dict[int, int] = {}
        for value in values:
            storage = self.graph.values[value].storage
            if storage is not None and storage not in homes:
                homes[storage] = self._new(storage)
            self._join(value, None if storage is None else homes[storage])
        return tuple(homes.values())

    def follow(self, step: Step) -> tuple[tuple[int, ...], int | None]:
        """The instances that `step` brings into being, and the one that it ends."""
        kind = type(step)  # nearly all steps are of these two, and millions are followed
        if kind is Drop:
            return (), self._leave(step.value)  # type: ignore[union-attr]
        if kind is Run or kind is Rerun:
            return self._run(step.op, step.onto), None  # type: ignore[union-attr]
        match step:
            case Same(op, value):
                self._join(self.graph.ops[op].outputs[0], self.home[value])
                return (), None
            case Copy(value):
                storage = self.graph.values[value].storage
                if storage is None:
                    return (), None
                self._copies[value] = self._new(storage)
                return (self._copies[value],), None
            case Turn():
                for value, home in self._copies.items():
                    self._leave(value)
                    self._join(value, home)
                return self.enter(self.tangents), None
            case Loop():
                return self._loop(step), None
            case Fetch(value):
                storage = self.graph.values[value].storage
                assert storage is not None
                home = self._new(storage)
                self._join(value, home)
                return (home,), None
            case _:
                return (), None

    def beside(self, value: int) -> set[int]:
        """The values in the memory of one, itself too."""
        home = self.home[value]
        if home is not None and self.values[home] == 1:
            return {value}
        return {v for v, other in self.home.items() if other == home}

    def _run(self, op: int, onto: int | None) -> tuple[int, ...]:
        fresh: list[int] = []
        again: dict[int, int] = {}
        for value, storage, shared in self._lies[op]:
            if storage is None:
                self.home[value] = None
                continue
            if value in self.home:  # handed out before: the second making is let go of at once
                if shared is None:
                    again[value] = self._new(storage)
                    fresh.append(again[value])
                continue
            over = shared if onto is None else onto
            home = None if over is None else again.get(over, self.home[over])
            if home is None:
                home = self._new(storage)
                fresh.append(home)
            self.home[value] = home
            self.values[home] += 1
        return tuple(fresh)

    def _loop(self, loop: Loop) -> tuple[int, ...]:
        """Only what a loop leaves behind: its body is followed by `memory.spans`."""
        fresh: list[int] = []
        for made in loop.made:
            storage = self.graph.values[made.value].storage
            home = None if made.onto is None else self.home[made.onto]
            if home is None and storage is not None:
                home = self._new(storage)
                fresh.append(home)
            self._join(made.value, home)
        return tuple(fresh)

    def _leave(self, value: int) -> int | None:
        home = self.home.pop(value)
        if home is None:
            return None
        self.values[home] -= 1
        return home if self.values[home] == 0 and home not in self.lent else None

    def _new(self, storage: int) -> int:
        self.storage.append(storage)
        self.values.append(0)
        return len(self.storage) - 1

    def _join(self, value: int, home: int | None) -> None:
        self.home[value] = home
        if home is not None:
            self.values[home] += 1
