"""Where users already are: `transformers.AdaptCallback` for its Trainer, `lightning.AdaptCallback` for Lightning."""
