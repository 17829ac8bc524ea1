"""A denoising loop of diffusers, with a UNet of random weights, inside a budget: one capture and one plan for all steps.

MALLOC_MMAP_THRESHOLD_=65536 python examples/denoise.py [--side 64] [--steps 4] [--share 0.7]
"""

from typing import Annotated, Any

import torch
import typer
from diffusers import DDIMScheduler, UNet2DConditionModel
from rich.console import Console
from rich.table import Table

import neaptide
from neaptide.report import format_bytes

console = Console()


def unet(side: int) -> UNet2DConditionModel:
    """Two levels with attention."""
    torch.manual_seed(0)
    down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    width: dict[str, Any] = {"block_out_channels": (64, 128), "layers_per_block": 1, "cross_attention_dim": 64}
    return UNet2DConditionModel(
        sample_size=side, **width, attention_head_dim=8, down_block_types=down, up_block_types=up
    ).eval()


def denoised(call: Any, scheduler: DDIMScheduler, side: int) -> torch.Tensor:
    """An image, from noise."""
    torch.manual_seed(1)
    image, text = torch.randn(1, 4, side, side), torch.randn(1, 77, 64)
    with torch.no_grad():
        for time in scheduler.timesteps:
            image = scheduler.step(call(image, time, text).sample, time, image).prev_sample
    return image


def main(
    side: Annotated[int, typer.Option(help="Pixels of the latent image.")] = 64,
    steps: Annotated[int, typer.Option(help="Steps of denoising.")] = 4,
    share: Annotated[float, typer.Option(help="The budget, of what plain PyTorch takes.")] = 0.7,
) -> None:
    """A table: plain PyTorch, and the same image inside the budget."""
    model, scheduler = unet(side), DDIMScheduler()
    scheduler.set_timesteps(steps)
    denoised(model, scheduler, side)
    plain = neaptide.measure(denoised, model, scheduler, side)
    table = Table("", "peak, measured", "seconds", title=f"{steps} steps at {side} x {side}")
    table.add_row("plain PyTorch", format_bytes(plain.peak), f"{plain.seconds:.1f}")
    limit = int(plain.peak * share)
    handle = neaptide.compile(model, budget=limit)
    denoised(handle, scheduler, side)
    ours = neaptide.measure(denoised, handle, scheduler, side)
    table.add_row(f"inside {format_bytes(limit)}", format_bytes(ours.peak), f"{ours.seconds:.1f}")
    console.print(table)
    apart = (ours.value - plain.value).abs().max().item()
    console.print(f"images apart by {apart:.1e} at most; {handle.stats.captures} capture, {handle.stats.plans} plan")


if __name__ == "__main__":
    try:
        typer.run(main)
    except neaptide.NeaptideError as error:
        raise SystemExit(f"neaptide: {error}") from None
