"""Run any PyTorch model, inference or training, inside a memory budget given in bytes."""

from neaptide.budget import Budget as Budget
from neaptide.dryrun import Estimate as Estimate
from neaptide.dryrun import estimate as estimate
from neaptide.errors import BudgetError as BudgetError
from neaptide.errors import CaptureError as CaptureError
from neaptide.errors import InputError as InputError
from neaptide.errors import NeaptideError as NeaptideError
from neaptide.handle import Handle as Handle
from neaptide.handle import compile as compile
from neaptide.measurement import Measurement as Measurement
from neaptide.measurement import measure as measure
from neaptide.plans import Plan as Plan

__version__ = "0.1.0"
