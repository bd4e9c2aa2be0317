"""Records results of transformers for tiny random models of every family.

Logits with masks and positions, losses, gradients, ten updates of AdamW, and greedy texts.
"""

import inspect
import json
import os
import shutil

import greedy_golden
import torch
import transformers
from families.sizes import SMALL
from model_families import FAMILIES, ROPES
from renamed_families import PATCHES, RENAMED, rename
from safetensors.torch import save_file

IGNORED = -100
SHAPE = (3, 12)
# Texts that are longer than the length after which angles change.
LONG_SHAPE = (3, 24)
# Families with long texts everywhere, or in training only.
LONG = ("phi3-longrope",)
TRAINED_LONG = ("phi3-longrope", "llama4")
STEPS = 10
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weightDecay": 0.1, "clip": 1.0}


def configure(name, settings):
    """A config with the rope keys of the installed version."""
    settings = dict(settings)
    theta, scaling = settings.pop("rope", (None, None))
    kind = getattr(transformers, name)
    if theta is None:
        return kind(**settings)
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
        return kind(**settings, rope_parameters=rope)
    return kind(**settings, rope_theta=theta, rope_scaling=scaling)


def randomize(model, generator):
    """Weights larger than an initialisation, so that no term of a gradient is negligible.

    A norm that multiplies by 1 + weight starts at 0.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
            first = parameter.mean().round() if is_norm else 0
            parameter.copy_(first + 0.1 * noise if is_norm else 0.15 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))


def build(config_name, model_name, settings, seed, family=None):
    config = configure(config_name, settings)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_name)(config).float().eval()
    if family in PATCHES:
        PATCHES[family](model)
    randomize(model, torch.Generator().manual_seed(seed))
    return model


def padded(shape):
    """Masks of rows padded on either side: all, 8 of 12 and 1 of the tokens are real."""
    right = torch.zeros(shape, dtype=torch.long)
    for row, length in enumerate((shape[1], shape[1] * 17 // 24, 1)):
        right[row, :length] = 1
    return right, right.flip(1)


def record_logits(model, ids, tensors):
    """Of masked rows only the real tokens, of moved rows only the first."""
    right, left = padded(ids.shape)
    positions = (left.cumsum(1) - 1).clamp(min=0)
    shifted = (torch.arange(ids.shape[1]) + 5).expand(ids.shape)
    ones = torch.ones_like(ids)
    of_left = {"attention_mask": left}
    of_moved = {"attention_mask": ones}
    if "position_ids" in inspect.signature(model.forward).parameters:
        of_left["position_ids"] = positions
        of_moved["position_ids"] = shifted
    with torch.no_grad():
        tensors["logits"] = model(ids).logits
        tensors["logits.right"] = model(ids, attention_mask=right).logits[right.bool()]
        tensors["logits.left"] = model(ids, **of_left).logits[left.bool()]
        tensors["logits.shifted"] = model(ids, **of_moved).logits[:1]
    tensors |= {
        "mask.right": right.int(),
        "mask.left": left.int(),
        "positions.left": positions.int(),
    }


def record_documents(model, generator, description):
    """Documents apart: sums and counts of their losses, which a packed row has to add up to."""
    documents = []
    for length in (7, 1, 12, 4):
        ids = torch.randint(3, model.config.vocab_size, (1, length), generator=generator)
        labels = ids.clone()
        labels[0, : length // 3] = IGNORED
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].float()
        nll = torch.nn.functional.cross_entropy(
            logits, labels[0, 1:], ignore_index=IGNORED, reduction="sum"
        )
        documents.append(
            {
                "ids": ids[0].tolist(),
                "labels": labels[0].tolist(),
                "sum": nll.item() if length > 1 else 0.0,
                "count": int((labels[0, 1:] != IGNORED).sum()),
            }
        )
    description["documents"] = documents


def record_training(model, generator, description, shape):
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weightDecay"],
    )
    size = (STEPS, *shape)
    batches = torch.randint(3, model.config.vocab_size, size, generator=generator)
    losses, norms = [], []
    for ids in batches:
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    description |= {"adamw": ADAMW, "batches": batches.tolist(), "losses": losses, "norms": norms}


def own_name(family, name):
    """The name of a parameter in the library; transformers calls the router of Phi-3.5-MoE so."""
    return name.replace("mlp.router", "mlp.gate") if family == "phimoe" else name


def record(out, family):
    folder = os.path.join(out, family)
    seed, *kinds = FAMILIES[family]
    model = build(*kinds, seed, family)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    shape = LONG_SHAPE if family in LONG else SHAPE
    ids = torch.randint(3, model.config.vocab_size, shape, generator=generator)
    labels = ids.clone()
    labels[0, 5] = labels[2, -1] = IGNORED
    labels[1, :9] = IGNORED
    tensors, description = {}, {
        "ids": ids.tolist(),
        "labels": labels.tolist(),
        "ignoreIndex": IGNORED,
    }
    record_logits(model, ids, tensors)
    record_documents(model, generator, description)
    loss = model(ids, labels=labels).loss
    loss.backward()
    description["loss"] = loss.item()
    trained = [one for one in model.named_parameters() if one[1].grad is not None]
    tensors |= {f"gradient.{own_name(family, name)}": p.grad.clone() for name, p in trained}
    training_shape = LONG_SHAPE if family in TRAINED_LONG else SHAPE
    record_training(model, generator, description, training_shape)
    if family in RENAMED:
        rename(folder, family, tensors)
    # The angles of Phi-3 change with the length of a text, in another way than here.
    if not family.startswith("phi3"):
        description["texts"] = greedy_golden.texts_of(folder)
    shutil.rmtree(os.path.join(folder, "plain"), ignore_errors=True)
    description["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(folder, tensors, description)


def record_ropes(out):
    """Every rope scaling on one set of weights, at lengths below and above the original one."""
    settings = {
        **SMALL,
        "num_hidden_layers": 1,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "max_position_embeddings": 64,
    }
    folder, vocabulary = os.path.join(out, "ropes"), SMALL["vocab_size"]
    weights, tensors, cases, failures = None, {}, {}, []
    for name, scaling in ROPES.items():
        if name == "dynamic":  # its length limit is max_position_embeddings
            changed = {**settings, "max_position_embeddings": 16}
        else:
            changed = settings
        try:
            model = build(
                "LlamaConfig", "LlamaForCausalLM", {**changed, "rope": (10000.0, scaling)}, 77
            )
            weights = weights or model.save_pretrained(folder) or True
            short = torch.randint(3, vocabulary, (1, 12), generator=torch.Generator().manual_seed(5))
            long = torch.randint(3, vocabulary, (1, 40), generator=torch.Generator().manual_seed(6))
            with torch.no_grad():
                tensors[f"{name}.short"] = model(short).logits
                tensors[f"{name}.long"] = model(long).logits
            cases[name] = {
                "config": model.config.to_dict(),
                "theta": 10000.0,
                "scaling": scaling,
                "max_position_embeddings": changed["max_position_embeddings"],
            }
        except Exception as error:  # noqa: BLE001: a scaling that this version refuses
            failures.append(f"{name}: {error}")
    texts = greedy_golden.texts_of(folder)
    lists = {"short": short.tolist(), "long": long.tolist()}
    write(folder, tensors, {**lists, "cases": cases, "texts": texts})
    if failures:
        raise RuntimeError("; ".join(failures))


def write(folder, tensors, description):
    path = os.path.join(folder, "golden.safetensors")
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump(description, file, default=str, separators=(",", ":"))
        file.write("\n")
