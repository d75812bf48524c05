"""Small models of transformers with random weights, saved as a hub serves them."""

import json

import torch

MEAN, DEVIATION = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]

_TRANSFORMER = dict(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
_TEXT = dict(_TRANSFORMER, vocab_size=20, bos_token_id=0, eos_token_id=1, pad_token_id=2)
_VISION = dict(_TRANSFORMER, image_size=64, patch_size=16)

MODELS = {
    "clip": dict(vision_config=_VISION, text_config=_TEXT, projection_dim=8),
    "siglip": dict(vision_config=_VISION, text_config=_TEXT),
    "dinov2": dict(_TRANSFORMER, image_size=70, patch_size=14),
    "dinov3_vit": dict(_VISION, num_register_tokens=4),
    "swin": dict(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2
    ),
    "convnext": dict(hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1]),
    "dinov3_convnext": dict(hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1]),
}
"""Class token; none; class token that is resized; registers; hierarchical; two convolutional."""

SIZES = {"dinov2": 70}
"""Sides of their images, where not 64."""


def write_hub_model(folder, kind, **processor):
    """Writes a model and the configuration of its image processor; returns the model."""
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **MODELS[kind])).eval()
    model.save_pretrained(folder)
    size = SIZES.get(kind, 64)
    given = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": DEVIATION,
        "size": {"height": size, "width": size},
        **processor,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(given))
    return model
