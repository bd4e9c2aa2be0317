"""The tiny models of all families: seeds, classes in transformers, and settings."""

from families import convolutions, delta, gemma, latent, layer_norm, like_llama, mamba, mixtures
from families.sizes import LLAMA3_ROPE

FILES = (like_llama, gemma, layer_norm, mixtures, latent, delta, convolutions, mamba)
# By name of the folder. The seed determines weights and tokens; a new family takes a new one.
FAMILIES = {name: family for file in FILES for name, family in file.FAMILIES.items()}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 4.0, 8.0],
    },
    "llama3": LLAMA3_ROPE,
}
