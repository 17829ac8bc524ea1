"""GPT-2 small with random weights, a batch of text and its optimizer.

neaptide estimate examples/gpt2.py:gpt2
neaptide measure examples/gpt2.py:gpt2 --html gpt2.html
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def gpt2(batch: int = 2, tokens: int = 256, **config: int):
    """The model, the keyword arguments of one call, and the optimizer."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False, bos_token_id=0, eos_token_id=0, **config))
    model.loss_type = "ForCausalLM"
    text = torch.randint(model.config.vocab_size, (batch, tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, {"input_ids": text, "labels": text}, optimizer


def tiny():
    """The same in small: two layers, a few seconds."""
    return gpt2(batch=1, tokens=32, n_layer=2, n_embd=64, n_head=2, vocab_size=1000, n_positions=64)
