"""What the command line works on.

In: `FILE.py:function`. Out: the `Subject` that the function returned, checked. The function is the user's: whatever it
raises is told in one line, with the place in their file.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from neaptide.errors import InputError, NeaptideError

T = TypeVar("T")

RETURNS = "(model, inputs) or (model, inputs, optimizer)"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a `FILE.py:function` returned.

    >>> Subject("net.py:net", model=None, inputs=()).optimizer is None
    True
    """

    target: str
    model: Any
    inputs: Any
    optimizer: Any = None


def load(target: str) -> Subject:
    """Call the function that `target` names and check what it returns.

    >>> load("nowhere.py:net")
    Traceback (most recent call last):
    ...
    neaptide.errors.InputError: there is no file 'nowhere.py'; write FILE.py:function, such as examples/gpt2.py:gpt2
    """
    file, separator, name = target.rpartition(":")
    if not separator or not name.isidentifier():
        raise InputError(f"{target!r} does not name a function; write FILE.py:function, such as examples/gpt2.py:gpt2")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no file {file!r}; write FILE.py:function, such as examples/gpt2.py:gpt2")
    module = guard(file, lambda: _import(path))
    function = getattr(module, name, None)
    if not callable(function):
        defined = [key for key, value in vars(module).items() if _defined_in(value, module)]
        raise InputError(f"{file} has no function {name!r}; it has {', '.join(defined) or 'none'}")
    made = guard(f"{target}()", function)
    return _check(target, made)


def _import(path: Path) -> Any:
    # A name of its own: a file called torch.py must not stand in for torch.
    name = f"neaptide_subject_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # As with `python FILE.py`: what lies beside the file can be imported, and dataclasses find their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _defined_in(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _check(target: str, made: Any) -> Subject:
    import torch

    from neaptide.twins import split_inputs

    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        got = f"{len(made)} values" if isinstance(made, (tuple, list)) else type(made).__name__
        raise InputError(f"{target} returned {got}; it must return {RETURNS}")
    model, inputs, *rest = made
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{target} returned a {type(model).__name__} as the model; return an nn.Module first: {RETURNS}")
    if rest and rest[0] is not None and not isinstance(rest[0], torch.optim.Optimizer):
        raise InputError(f"{target} returned a {type(rest[0]).__name__} as the optimizer; return a torch.optim one or None")
    try:
        split_inputs(inputs)
    except InputError as error:
        raise InputError(f"{target}: {error}") from None
    return Subject(target, model, inputs, rest[0] if rest else None)


def guard(what: str, call: Callable[[], T]) -> T:
    """Run the user's code; what it raises becomes an `InputError` that says where.

    >>> guard("net.py:net()", lambda: 1 / 0)
    Traceback (most recent call last):
    ...
    neaptide.errors.InputError: net.py:net() raised ZeroDivisionError: division by zero (...)
    """
    try:
        return call()
    except NeaptideError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = str(Path(__file__).parent)
        where = next((f for f in reversed(frames) if "site-packages" not in f.filename and ours not in f.filename), None)
        place = f" ({where.filename}:{where.lineno})" if where and where.filename != "<frozen importlib._bootstrap>" else ""
        message = " ".join(str(error).split())
        raise InputError(f"{what} raised {type(error).__name__}: {message}{place}") from error
