"""Every case runs on every rung: keep all that eager keeps, what min-cut keeps, nothing at all, what the lowest peak keeps."""

from __future__ import annotations

from functools import partialmethod

import pytest
from tests.mechanism.oracle import POINTS, Forced, Oracle

from neaptide import capture
from neaptide.runtime.session import Session


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Forced:
    """Graphs run on the rung that the test says; there is one more, which keeps nothing."""
    chooser, plain = Forced(), capture.starting_points
    monkeypatch.setattr(capture, "starting_points", lambda *given: {**plain(*given), "everything": frozenset()})
    monkeypatch.setattr(Session, "__init__", partialmethod(Session.__init__, bounded=True))
    monkeypatch.setattr(Session, "choose", lambda session, call, *_: chooser.choose(session, call.unit, call.dims))
    return chooser


@pytest.fixture
def both(forced: Forced) -> Oracle:
    """Compares a compiled model with a plain one on every rung."""
    return Oracle(forced)


@pytest.fixture(params=POINTS)
def rung(request: pytest.FixtureRequest, forced: Forced) -> str:
    """Run the whole test on this rung."""
    forced.name = request.param
    return request.param


@pytest.fixture(autouse=True)
def _fresh(fresh_captures: None) -> None:
    """Every case captures for itself."""
