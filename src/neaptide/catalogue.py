"""Known accelerators, from their data sheets: so that a plan can be made for one that is not there.

In: a name. Out: a `Machine`, and bytes of memory. Nothing here was measured: peak rates are the makers', and the share of them
that real kernels reach is one figure for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from neaptide.errors import InputError
from neaptide.hardware import Machine

REACHED_FLOPS, REACHED_BYTES = 0.6, 0.8
"""The share of the data sheet's rates that is counted on."""
LAUNCH = 5e-6
"""Seconds to launch a kernel from Python."""


@dataclass(frozen=True, slots=True)
class Card:
    """A data sheet: memory in bytes, FLOP/s in fp32 and bf16, bytes/s of memory and link."""

    name: str
    memory: int
    fp32: float
    bf16: float
    bandwidth: float
    link: float


CARDS = {
    card.name: card
    for card in (
        Card("v100", 16 << 30, 15.7e12, 125e12, 900e9, 16e9),
        Card("t4", 16 << 30, 8.1e12, 65e12, 320e9, 16e9),
        Card("a10", 24 << 30, 31.2e12, 125e12, 600e9, 32e9),
        Card("a100", 80 << 30, 19.5e12, 312e12, 2039e9, 32e9),
        Card("l4", 24 << 30, 30.3e12, 121e12, 300e9, 32e9),
        Card("l40s", 48 << 30, 91.6e12, 362e12, 864e9, 32e9),
        Card("h100", 80 << 30, 67e12, 989e12, 3350e9, 64e9),
        Card("h200", 141 << 30, 67e12, 989e12, 4800e9, 64e9),
        Card("mi300x", 192 << 30, 163e12, 1307e12, 5300e9, 64e9),
        Card("rtx3090", 24 << 30, 35.6e12, 71e12, 936e9, 32e9),
        Card("rtx4090", 24 << 30, 82.6e12, 165e12, 1008e9, 32e9),
    )
}


def card_named(name: str) -> Card:
    """A data sheet by name.

    >>> card_named("H100").memory >> 30
    80
    """
    found = CARDS.get(name.lower().replace("-", "").replace(" ", ""))
    if found is None:
        raise InputError(f"no device {name!r} is known: choose one of {', '.join(sorted(CARDS))}")
    return found


def machine_named(name: str) -> Machine:
    """What a card does by its data sheet.

    >>> machine_named("h100").product < machine_named("t4").product
    True
    """
    card = card_named(name)
    flop, byte = 1 / (card.fp32 * REACHED_FLOPS), 1 / (card.bandwidth * REACHED_BYTES)
    return Machine(
        call=LAUNCH,
        view=LAUNCH / 5,
        product=flop,
        batched=flop,
        attention=flop,
        convolution=flop,
        function=0.0,
        softmax=0.0,
        random=0.0,
        byte=byte,
        stream=byte,
        fetch=byte,
        near=byte,
        heads=byte,
        scattered=32 * byte,
        touch=0.0,
        away=2 / card.link,
        half=card.fp32 / card.bf16,
    )
