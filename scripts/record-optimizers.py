#!/usr/bin/env python3
"""Computes optimizer steps from their published formulas in f64, as the numbers that a test
compares with.

    python3 scripts/record-optimizers.py OUTDIR       writes OUTDIR/optimizers.json

Needs nothing but Python. Where PyTorch is installed, every rule that torch.optim has is run there
too: the numbers must agree to 1e-12 in f64 and to 1e-6 in f32, and the file names the version that
they were checked against. A case is one optimizer section of a configuration and the settings of
two groups that override it. It holds the parameters after STEPS steps: "f32" with the gradients as
they are, "bf16" with the gradients rounded to bfloat16. Parameters and gradients come from an
integer hash that the test computes as well. Element UNTOUCHED of every parameter has no gradient in
any step.
"""
import argparse
import json
import math
import os
import struct

try:
    import torch
except ImportError:
    torch = None

STEPS = 20
UNTOUCHED = 2
SHAPES = [[7, 3], [5], [1, 11], [3, 9]]
GROUP_OF = [0, 1, 1, 0]
MASK = 0xFFFFFFFF


def hashed(step, parameter, element):
    """In [-1000, 1000] / 1024. Step 0 is the initial value, steps from 1 on are gradients."""
    x = (step * 0x9E3779B1 + parameter * 0x85EBCA77 + element * 0xC2B2AE3D + 1) & MASK
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & MASK
    x = ((x ^ (x >> 12)) * 0x297A2D39) & MASK
    x ^= x >> 15
    return (x % 2001 - 1000) / 1024


def to_bfloat16(x):
    """x, which f32 holds exactly, to the nearest bfloat16, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def values(step, parameter):
    count = math.prod(SHAPES[parameter])
    out = [hashed(step, parameter, element) for element in range(count)]
    if step > 0:
        out[UNTOUCHED] = 0.0
    return out


def norm(x):
    return math.sqrt(math.fsum(v * v for v in x))


# Each rule updates the list p in place by update number t (from 1); `state` is {} at first.


def sgd(p, g, state, t, shape, lr, momentum=0, dampening=0, weight_decay=0, nesterov=False):
    """torch.optim.SGD."""
    buffer = state.setdefault("buffer", [0.0] * len(p))
    for i in range(len(p)):
        d = g[i] + weight_decay * p[i]
        if momentum:
            buffer[i] = d if t == 1 else momentum * buffer[i] + (1 - dampening) * d
            d = d + momentum * buffer[i] if nesterov else buffer[i]
        p[i] -= lr * d


def adagrad(p, g, state, t, shape, lr, lr_decay=0, weight_decay=0, initial_accumulator_value=0,
            eps=1e-10):
    """torch.optim.Adagrad."""
    total = state.setdefault("sum", [float(initial_accumulator_value)] * len(p))
    for i in range(len(p)):
        d = g[i] + weight_decay * p[i]
        total[i] += d * d
        p[i] -= lr / (1 + (t - 1) * lr_decay) * d / (math.sqrt(total[i]) + eps)


def rmsprop(p, g, state, t, shape, lr, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0,
            centered=False):
    """torch.optim.RMSprop."""
    square, mean, buffer = (state.setdefault(k, [0.0] * len(p)) for k in ("s", "m", "b"))
    for i in range(len(p)):
        d = g[i] + weight_decay * p[i]
        square[i] = alpha * square[i] + (1 - alpha) * d * d
        mean[i] += (1 - alpha) * (d - mean[i])
        d /= math.sqrt(square[i] - mean[i] ** 2 if centered else square[i]) + eps
        buffer[i] = momentum * buffer[i] + d
        p[i] -= lr * (buffer[i] if momentum else d)


def moments(state, g, t, betas, bias_correction=True):
    """The corrected first and second moment of Adam."""
    m = state.setdefault("m", [0.0] * len(g))
    v = state.setdefault("v", [0.0] * len(g))
    for i in range(len(g)):
        m[i] = betas[0] * m[i] + (1 - betas[0]) * g[i]
        v[i] = betas[1] * v[i] + (1 - betas[1]) * g[i] * g[i]
    c = [1 - beta**t if bias_correction else 1 for beta in betas]
    return [x / c[0] for x in m], [x / c[1] for x in v]


def adam(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
         bias_correction=True, adam_w_mode=True):
    """torch.optim.AdamW, or torch.optim.Adam with adam_w_mode false."""
    for i in range(len(p)):
        if adam_w_mode:
            p[i] -= lr * weight_decay * p[i]
    if not adam_w_mode:
        g = [d + weight_decay * x for d, x in zip(g, p)]
    m, v = moments(state, g, t, betas, bias_correction)
    for i in range(len(p)):
        p[i] -= lr * m[i] / (math.sqrt(v[i]) + eps)


def lion(p, g, state, t, shape, lr, betas=(0.9, 0.999), weight_decay=0):
    """Chen et al. 2023, arXiv:2302.06675, algorithm 2."""
    m = state.setdefault("m", [0.0] * len(p))
    for i in range(len(p)):
        c = betas[0] * m[i] + (1 - betas[0]) * g[i]
        p[i] -= lr * ((c > 0) - (c < 0) + weight_decay * p[i])
        m[i] = betas[1] * m[i] + (1 - betas[1]) * g[i]


def lamb(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
         bias_correction=True, max_coeff=10, min_coeff=0.01, moment_correction=False):
    """DeepSpeed's kernel; with moment_correction You et al. 2020, arXiv:1904.00962, algorithm 2, with its bounds."""
    m, v = moments(state, g, t, betas, bias_correction and moment_correction)
    u = [a / (math.sqrt(b) + eps) + weight_decay * x for a, b, x in zip(m, v, p)]
    ratio = norm(p) / norm(u) if norm(p) > 0 and norm(u) > 0 else 1
    rate = lr
    if bias_correction and not moment_correction:
        rate *= math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
    for i in range(len(p)):
        p[i] -= rate * min(max(ratio, min_coeff), max_coeff) * u[i]


def adafactor(p, g, state, t, shape, lr, eps=(1e-30, 1e-3), clip_threshold=1, decay_rate=-0.8,
              beta1=None, weight_decay=0, scale_parameter=True, relative_step=True,
              warmup_init=False):
    """Shazeer & Stern 2018, arXiv:1804.04235, with the options of transformers' and fairseq's Adafactor."""
    decay = 1 - t**decay_rate
    squares = [x * x + eps[0] for x in g]
    if len(shape) > 1:
        rows, columns = shape
        row = state.setdefault("row", [0.0] * rows)
        column = state.setdefault("column", [0.0] * columns)
        for r in range(rows):
            mean = math.fsum(squares[r * columns:(r + 1) * columns]) / columns
            row[r] = decay * row[r] + (1 - decay) * mean
        for c in range(columns):
            column[c] = decay * column[c] + (1 - decay) * math.fsum(squares[c::columns]) / rows
        mean = math.fsum(row) / rows
        u = [x / math.sqrt(row[i // columns] / mean * column[i % columns]) for i, x in enumerate(g)]
    else:
        v = state.setdefault("v", [0.0] * len(p))
        for i in range(len(p)):
            v[i] = decay * v[i] + (1 - decay) * squares[i]
        u = [x / math.sqrt(y) for x, y in zip(g, v)]
    rate = lr
    if relative_step:
        rate *= min(1e-6 * t if warmup_init else 1e-2, 1 / math.sqrt(t))
    if scale_parameter:
        rate *= max(eps[1], norm(p) / math.sqrt(len(p)))
    excess = max(1, norm(u) / math.sqrt(len(u)) / clip_threshold)
    m = state.setdefault("m", [0.0] * len(p))
    for i in range(len(p)):
        d = rate / excess * u[i]
        m[i] = (beta1 or 0) * m[i] + (1 - (beta1 or 0)) * d
        p[i] -= rate * weight_decay * p[i] + (d if beta1 is None else m[i])


def to_float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def dynamic_map(signed):
    """create_dynamic_map of bitsandbytes, in order."""
    parts = [1 << i if signed else 2 << i for i in range(7)]
    found = [
        10 ** (i - 6) * (0.1 + 0.9 * (k + 0.5) / n) for i, n in enumerate(parts) for k in range(n)
    ]
    return sorted(map(to_float32, found + [0, 1] + ([-x for x in found] if signed else [])))


CODES = {True: dynamic_map(True), False: dynamic_map(False)}
BLOCK = 256


def rounded(x, signed):
    """x as the nearest numbers of the code times the largest magnitude of each block; what is above 0
    stays so where there are no signs."""
    out = []
    for at in range(0, len(x), BLOCK):
        block = x[at:at + BLOCK]
        scale = max(map(abs, block))
        for value in block:
            code = 0.0
            if scale > 0:
                code = min(CODES[signed], key=lambda one: abs(one - value / scale))
                if value < 0 and code == 0:
                    code = max(one for one in CODES[signed] if one < 0)
                if value > 0 and code == 0 and not signed:
                    code = CODES[signed][1]
            out.append(code * scale)
    return out


def adamw8bit(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
              bias_correction=True, min_8bit_size=4096):
    """Dettmers et al. 2021, arXiv:2110.02861: AdamW with moments that are rounded after each step."""
    adam(p, g, state, t, shape, lr, betas, eps, weight_decay, bias_correction)
    if len(p) >= min_8bit_size:
        state["m"] = rounded(state["m"], True)
        state["v"] = rounded(state["v"], False)


def one_bit_adam(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                 freeze_step=100000):
    """Tang et al. 2021, arXiv:2102.02888, on one rank: AdamW without bias correction, v frozen after freeze_step."""
    frozen_adam(p, g, state, lr, betas, eps, weight_decay, t <= freeze_step)


def frozen_adam(p, g, state, lr, betas, eps, weight_decay, updates_v):
    """AdamW without bias correction; a moment of what never had a gradient stays 0."""
    m = state.setdefault("m", [0.0] * len(p))
    v = state.setdefault("v", [0.0] * len(p))
    for i in range(len(p)):
        if updates_v:
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g[i] * g[i]
        m[i] = betas[0] * m[i] + (1 - betas[0]) * (g[i] if v[i] else 0)
        p[i] -= lr * (m[i] / (math.sqrt(v[i]) + eps) + weight_decay * p[i])


def zero_one_adam(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                  var_freeze_step=100000, var_update_scaler=16, local_step_scaler=32678,
                  local_step_clipper=16):
    """Lu et al. 2022, arXiv:2202.06009, on one rank: v changes ever more rarely, and not after var_freeze_step."""
    interval, count = state.setdefault("interval", (1, 0))
    updates_v = t <= var_freeze_step and t % interval == 0
    if updates_v:
        count += 1
        state["interval"] = (2 * interval, 0) if count == var_update_scaler else (interval, count)
    frozen_adam(p, g, state, lr, betas, eps, weight_decay, updates_v)


def one_bit_lamb(p, g, state, t, shape, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                 max_coeff=10, min_coeff=0.01, freeze_step=100000, coeff_beta=0.9, factor_max=4,
                 factor_min=0.5, factor_threshold=0.1):
    """Li et al. 2021, arXiv:2104.06069, in the form of DeepSpeed's OneBitLamb, on one rank."""
    m = state.setdefault("m", [0.0] * len(p))
    v = state.setdefault("v", [0.0] * len(p))
    for i in range(len(p)):
        if t <= freeze_step:
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g[i] * g[i]
        m[i] = betas[0] * m[i] + (1 - betas[0]) * (g[i] if v[i] else 0)
    plain = [a / (math.sqrt(b) + eps) for a, b in zip(m, v)]
    u = [a + weight_decay * x for a, x in zip(plain, p)]
    if t <= freeze_step:
        ratio = 1
        if norm(p) > 0 and norm(u) > 0:
            ratio = min(max(norm(p) / norm(u), min_coeff), max_coeff)
        if ratio != 1:
            state["frozen"] = coeff_beta * state.get("frozen", 0) + (1 - coeff_beta) * ratio
    else:
        fresh = state.setdefault("fresh", list(v))
        live = [i for i in range(len(p)) if v[i]]
        for i in live:
            fresh[i] = betas[1] * fresh[i] + (1 - betas[1]) * g[i] * g[i]
        factor = max((math.sqrt(v[i]) + eps) / (math.sqrt(fresh[i]) + eps) for i in live)
        if weight_decay > 0:
            q = min(1, norm(plain) / norm(u))
            factor = factor * q + 1 - q
        last = state.get("factor", 1)
        factor = min(max(factor, factor_min), factor_max)
        factor = min(max(factor, last * (1 - factor_threshold)), last * (1 + factor_threshold))
        state["factor"] = factor
        ratio = state["frozen"] * factor
    for i in range(len(p)):
        p[i] -= lr * ratio * u[i]


def one_bit_sgd(p, g, state, t, shape, lr, freeze_step=100000, **others):
    """Seide et al. 2014, on one rank, which exchanges nothing: SGD."""
    sgd(p, g, state, t, shape, lr, **others)


def product(a, b):
    columns = list(zip(*b))
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def orthogonalized(x):
    """Five steps of the quintic Newton-Schulz iteration on x, scaled to norm 1."""
    if len(x) > len(x[0]):
        return [list(row) for row in zip(*orthogonalized([list(row) for row in zip(*x)]))]
    length = norm([v for row in x for v in row]) + 1e-7
    x = [[v / length for v in row] for row in x]
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        gram = product(x, list(zip(*x)))
        square = product(gram, gram)
        mixed = [[b * u + c * w for u, w in zip(*rows)] for rows in zip(gram, square)]
        x = [[a * u + w for u, w in zip(*rows)] for rows in zip(x, product(mixed, x))]
    return x


def muon(p, g, state, t, shape, lr, muon_lr=None, momentum=0.95, weight_decay=0, adam_lr=3e-4,
         betas=(0.9, 0.95), eps=1e-10):
    """Jordan et al. 2024 (kellerjordan.github.io/posts/muon) for matrices, AdamW for the rest."""
    if len(shape) < 2:
        return adam(p, g, state, t, shape, adam_lr, betas, eps, weight_decay)
    rows, columns = shape
    m = state.setdefault("m", [0.0] * len(p))
    for i in range(len(p)):
        m[i] = momentum * m[i] + (1 - momentum) * g[i]
    ahead = [(1 - momentum) * d + momentum * x for d, x in zip(g, m)]
    u = orthogonalized([ahead[i * columns:(i + 1) * columns] for i in range(rows)])
    flat = [v * math.sqrt(max(1, rows / columns)) for row in u for v in row]
    rate = lr if muon_lr is None else muon_lr
    for i in range(len(p)):
        p[i] -= rate * (weight_decay * p[i] + flat[i])


RULES = {
    "SGD": sgd,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adam": adam,
    "AdamW": adam,
    "Lion": lion,
    "Lamb": lamb,
    "Muon": muon,
    "Adafactor": adafactor,
    "AdamW8bit": adamw8bit,
    "OneBitAdam": one_bit_adam,
    "ZeroOneAdam": zero_one_adam,
    "OneBitLamb": one_bit_lamb,
    "OneBitSGD": one_bit_sgd,
}

GROUPS = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.004, "weight_decay": 0.03}]

CASES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.8, "dampening": 0.3}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("RMSprop", {}),
    ("RMSprop", {"alpha": 0.9, "eps": 1e-3, "momentum": 0.8}),
    ("RMSprop", {"alpha": 0.95, "centered": True}),
    ("RMSprop", {"alpha": 0.9, "centered": True, "momentum": 0.5}),
    ("AdamW", {}),
    ("AdamW", {"betas": [0.8, 0.95], "eps": 1e-3}),
    ("AdamW", {"bias_correction": False}),
    ("Adam", {}),
    ("Adam", {"adam_w_mode": False}),
    ("Lion", {}),
    ("Lion", {"betas": [0.95, 0.98]}),
    ("Lamb", {}),
    ("Lamb", {"betas": [0.8, 0.95], "max_coeff": 1.5, "min_coeff": 0.7}),
    ("Lamb", {"moment_correction": True}),
    ("Lamb", {"bias_correction": False}),
    ("Muon", {"adam_lr": 0.002}),
    ("Adafactor", {}),
    ("Adafactor", {"decay_rate": -0.6, "eps": [1e-6, 0.9]}),
    ("Adafactor", {"lr": 0.01, "relative_step": False, "scale_parameter": False}),
    ("Adafactor", {"lr": 0.01, "relative_step": False, "beta1": 0.9, "clip_threshold": 0.5}),
    ("AdamW8bit", {}),
    ("AdamW8bit", {"min_8bit_size": 20}),
    ("AdamW8bit", {"min_8bit_size": 0, "betas": [0.8, 0.95], "eps": 1e-3}),
    ("OneBitAdam", {}),
    ("OneBitAdam", {"freeze_step": 7, "betas": [0.8, 0.95], "eps": 1e-3}),
    ("ZeroOneAdam", {"var_update_scaler": 2}),
    ("ZeroOneAdam", {"var_freeze_step": 9, "var_update_scaler": 2, "betas": [0.8, 0.95]}),
    ("OneBitLamb", {}),
    ("OneBitLamb", {"freeze_step": 7, "betas": [0.8, 0.95], "max_coeff": 1.5, "coeff_beta": 0.6}),
    ("OneBitLamb", {"freeze_step": 7, "factor_min": 0.9, "factor_max": 1.1, "factor_threshold": 0.05}),
    ("OneBitSGD", {"freeze_step": 7, "momentum": 0.9}),
]


def trained(kind, params, rounding):
    """The parameters after STEPS steps of the formula."""
    all_values = [values(0, k) for k in range(len(SHAPES))]
    states = [{} for _ in SHAPES]
    for t in range(1, STEPS + 1):
        for k, p in enumerate(all_values):
            options = params | GROUPS[GROUP_OF[k]]
            g = [rounding(x) for x in values(t, k)]
            RULES[kind](p, g, states[k], t, SHAPES[k], **options)
    return all_values


def torch_optimizer(kind, params):
    """torch.optim's class for the case and its arguments; None where it has none."""
    params = dict(params)
    decoupled = params.pop("adam_w_mode", True)
    if kind in ("Adam", "AdamW"):
        kind = "AdamW" if decoupled else "Adam"
    known = kind in ("SGD", "Adagrad", "RMSprop", "Adam", "AdamW") and "bias_correction" not in params
    return (getattr(torch.optim, kind), params) if known else None


def check(kind, params, rounding):
    """Fails unless torch.optim, where it has the rule, agrees with the formula."""
    found = torch_optimizer(kind, params)
    if found is None:
        return
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        tensors = [
            torch.tensor(values(0, k), dtype=dtype, requires_grad=True) for k in range(len(SHAPES))
        ]
        groups = [
            {"params": [x for k, x in enumerate(tensors) if GROUP_OF[k] == index]} | settings
            for index, settings in enumerate(GROUPS)
        ]
        optimizer = found[0](groups, **found[1])
        for t in range(1, STEPS + 1):
            for k, x in enumerate(tensors):
                x.grad = torch.tensor([rounding(v) for v in values(t, k)], dtype=dtype)
            optimizer.step()
        for k, want in enumerate(trained(kind, params, rounding)):
            worst = max(abs(a - b) for a, b in zip(tensors[k].tolist(), want))
            scale = max(abs(x) for x in want)
            assert worst <= tolerance * scale, (kind, params, dtype, k, worst / scale)


def record(kind, params):
    case = {"optimizer": {"type": kind, "params": params}}
    case["source"] = RULES[kind].__doc__
    for name, rounding in (("f32", float), ("bf16", to_bfloat16)):
        if torch is not None:
            check(kind, params, rounding)
        case[name] = [[float(f"{x:.12g}") for x in p] for p in trained(kind, params, rounding)]
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUTDIR")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "optimizers.json")
    head = {
        "steps": STEPS,
        "untouched": UNTOUCHED,
        "shapes": SHAPES,
        "groupOf": GROUP_OF,
        "groups": [{"lr": g["lr"], "weightDecay": g["weight_decay"]} for g in GROUPS],
        "checkedAgainst": None if torch is None else f"torch {torch.__version__}",
    }
    cases = [json.dumps(record(*case), separators=(",", ":")) for case in CASES]
    with open(path, "w") as file:
        file.write(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(cases) + "\n]}\n")
    print(f"{path}: {len(cases)} cases, {os.path.getsize(path)} bytes, {head['checkedAgainst']}")


main()
