"""Two ranks with batches of different lengths, each inside its own budget.

torchrun --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

import neaptide


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=256, n_head=8, vocab_size=8000))
    optimizer = torch.optim.AdamW(model.parameters())
    handle = neaptide.adapt(model, budget="500MB", optimizer=optimizer, reserve=sum(p.nbytes for p in model.parameters()))
    call = DistributedDataParallel(model)  # its buckets are the reserve
    draw = random.Random(rank)
    for _ in range(6):
        ids = torch.randint(0, 8000, (4, draw.randrange(64, 320)))
        loss = call(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank}: {ids.shape[1]} tokens, loss {loss.item():.3f}, {handle.plan}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
