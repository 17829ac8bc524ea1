"""What generated code calls beside torch's own ops: the generator's state, and the empty tensor for what is not saved."""

from __future__ import annotations

import torch


def state(device: str) -> torch.Tensor:
    """The state of the random number generator of a device, a few kilobytes on the CPU.

    >>> seen = state("cpu"); first = torch.rand(2)
    >>> now = rewind(seen, "cpu"); again = torch.rand(2); restore(now, "cpu")
    >>> bool((first == again).all())
    True
    """
    return _generator(device).get_rng_state()


def rewind(seen: torch.Tensor, device: str) -> torch.Tensor:
    """Go back to a state that was seen; the present one is returned, for `restore`."""
    now = state(device)
    _generator(device).set_rng_state(seen)
    return now


def restore(now: torch.Tensor, device: str) -> None:
    """Go on from the state that `rewind` returned."""
    _generator(device).set_rng_state(now)


def _generator(device: str):
    return torch if device == "cpu" else torch.get_device_module(device)


_NOTHING = [torch.empty((0,) * dims) for dims in range(9)]
STATE_BYTES = torch.get_rng_state().numel()


def nothing(dims: int) -> torch.Tensor:
    """An empty tensor of `dims` dims, which stands for what this plan does not save.

    >>> nothing(3).shape
    torch.Size([0, 0, 0])
    """
    return _NOTHING[dims] if dims < len(_NOTHING) else torch.empty((0,) * dims)
