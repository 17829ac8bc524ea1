"""Programs of choices: they run again just what the choice was judged by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import neaptide
from neaptide.graph import Graph
from neaptide.program import Program
from neaptide.steps import Rerun

WORDS, WIDTH = 300, 64


class Blocks(nn.Module):
    """Attention written out and MLPs, which ask tensors for their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mix, up, down in zip(self.mix, self.up, self.down, strict=True):
            q, k, v = mix(x).chunk(3, -1)
            x = x + F.dropout((q @ k.transpose(-1, -2) / 8).softmax(-1), 0.1) @ v
            wide = up(x)
            x = x + down(F.gelu(wide.view(-1, wide.shape[-1]))).view(x.shape)
        return x.square().mean()


def cases() -> dict[str, tuple[nn.Module, Any]]:
    ids = torch.randint(0, WORDS, (2, 96))
    text = {"input_ids": ids, "labels": ids.clone()}
    small: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS}
    gpt2 = GPT2Config(n_layer=2, n_embd=WIDTH, n_head=4, vocab_size=WORDS, bos_token_id=0, eos_token_id=0, use_cache=False)
    llama = LlamaConfig(**small, intermediate_size=128, use_cache=False, attn_implementation="eager")
    return {
        "blocks": (Blocks(), torch.randn(2, 256, WIDTH)),
        "gpt2": (GPT2LMHeadModel(gpt2), text),
        "llama": (LlamaForCausalLM(llama), text),
    }


def makes_memory(graph: Graph, op: int) -> bool:
    """Whether an op makes a tensor of its own: views and sizes are had for nothing."""
    read, made = ({graph.values[v].storage for v in group} for group in (graph.ops[op].inputs, graph.ops[op].outputs))
    return bool(made - read - {None})


def made_again(program: Program) -> list[int]:
    again = [step.op for step in program.steps if isinstance(step, Rerun)]
    return sorted(op for op in again if makes_memory(program.graph, op))


@pytest.mark.parametrize("name", ["blocks", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama"))])
def test_programs_run_again_what_they_were_judged_by(name: str, fresh_captures: None) -> None:
    model, inputs = cases()[name]
    handle = neaptide.compile(model.train(), budget="min")
    for _ in range(2):
        result = model(**inputs).loss if isinstance(inputs, dict) else model(inputs)
        result.backward()
    (unit,) = handle._session.units
    versions, choices = set(), 0
    for search in unit._searches_now:
        for choice, crossing in search._choices.items():
            program = crossing.version.program(crossing, unit._changing, unit._absent, unit._added)
            if program is None:
                continue
            judge = search._judge
            judged = [op for op in judge.replay(choice).again if makes_memory(judge.graph, op)]
            assert made_again(program) == sorted(judged)
            assert not choice.keep & judge.unkept
            versions.add(crossing.version)
            choices += 1
    assert len(versions) > 1
    assert choices > len(versions)
