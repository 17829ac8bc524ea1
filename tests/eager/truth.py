"""What a step takes that runs in ways already chosen: accounted for on fakes, op by op, with nothing assumed."""

from __future__ import annotations

from typing import Any

from neaptide.accounting import Accounting
from neaptide.dryrun import loss_of, register
from neaptide.eager.adapt import Adapter
from neaptide.eager.choose import Choice
from neaptide.eager.course import Course
from neaptide.eager.figures import Figures
from neaptide.twins import as_if_real, fake_twins


def true_level(adapter: Adapter, args: tuple[Any, ...], kwargs: dict[str, Any], choice: Choice, figures: Figures) -> int:
    """The peak of a step beyond what is there before it."""
    accounting = Accounting()
    with fake_twins(adapter.model, {"given": (args, kwargs)}) as twins, as_if_real(), twins.mode:
        register(accounting, twins, None)
        for parameter in adapter.model.parameters():
            parameter.grad = None
        given, named = twins.kwargs["given"]
        adapter._course = Course(choice, figures)
        try:
            with accounting.watching():
                output = adapter.plain(*given, **named)
                adapter._course = None
                scalar = loss_of(output)
                accounting.backward = True
                scalar.backward()
        finally:
            adapter._course = None
        line = accounting.timeline()
    return line.peak - sum(life.bytes for life in line.lives if life.born == 0)
