"""Models of language (and of proteins): decoders, encoders, and both in one."""

from __future__ import annotations

from typing import Any

from benchmarks.zoo.entries import Entry, both, padded, tokens, transformer

ONE = ((1, 768), (1, 517))
TWO = ((2, 512), (3, 389))
BOTH = ((2, 512, 384), (3, 389, 250))

PLAIN: dict[str, Any] = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 1026,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DECODER = {**PLAIN, "use_cache": False}
SHARED = {**DECODER, "num_key_value_heads": 2}
GPT: dict[str, Any] = {
    "vocab_size": 500,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 1024,
    "use_cache": False,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
PAIR: dict[str, Any] = {
    "vocab_size": 500,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_position_embeddings": 1024,
    "use_cache": False,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 500,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 256,
    "num_layers": 2,
    "num_heads": 4,
    "use_cache": False,
}
FUNNEL = {"vocab_size": 500, "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 256}

ENTRIES: dict[str, Entry] = {
    "gpt2": transformer("GPT2Model", tokens, ONE, **GPT),
    "gpt2-lm": transformer("GPT2LMHeadModel", tokens, ONE, **GPT),
    "gpt-neo": transformer(
        "GPTNeoModel",
        tokens,
        ONE,
        vocab_size=500,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=128,
        max_position_embeddings=1024,
        use_cache=False,
    ),
    "gpt-neox": transformer("GPTNeoXModel", tokens, ONE, **DECODER),
    "gpt-j": transformer("GPTJModel", tokens, ONE, **GPT, rotary_dim=8),
    "codegen": transformer("CodeGenModel", tokens, ONE, **GPT, rotary_dim=8),
    "gpt-bigcode": transformer("GPTBigCodeModel", tokens, ONE, **GPT),
    "opt": transformer("OPTModel", tokens, ONE, **{k: v for k, v in DECODER.items() if k != "intermediate_size"}, ffn_dim=256),
    "bloom": transformer("BloomModel", tokens, ONE, vocab_size=500, hidden_size=64, n_layer=2, n_head=4, use_cache=False),
    "mpt": transformer("MptModel", tokens, ONE, vocab_size=500, d_model=64, n_layers=2, n_heads=4, use_cache=False),
    "falcon": transformer("FalconModel", tokens, ONE, **DECODER, multi_query=True),
    "llama": transformer("LlamaModel", padded, TWO, **SHARED),
    "llama-lm": transformer("LlamaForCausalLM", tokens, ONE, **SHARED),
    "mistral": transformer("MistralModel", tokens, ONE, **SHARED, sliding_window=200),
    "qwen2": transformer("Qwen2Model", tokens, ONE, **SHARED),
    "qwen3": transformer("Qwen3Model", tokens, ONE, **SHARED, head_dim=16),
    "gemma": transformer("GemmaModel", tokens, ONE, **SHARED, head_dim=16),
    "gemma2": transformer("Gemma2Model", tokens, ONE, **SHARED, head_dim=16, sliding_window=200),
    "gemma3": transformer("Gemma3TextModel", tokens, ONE, **SHARED, head_dim=16, sliding_window=200),
    "phi": transformer("PhiModel", tokens, ONE, **DECODER),
    "phi3": transformer("Phi3Model", tokens, ONE, **SHARED),
    "stablelm": transformer("StableLmModel", tokens, ONE, **SHARED),
    "starcoder2": transformer("Starcoder2Model", tokens, ONE, **SHARED),
    "olmo2": transformer("Olmo2Model", tokens, ONE, **SHARED),
    "cohere": transformer("CohereModel", tokens, ONE, **SHARED),
    "granite": transformer("GraniteModel", tokens, ONE, **SHARED),
    "mixtral": transformer("MixtralModel", tokens, ONE, **SHARED, num_local_experts=4),
    "bert": transformer("BertModel", padded, TWO, **PLAIN),
    "bert-lm": transformer("BertForMaskedLM", padded, TWO, **PLAIN),
    "roberta": transformer("RobertaModel", padded, TWO, **PLAIN),
    "distilbert": transformer(
        "DistilBertModel",
        padded,
        TWO,
        vocab_size=500,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=256,
        max_position_embeddings=1024,
    ),
    "albert": transformer("AlbertModel", padded, TWO, **PLAIN, embedding_size=32),
    "electra": transformer("ElectraModel", padded, TWO, **PLAIN, embedding_size=32),
    "deberta-v2": transformer(
        "DebertaV2Model",
        padded,
        TWO,
        **PLAIN,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=64,
        norm_rel_ebd="layer_norm",
    ),
    "mpnet": transformer("MPNetModel", padded, TWO, **PLAIN),
    "modernbert": transformer("ModernBertModel", padded, TWO, **PLAIN, cls_token_id=2, sep_token_id=3),
    "mobilebert": transformer("MobileBertModel", padded, TWO, **{**PLAIN, "intra_bottleneck_size": 32, "embedding_size": 32}),
    "roformer": transformer("RoFormerModel", padded, TWO, **PLAIN),
    "fnet": transformer("FNetModel", tokens, TWO, **{k: v for k, v in PLAIN.items() if k != "num_attention_heads"}),
    "xlnet": transformer(
        "XLNetModel", tokens, TWO, vocab_size=500, d_model=64, n_layer=2, n_head=4, d_inner=256, use_mems_eval=False
    ),
    "funnel": transformer("FunnelModel", padded, TWO, **FUNNEL),
    "esm": transformer("EsmModel", padded, TWO, **PLAIN, position_embedding_type="rotary"),
    "t5": transformer("T5Model", both, BOTH, **T5),
    "t5-encoder": transformer("T5EncoderModel", padded, TWO, **T5),
    "bart": transformer("BartModel", both, BOTH, **PAIR),
    "pegasus": transformer("PegasusModel", both, BOTH, **PAIR),
    "m2m100": transformer("M2M100Model", both, BOTH, **PAIR),
    "mamba": transformer(
        "MambaModel", tokens, ((1, 48), (1, 33)), vocab_size=500, hidden_size=64, num_hidden_layers=2, use_cache=False
    ),
}
