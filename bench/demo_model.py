"""Models made on the spot: a configuration and weights from a seed, nothing downloaded.

Weights are drawn so that attention matters (another KV gives another output) and so that the two best logits lie far
apart compared with rounding: small vocabulary, float32.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SEED = 20_240_607
VOCABULARY = 128


def llama_config(hidden: int = 512, layers: int = 8) -> Any:
    """A Llama with grouped KV heads; head size 64."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
        tie_word_embeddings=False,
        torch_dtype="float32",
    )


def hybrid_config(window: int = 256) -> Any:
    """Layers with a sliding window beside layers with full attention: two KV cache groups."""
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=8192,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"] * 2,
        architectures=["Gemma3ForCausalLM"],
        torch_dtype="float32",
    )


def make_model(directory: Path | str, config: Any, seed: int = SEED) -> Path:
    """Writes the model once; a directory that holds it is left alone."""
    import torch
    from transformers import AutoModelForCausalLM

    directory = Path(directory)
    mark = directory / "made-from.json"
    recipe = json.dumps({"seed": seed, "config": config.to_dict()}, sort_keys=True, default=str)
    if mark.exists() and mark.read_text() == recipe:
        return directory
    os.makedirs(directory, exist_ok=True)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                continue  # norms
            gain = 1.0
            if "q_proj" in name or "k_proj" in name:
                gain = 1.6  # peaked attention: single positions matter
            elif "o_proj" in name or "v_proj" in name:
                gain = 1.4
            deviation = gain * weight.shape[1] ** -0.5
            if "embed_tokens" in name:
                # Where the embedding is the output layer, too, a loud one makes every token predict itself.
                deviation = 0.08 * weight.shape[1] ** -0.5 if config.tie_word_embeddings else 1.0
            weight.normal_(0.0, deviation)
    model.save_pretrained(directory)
    mark.write_text(recipe)
    return directory
