"""Records losses and metrics of the first steps of TRL's trainers: record-trl.py INPUTS OUTPUT.

INPUTS is a folder that writeInputs() of test/trainer/trl-steps.ts writes: two models, and rows.json.
Needs trl, transformers and datasets.
"""

import json
import sys
import tempfile

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

inputs, output = sys.argv[1:]
rows = json.load(open(f"{inputs}/rows.json"))
COMMON = dict(
    per_device_train_batch_size=4, max_steps=3, learning_rate=2e-3, logging_steps=1,
    lr_scheduler_type="constant", use_cpu=True, report_to=[], save_strategy="no",
    bf16=False, fp16=False, gradient_checkpointing=False, max_length=32, disable_tqdm=True,
    max_grad_norm=1.0, weight_decay=0.0,
)


class InOrder:
    """The rows come in their order."""

    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def run(trainer, config, name, scorer=False, **more):
    folder = f"{inputs}/{'scorer' if scorer else 'model'}"
    kind = AutoModelForSequenceClassification if scorer else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = Dataset.from_list(rows["answers" if name.startswith("kto") else "pairs"])
    ordered = type("Ordered", (InOrder, trainer), {})
    if name.startswith(("dpo", "kto")):
        more["ref_model"] = kind.from_pretrained(folder, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as place:
        one = ordered(
            model=model, args=config(output_dir=place), train_dataset=data,
            processing_class=tokenizer, **more,
        )
        one.train()
    return [kept(entry, name) for entry in one.state.log_history if "loss" in entry]


LEFT = {"epoch", "learning_rate", "num_tokens", "step"}
# TRL's experimental trainers take means of logits over padding and prompts too.
TOKENS = {"entropy", "mean_token_accuracy", "logits/chosen", "logits/rejected"}


def kept(entry, name):
    """The numbers that the trainers here report too, with seven digits."""
    left = LEFT if name.startswith(("dpo", "kto")) else LEFT | TOKENS
    return {name: float(f"{value:.7g}") for name, value in entry.items() if name not in left}


def of(config, **own):
    return lambda **place: config(**COMMON, **own, **place)


cases = {
    "dpo": (DPOTrainer, of(DPOConfig, beta=0.3), {}),
    "dpo ipo": (DPOTrainer, of(DPOConfig, beta=0.3, loss_type=["ipo"]), {}),
    "dpo ld_alpha": (DPOTrainer, of(DPOConfig, beta=0.3, ld_alpha=0.5), {}),
    "dpo weighting": (DPOTrainer, of(DPOConfig, beta=0.3, use_weighting=True), {}),
    "kto": (KTOTrainer, of(KTOConfig, beta=0.3), {}),
    "kto apo": (KTOTrainer, of(KTOConfig, beta=0.3, loss_type="apo_zero_unpaired"), {}),
    "orpo": (ORPOTrainer, of(ORPOConfig, beta=0.3), {}),
    "cpo": (CPOTrainer, of(CPOConfig, beta=0.3), {}),
    "cpo simpo": (CPOTrainer, of(CPOConfig, beta=2.0, loss_type="simpo", cpo_alpha=0.0), {}),
    "reward": (RewardTrainer, of(RewardConfig, center_rewards_coefficient=0.01), {"scorer": True}),
}
found = {}
for name, (trainer, config, more) in cases.items():
    try:
        found[name] = run(trainer, config, name, **more)
        print(name, [round(entry["loss"], 6) for entry in found[name]])
    except Exception as error:  # Names the case, and goes on.
        print(name, type(error).__name__, str(error)[:300])
json.dump(found, open(output, "w"), indent=1)
