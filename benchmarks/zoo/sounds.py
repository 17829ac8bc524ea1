"""Models of sound, and of series."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo.entries import Entry, transformer
from torch import Tensor

WAVE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "conv_dim": (32, 32, 32, 32, 32, 32, 32),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
WHISPER: dict[str, Any] = {
    "vocab_size": 500,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 750,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "use_cache": False,
}
AST: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_length": 512,
}
SERIES: dict[str, Any] = {
    "num_input_channels": 4,
    "context_length": 512,
    "patch_length": 4,
    "patch_stride": 2,
    "num_hidden_layers": 2,
    "d_model": 32,
    "num_attention_heads": 4,
    "ffn_dim": 64,
}


def wave(batch: int, samples: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, samples)}


def heard(batch: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch, 80, 1500)}


def spoken(batch: int, length: int) -> dict[str, Tensor]:
    return {**heard(batch), "decoder_input_ids": torch.randint(5, 500, (batch, length))}


WAVES = ((1, 64000), (1, 51000))
ENTRIES: dict[str, Entry] = {
    "whisper-encoder": transformer("WhisperModel", heard, ((2,), (3,)), part="encoder", **WHISPER),
    "whisper": transformer("WhisperModel", spoken, ((2, 200), (3, 150)), **WHISPER),
    "wav2vec2": transformer("Wav2Vec2Model", wave, WAVES, **WAVE),
    "hubert": transformer("HubertModel", wave, WAVES, **WAVE),
    "ast": transformer("ASTModel", lambda batch: {"input_values": torch.randn(batch, 512, 128)}, ((2,), (3,)), **AST),
    "patchtst": transformer("PatchTSTModel", lambda batch: {"past_values": torch.randn(batch, 512, 4)}, ((3,), (2,)), **SERIES),
}
