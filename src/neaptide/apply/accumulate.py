"""Gradients that are added to those of an earlier backward, each as soon as it is made: so they are not there twice.

In: a training program, and which of its gradients there is something to add to. Out: the program that adds them.
"""

from __future__ import annotations

from collections.abc import Collection

from neaptide.program import Program, with_drops
from neaptide.steps import Add, Drop, Step, makes


def add_gradients(program: Program, which: Collection[int]) -> Program:
    """The program that adds these gradients (positions among the graph's) instead of handing them out; `write_in_place`, which
    comes next, checks it."""
    due: dict[int, list[int]] = {}
    for position in sorted(which):
        value = program.gradients[position]
        if value is not None:
            due.setdefault(value, []).append(position)
    steps: list[Step] = []
    for index, step in enumerate(program.steps):
        if isinstance(step, Drop):
            continue
        steps.append(step)
        if index > program.turn:
            steps.extend(Add(position) for value in makes(program.graph, step) for position in due.pop(value, ()))
    return with_drops(program.graph, steps, program.absent, program.carried)
