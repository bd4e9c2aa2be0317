"""Records test/golden/eagle3.json: a tiny EAGLE-3 head by its published formulas, in PyTorch.

    /path/to/python scripts/record-eagle3.py > test/golden/eagle3.json

Needs torch and transformers. The model is transformers' LlamaForCausalLM, whose hidden states enter
the head. Weights follow from a formula, so the file has numbers of the results only:
weight i of tensor `name` is scale * sin(i * 0.7 + 1.3 * seed(name)), seed(name) the sum of its
character codes, scale 1 / sqrt(columns); norms are 1 + 0.1 * sin(..).
"""
import json
import math

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import LlamaConfig, LlamaForCausalLM

H, HEADS, KV, HIDDEN, LAYERS, V, DRAFT = 16, 4, 2, 24, 8, 48, 20
EPS, THETA = 1e-5, 10000.0
LAYER_IDS = (2, LAYERS // 2, LAYERS - 3)


def weight(name, *shape):
    count = math.prod(shape)
    seed = sum(map(ord, name))
    angle = torch.arange(count, dtype=torch.float64) * 0.7 + 1.3 * seed
    values = torch.sin(angle)
    values = 1 + 0.1 * values if len(shape) == 1 else values / math.sqrt(shape[-1])
    return values.reshape(shape).float()


config = LlamaConfig(
    vocab_size=V, hidden_size=H, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
    num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=64,
    rms_norm_eps=EPS, rope_theta=THETA, tie_word_embeddings=False,
)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        parameter.copy_(weight(name, *parameter.shape))

D = H // HEADS
W = {
    name: weight(f"eagle.{name}", *shape)
    for name, shape in {
        "fc.weight": (H, 3 * H),
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.self_attn.q_proj.weight": (HEADS * D, 2 * H),
        "midlayer.self_attn.k_proj.weight": (KV * D, 2 * H),
        "midlayer.self_attn.v_proj.weight": (KV * D, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, HEADS * D),
        "midlayer.post_attention_layernorm.weight": (H,),
        "midlayer.mlp.gate_proj.weight": (HIDDEN, H),
        "midlayer.mlp.up_proj.weight": (HIDDEN, H),
        "midlayer.mlp.down_proj.weight": (H, HIDDEN),
        "norm.weight": (H,),
        "lm_head.weight": (DRAFT, H),
    }.items()
}
TARGETS = [(7 * i) % V for i in range(DRAFT)]  # Ascending after the sort: the head's tokens.
TARGETS = sorted(TARGETS)


def rms(x, name):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * W[name]


def turned(x, first):
    positions = torch.arange(first, first + x.shape[1]).float()
    frequencies = THETA ** (-torch.arange(0, D, 2).float() / D)
    angles = positions[:, None] * frequencies
    cos, sin = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
    low, high = x[..., : D // 2], x[..., D // 2 :]
    return x * cos + torch.cat([-high, low], -1) * sin


class Head:
    """One layer with a cache of keys and values."""

    def __init__(self, norm_before_residual):
        self.before = norm_before_residual
        self.k = self.v = None

    def step(self, tokens, features):
        """Scores and hidden states of tokens whose features are given."""
        with torch.no_grad():
            e = model.model.embed_tokens(torch.tensor(tokens))
            normed = rms(features, "midlayer.hidden_norm.weight")
            residual = normed if self.before else features
            x = torch.cat([rms(e, "midlayer.input_layernorm.weight"), normed], -1)
            first = 0 if self.k is None else self.k.shape[1]

            def heads(name, count):
                y = linear(x, W[f"midlayer.self_attn.{name}.weight"])
                return y.reshape(len(tokens), count, D).transpose(0, 1)

            q = turned(heads("q_proj", HEADS), first)
            k, v = turned(heads("k_proj", KV), first), heads("v_proj", KV)
            self.k = k if self.k is None else torch.cat([self.k, k], 1)
            self.v = v if self.v is None else torch.cat([self.v, v], 1)
            mask = torch.ones(len(tokens), self.k.shape[1], dtype=torch.bool).tril(first)
            both = [t.repeat_interleave(HEADS // KV, 0) for t in (self.k, self.v)]
            mixed = scaled_dot_product_attention(q, *both, attn_mask=mask)
            mixed = mixed.transpose(0, 1).reshape(len(tokens), H)
            stream = residual + linear(mixed, W["midlayer.self_attn.o_proj.weight"])
            y = rms(stream, "midlayer.post_attention_layernorm.weight")
            gate = silu(linear(y, W["midlayer.mlp.gate_proj.weight"]))
            up = linear(y, W["midlayer.mlp.up_proj.weight"])
            stream = stream + linear(gate * up, W["midlayer.mlp.down_proj.weight"])
            return linear(rms(stream, "norm.weight"), W["lm_head.weight"]), stream


def short(values):
    return [float(f"{x:.7g}") for x in values.flatten().tolist()]


tokens = [3, 17, 40, 8, 8, 25, 31, 2, 44, 19]
with torch.no_grad():
    states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    taps = torch.cat([states[i][0] for i in LAYER_IDS], -1)
    features = linear(taps, W["fc.weight"])
cases = {}
for before in (False, True):
    head = Head(before)
    scores, hidden = head.step(tokens[1:], features[:-1])
    chain, drafted = [], []
    row, state = scores[-1:], hidden[-1:]
    for _ in range(4):
        token = TARGETS[int(row.argmax())]
        drafted.append(token)
        row, state = head.step([token], state)
        chain.append(row)
    cases["norm_before_residual" if before else "plain"] = {
        "scores": short(scores), "drafted": drafted, "chain": short(torch.cat(chain)),
    }
print(json.dumps({
    "sizes": {"channels": H, "heads": HEADS, "kvHeads": KV, "hidden": HIDDEN, "layers": LAYERS,
              "vocabSize": V, "draft": DRAFT, "eps": EPS, "ropeTheta": THETA},
    "layers": LAYER_IDS, "targets": TARGETS, "tokens": tokens, "features": short(features),
    "cases": cases,
}))
