"""Which graphs a step calls, one after the other: learnt from the last whole step, so that a call can leave room for the next.

In: calls as they come, and that a backward runs. Out: for a call, the chain of those that will follow it (`search/chain.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from neaptide.runtime.ledger import Ledger
from neaptide.runtime.runner import Call, Unit
from neaptide.search.chain import Link


class Steps:
    """The calls of this step so far, and those of the last whole step that trained."""

    def __init__(self, ledger: Ledger) -> None:
        self.calls: list[Call] = []
        self.turned = False
        """Whether a backward of this step has begun."""
        self._ledger = ledger
        self._last: list[Call] = []

    @property
    def informed(self) -> bool:
        """Whether a whole step has shown which graphs follow each other."""
        return bool(self._last)

    def is_over(self, unit: Unit) -> bool:
        """Whether a call of this graph begins another step: all that was saved has been consumed, or a graph recurs."""
        again = any(call.unit is unit for call in self.calls)
        nothing_saved = (again or self.turned) and not self._ledger.saved
        return nothing_saved or (again and not unit.graph.trains)

    def learn(self) -> None:
        """Once its backward ran, a step has shown what it calls."""
        if self.turned:
            self._last = list(self.calls)

    def begin(self) -> None:
        """The graphs called from here on are those of one step."""
        self.turned = False
        self.calls.clear()

    def planned(self) -> int:
        """What the calls of this step were planned to take beyond what was there before it."""
        there = highest = 0
        for position, call in enumerate(self.calls):
            take = call.rung.take(call.dims)
            rest = self.calls[position + 1 :]
            highest = max(highest, there + take.level(self._made_by(rest), _is_gone(call, rest)))
            there += take.kept
        return highest

    def place(self, unit: Unit, before: int | None) -> int | None:
        """Where in the last step's calls that of this graph stood which comes after so many, or after those so far."""
        before = len(self.calls) if before is None else before
        units = [call.unit for call in self._last]
        if units[before : before + 1] == [unit]:
            return before
        return units.index(unit) if unit in units else None

    def links(self, call: Call, place: int | None) -> list[Link]:
        """A call that trains and those that followed it in the last step and train, with what their ways take."""
        if not call.unit.graph.trains:
            return []
        if place is None:
            return [Link(call.unit.takes(call.dims))]
        then = self._last[place]
        rest = [later for later in self._last[place + 1 :] if later.unit.graph.trains]
        became = dict(zip(then.dims, call.dims, strict=True))
        known = self._last[: place + 1]  # what those handed out then is in what they leave behind
        seen = {memory for earlier in (*known, *self.calls, call) for memory in (*earlier.handed, *earlier.given)}
        links = [Link(call.unit.takes(call.dims), 0, self._made_by(rest), _is_gone(then, rest))]
        for position, later in enumerate(rest, 1):
            dims = tuple(became.get(d, d) for d in later.dims)
            fresh = sum(size for memory, size in later.inputs.items() if memory not in seen)
            seen.update(later.inputs, later.handed)
            after = rest[position:]
            links.append(Link(later.unit.takes(dims), fresh, self._made_by(after), _is_gone(later, after)))
        return links

    def given(self, call: Call) -> int:
        """Bytes that a call is given and no earlier call of the step made."""
        handed = {memory for earlier in self.calls for memory in earlier.handed}
        return sum(size for memory, size in call.inputs.items() if memory not in handed)

    def _made_by(self, calls: Sequence[Call]) -> int:
        """Bytes of the gradients that calls leave behind, once each; where gradients are there already, they are added."""
        made = {} if self._ledger.accumulates else {m: size for call in calls for m, size in call.gradients.items()}
        return sum(made.values())


def _is_gone(call: Call, later: Sequence[Call]) -> bool:
    """Whether all that a call handed out went to later ones that train, and nobody else held it when last seen: then it is gone
    once those ran back."""
    taken = {memory for each in later if each.unit.graph.trains for memory in each.given}
    return bool(call.handed) and not call.held and taken.issuperset(memory for memory in call.handed if memory is not None)
