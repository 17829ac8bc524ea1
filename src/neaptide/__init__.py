"""Run any PyTorch model, inference or training, inside a memory budget given in bytes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide.advice import Advice as Advice
    from neaptide.advising import advise as advise
    from neaptide.advising import fit as fit
    from neaptide.budget import Budget as Budget
    from neaptide.dryrun import Estimate as Estimate
    from neaptide.dryrun import estimate as estimate
    from neaptide.errors import BudgetError as BudgetError
    from neaptide.errors import CaptureError as CaptureError
    from neaptide.errors import InputError as InputError
    from neaptide.errors import NeaptideError as NeaptideError
    from neaptide.errors import OffloadError as OffloadError
    from neaptide.handle import Handle as Handle
    from neaptide.handle import adapt as adapt
    from neaptide.handle import compile as compile
    from neaptide.measurement import Measurement as Measurement
    from neaptide.measurement import measure as measure
    from neaptide.plans import Plan as Plan
    from neaptide.preview import plan as plan

__version__ = "0.1.0"

_HOMES = {
    "Advice": "advice",
    "Budget": "budget",
    "BudgetError": "errors",
    "CaptureError": "errors",
    "Estimate": "dryrun",
    "Handle": "handle",
    "InputError": "errors",
    "Measurement": "measurement",
    "NeaptideError": "errors",
    "OffloadError": "errors",
    "Plan": "plans",
    "adapt": "handle",
    "advise": "advising",
    "compile": "handle",
    "estimate": "dryrun",
    "fit": "advising",
    "measure": "measurement",
    "plan": "preview",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for, so that the command line starts without waiting for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'neaptide' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"neaptide.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOMES])
