"""Models of transformers and diffusers as they come, small and with random weights, each with inputs of two sizes."""

from benchmarks.zoo import diffusion, images, sounds, text
from benchmarks.zoo.entries import Entry

ZOO: dict[str, Entry] = {**text.ENTRIES, **images.ENTRIES, **sounds.ENTRIES, **diffusion.ENTRIES}
__all__ = ["ZOO", "Entry"]
