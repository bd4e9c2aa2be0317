#!/usr/bin/env python3
"""Computes learning-rate schedules from their published formulas, as the numbers that a test
compares with.

    python3 scripts/record-schedules.py OUTDIR       writes OUTDIR/schedules.json

Needs nothing but Python. Each case is one scheduler section of a configuration; keys that it leaves
out take the defaults of the functions below, which stand here a second time on purpose. A series
holds the value in effect after n = 0 .. STEPS - 1 applied updates: of every block of BLOCK steps
the first value and the sum, so that no step is left out. Floats are written by repr, hence exactly.

Sources: DeepSpeed's documentation of its learning-rate schedulers (t is its last_batch_iteration,
n - 1) and Smith 2018 for OneCycle, Smith 2017 for LRRangeTest; PyTorch's documentation of
torch.optim.lr_scheduler for the others (n is its last_epoch).
"""
import argparse
import json
import math
import os
from fractions import Fraction

STEPS = 3000
BLOCK = 20


def climb(t, steps, kind):
    """Share of the warm-up at iteration t >= 0."""
    steps = max(2, steps)
    if t >= steps:
        return 1.0
    return math.log1p(t) / math.log(steps) if kind == "log" else t / steps


def warmup_lr(lr, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=1000, warmup_type="log"):
    top = lr if warmup_max_lr is None else warmup_max_lr
    for n in range(STEPS):
        share = climb(n - 1, warmup_num_steps, warmup_type) if n > 0 else 0
        yield warmup_min_lr + (top - warmup_min_lr) * share


def warmup_decay_lr(
    lr, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000,
    warmup_type="log",
):
    steps = max(2, warmup_num_steps)
    for n in range(STEPS):
        t = n - 1
        if n == 0:
            share = 0
        elif t < steps:
            share = climb(t, steps, warmup_type)
        else:
            share = max(0, Fraction(total_num_steps - t, max(1, total_num_steps - steps)))
        yield warmup_min_lr + (warmup_max_lr - warmup_min_lr) * float(share)


def warmup_cosine_lr(
    lr, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
    warmup_type="log",
):
    steps = max(2, warmup_num_steps)
    for n in range(STEPS):
        t = n - 1
        if n == 0:
            ratio = 0
        elif t < steps:
            ratio = warmup_min_ratio + (1 - warmup_min_ratio) * climb(t, steps, warmup_type)
        else:
            progress = min(1, Fraction(t - steps + 1, max(1, total_num_steps - steps)))
            ratio = cos_min_ratio + (1 - cos_min_ratio) * half_wave(progress)
        yield lr * max(0, ratio)


def half_wave(x):
    """(1 + cos(pi x)) / 2 in the form that does not cancel: cos^2(pi x / 2)."""
    return math.cos(math.pi * x / 2) ** 2


def cycle_share(n, first, second, first_stairs, second_stairs):
    """Height of the triangle at offset n of the cycle, exact, 0 at its ends and 1 at its peak."""
    offset = n % (first + second)
    rising = offset <= first
    height = Fraction(offset, first) if rising else Fraction(first + second - offset, second)
    stairs = first_stairs if rising else second_stairs
    return Fraction(math.floor(height * stairs), stairs) if stairs else height


def one_cycle(
    lr, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
    cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None,
    decay_step_size=0, cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9,
    decay_mom_rate=0.0,
):
    """Yields (rate, momentum); the momentum is None when it is not scheduled."""
    first = cycle_first_step_size
    second = first if cycle_second_step_size is None else cycle_second_step_size
    stairs = cycle_first_stair_count
    fall = stairs if cycle_second_stair_count is None else cycle_second_stair_count
    for n in range(STEPS):
        if n <= first + second:
            share = float(cycle_share(n, first, second, stairs, fall))
            rate = cycle_min_lr + (cycle_max_lr - cycle_min_lr) * share
            momentum = cycle_max_mom - (cycle_max_mom - cycle_min_mom) * share
        else:
            units = (n - first - second) / decay_step_size if decay_step_size else 0
            rate = cycle_min_lr / (1 + decay_lr_rate * units)
            momentum = cycle_max_mom * (1 + decay_mom_rate * units)
        if n == 0:
            momentum = cycle_min_mom  # DeepSpeed starts the optimizer at the lower bound
        yield rate, momentum if cycle_momentum else None


def lr_range_test(
    lr, lr_range_test_min_lr=0.001, lr_range_test_step_size=2000, lr_range_test_step_rate=1.0,
    lr_range_test_staircase=False,
):
    for n in range(STEPS):
        interval = Fraction(n, lr_range_test_step_size)
        if lr_range_test_staircase:
            interval = math.floor(interval)
        yield lr_range_test_min_lr * (1 + lr_range_test_step_rate * float(interval))


def cosine_annealing_lr(lr, T_max, eta_min=0.0):
    for n in range(STEPS):
        yield eta_min + (lr - eta_min) * half_wave(Fraction(n % (2 * T_max), T_max))


def step_lr(lr, step_size, gamma=0.1):
    rate = lr
    for n in range(STEPS):
        if n > 0 and n % step_size == 0:
            rate *= gamma
        yield rate


def exponential_lr(lr, gamma):
    for n in range(STEPS):
        yield lr * math.exp(n * math.log(gamma))


def polynomial_lr(lr, total_iters=5, power=1.0):
    for n in range(STEPS):
        yield lr * float(1 - Fraction(min(n, total_iters), total_iters)) ** power


def constant_lr(lr, factor=1 / 3, total_iters=5):
    for n in range(STEPS):
        yield lr * factor if n < total_iters else lr


def multi_step_lr(lr, milestones, gamma=0.1):
    rate = lr
    for n in range(STEPS):
        for _ in range(milestones.count(n)):
            rate *= gamma
        yield rate


def linear_lr(lr, start_factor=1 / 3, end_factor=1.0, total_iters=5):
    for n in range(STEPS):
        left = float(Fraction(max(0, total_iters - n), total_iters))
        yield lr * (start_factor * left + end_factor * (1 - left))


def cosine_annealing_warm_restarts(lr, T_0, T_mult=1, eta_min=0.0):
    since, period = 0, T_0
    for n in range(STEPS):
        if since == period:
            since, period = 0, period * T_mult
        yield eta_min + (lr - eta_min) * half_wave(Fraction(since, period))
        since += 1


def metric(n):
    """What is observed after update n: a falling trend with noise, and NaN now and then."""
    return math.nan if n % 97 == 5 else 1000 / (n + 200) + ((n * 7919) % 1009) / 1009


def reduce_lr_on_plateau(
    lr, mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel", cooldown=0,
    min_lr=0.0, eps=1e-8,
):
    """One observation of metric(n), or of its negative with "max", after every update."""
    sign = 1 if mode == "min" else -1
    best, bad, resting = sign * math.inf, 0, 0
    for n in range(STEPS):
        yield lr
        value = sign * metric(n)
        bar = best * (1 - sign * threshold) if threshold_mode == "rel" else best - sign * threshold
        if value < bar if mode == "min" else value > bar:
            best, bad = value, 0
        else:
            bad += 1
        if resting > 0:
            resting, bad = resting - 1, 0
        if bad > patience:
            lower = max(lr * factor, min_lr)
            lr = lower if lr - lower > eps else lr
            resting, bad = cooldown, 0


SCHEDULES = {
    "WarmupLR": warmup_lr,
    "WarmupDecayLR": warmup_decay_lr,
    "WarmupCosineLR": warmup_cosine_lr,
    "OneCycle": one_cycle,
    "LRRangeTest": lr_range_test,
    "CosineAnnealingLR": cosine_annealing_lr,
    "StepLR": step_lr,
    "ExponentialLR": exponential_lr,
    "PolynomialLR": polynomial_lr,
    "ConstantLR": constant_lr,
    "MultiStepLR": multi_step_lr,
    "LinearLR": linear_lr,
    "CosineAnnealingWarmRestarts": cosine_annealing_warm_restarts,
    "ReduceLROnPlateau": reduce_lr_on_plateau,
}

CYCLE = {"cycle_min_lr": 1e-5, "cycle_max_lr": 2e-3}

CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_min_lr": 1e-6, "warmup_max_lr": 6e-4, "warmup_num_steps": 715}),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 2500}),
    ("WarmupDecayLR", {"total_num_steps": 2000, "warmup_min_lr": 1e-5, "warmup_max_lr": 3e-4,
                       "warmup_num_steps": 500, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 700, "warmup_num_steps": 700}),
    ("WarmupDecayLR", {"total_num_steps": 700, "warmup_num_steps": 1300}),
    ("WarmupCosineLR", {"total_num_steps": 2900}),
    ("WarmupCosineLR", {"total_num_steps": 100}),
    ("WarmupCosineLR", {"total_num_steps": 2500, "warmup_min_ratio": 0.1, "warmup_num_steps": 300,
                        "cos_min_ratio": 0.01, "warmup_type": "linear"}),
    ("OneCycle", CYCLE),
    ("OneCycle", CYCLE | {"cycle_first_step_size": 700, "cycle_second_step_size": 1100,
                          "decay_step_size": 100, "decay_lr_rate": 0.3, "decay_mom_rate": -0.01,
                          "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}),
    ("OneCycle", CYCLE | {"cycle_first_step_size": 333, "cycle_second_step_size": 1001,
                          "cycle_first_stair_count": 7, "cycle_second_stair_count": 13,
                          "decay_step_size": 37, "decay_lr_rate": 0.01}),
    ("OneCycle", CYCLE | {"cycle_first_step_size": 1000, "cycle_first_stair_count": 500,
                          "cycle_momentum": False}),
    ("OneCycle", CYCLE | {"cycle_first_step_size": 900, "cycle_second_step_size": 0,
                          "decay_step_size": 250, "decay_mom_rate": 0.005}),
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-5, "lr_range_test_step_size": 217,
                     "lr_range_test_step_rate": 5.0}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 111,
                     "lr_range_test_step_rate": 0.7, "lr_range_test_staircase": True}),
    ("CosineAnnealingLR", {"T_max": 3000}),
    ("CosineAnnealingLR", {"T_max": 457, "eta_min": 1e-5}),
    ("StepLR", {"step_size": 1000}),
    ("StepLR", {"step_size": 37, "gamma": 0.97}),
    ("ExponentialLR", {"gamma": 0.999}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("PolynomialLR", {}),
    ("PolynomialLR", {"total_iters": 2800, "power": 2.5}),
    ("PolynomialLR", {"total_iters": 4000}),
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.2, "total_iters": 1234}),
    ("MultiStepLR", {"milestones": [300, 1500, 1500, 40]}),
    ("MultiStepLR", {"milestones": [7], "gamma": 0.3}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.9, "end_factor": 0.05, "total_iters": 2345}),
    ("CosineAnnealingWarmRestarts", {"T_0": 311}),
    ("CosineAnnealingWarmRestarts", {"T_0": 100, "T_mult": 2, "eta_min": 1e-5}),
    ("ReduceLROnPlateau", {}),
    ("ReduceLROnPlateau", {"mode": "max", "factor": 0.8, "patience": 25, "cooldown": 40,
                           "min_lr": 1e-5}),
    ("ReduceLROnPlateau", {"factor": 0.5, "patience": 60, "threshold": 0.01,
                           "threshold_mode": "abs", "eps": 1e-5}),
    ("ReduceLROnPlateau", {"mode": "max", "factor": 0.7, "patience": 0, "threshold": 0.002,
                           "threshold_mode": "abs", "cooldown": 200}),
]

LEARNING_RATE = 1.5e-3


def summary(values):
    blocks = [values[i:i + BLOCK] for i in range(0, STEPS, BLOCK)]
    return {"first": [block[0] for block in blocks], "sum": [math.fsum(block) for block in blocks]}


def record(kind, params):
    values = list(SCHEDULES[kind](LEARNING_RATE, **params))
    case = {"scheduler": {"type": kind, "params": params}}
    if kind != "OneCycle":
        return case | {"lr": summary(values)}
    rates, momenta = zip(*values)
    case["lr"] = summary(rates)
    if momenta[0] is not None:
        case["momentum"] = summary(momenta)
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUTDIR")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "schedules.json")
    cases = [json.dumps(record(*case), separators=(",", ":")) for case in CASES]
    head = f'{{"steps":{STEPS},"block":{BLOCK},"learningRate":{LEARNING_RATE!r},"cases":[\n'
    with open(path, "w") as file:
        file.write(head + ",\n".join(cases) + "\n]}\n")
    print(f"{path}: {len(cases)} cases, {os.path.getsize(path)} bytes")


main()
