"""Records results of transformers for tiny random encoders with heads.

Logits of padded batches, losses by problem type, gradients, three updates of AdamW, pooled
sentences, and pairs of texts as tokens.
"""

import json
import os

import torch
import transformers
from model_golden import ADAMW, IGNORED, randomize, write

SHAPE = (3, 13)
LENGTHS = (13, 9, 5)
CLS, SEP = 3, 4
STEPS = 3
# Heads of 6 channels; only the number of heads is a power of 2. A folder takes about 30 KB.
SIZES = {
    "vocab_size": 61,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 22,
    "max_position_embeddings": 38,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
MODERN = {
    **{key: SIZES[key] for key in SIZES if not key.endswith("_prob")},
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "local_attention": 6,
    "bos_token_id": CLS,
    "eos_token_id": SEP,
    "cls_token_id": CLS,
    "sep_token_id": SEP,
}
DEBERTA = {
    **SIZES,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 4,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    "pooler_hidden_size": 12,
    "pooler_hidden_act": "gelu",
    "pooler_dropout": 0,
}
DISTIL = {
    "vocab_size": 61,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 22,
    "max_position_embeddings": 38,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
    "qa_dropout": 0.0,
    "pad_token_id": 0,
}
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 38,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": 61,
    "n_positions": 38,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "classifier_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {
    "sequence-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "masked-lm": "ForMaskedLM",
    "embedding": "Model",
}
ALL = tuple(HEADS)
FAMILIES = {
    "bert": ("Bert", SIZES, ALL),
    "roberta": ("Roberta", {**SIZES, "pad_token_id": 1, "layer_norm_eps": 1e-5}, ALL),
    "xlm-roberta": (
        "XLMRoberta",
        {**SIZES, "pad_token_id": 1, "layer_norm_eps": 1e-5, "type_vocab_size": 1},
        ("sequence-classification",),
    ),
    "distilbert": ("DistilBert", DISTIL, ALL),
    "electra": ("Electra", {**SIZES, "embedding_size": 10}, ALL),
    "modernbert": ("ModernBert", MODERN, ALL),
    "modernbert-mean": (
        "ModernBert",
        {**MODERN, "classifier_pooling": "mean"},
        ("sequence-classification",),
    ),
    "deberta-v2": ("DebertaV2", DEBERTA, ALL),
    "llama": (
        "Llama",
        LLAMA,
        ("sequence-classification", "token-classification"),
    ),
    "qwen2": ("Qwen2", LLAMA, ("sequence-classification",)),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 8}, ("sequence-classification",)),
    "gpt2": ("GPT2", GPT2, ("sequence-classification", "token-classification")),
}


def build(family, task, seed):
    kind, settings, _ = FAMILIES[family]
    labels = 2 if task == "question-answering" else 3
    config = getattr(transformers, f"{kind}Config")(**settings, num_labels=labels)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}{HEADS[task]}")(config).float()
    randomize(model, torch.Generator().manual_seed(seed))
    return model.eval()


def inputs_of(config, generator, left=False):
    """Rows of 13, 9 and 5 tokens, padded; the second sentence begins in the middle."""
    ids = torch.randint(5, config.vocab_size, SHAPE, generator=generator)
    mask = torch.zeros(SHAPE, dtype=torch.long)
    types = torch.zeros(SHAPE, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        start = SHAPE[1] - length if left else 0
        mask[row, start : start + length] = 1
        types[row, start + length // 2 : start + length] = 1
        ids[row, start], ids[row, start + length - 1] = CLS, SEP
    ids = torch.where(mask == 1, ids, config.pad_token_id)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if (getattr(config, "type_vocab_size", 0) or 0) > 1:
        inputs["token_type_ids"] = types
    return inputs


def labels_of(task, inputs, generator):
    if task == "sequence-classification":
        return {"labels": torch.randint(0, 3, SHAPE[:1], generator=generator)}
    if task == "question-answering":
        starts = torch.randint(0, 4, SHAPE[:1], generator=generator)
        starts[1] = SHAPE[1] + 3  # outside: ignored
        return {"start_positions": starts, "end_positions": (starts + 1).clamp(max=20)}
    most = 3 if task == "token-classification" else 61
    labels = torch.randint(0, most, SHAPE, generator=generator)
    chosen = torch.rand(SHAPE, generator=generator) < 0.6
    return {"labels": torch.where(chosen & (inputs["attention_mask"] == 1), labels, IGNORED)}


def outputs_of(task, output, mask):
    if task == "sequence-classification":
        return output.logits
    if task == "question-answering":
        both = torch.stack([output.start_logits, output.end_logits], -1)
        return both * mask[..., None]
    values = output.last_hidden_state if task == "embedding" else output.logits
    return values * mask[..., None]


def record_problems(model, inputs, generator, description):
    """The loss of each problem type, on one set of logits."""
    whole = torch.randint(0, 3, SHAPE[:1], generator=generator)
    several = torch.randint(0, 2, (SHAPE[0], 3), generator=generator).float()
    numbers = torch.randn((SHAPE[0], 3), generator=generator)
    labels = {
        "single_label_classification": whole,
        "multi_label_classification": several,
        "regression": numbers,
    }
    description["problems"] = {}
    for problem, values in labels.items():
        model.config.problem_type = problem
        with torch.no_grad():
            loss = model(**inputs, labels=values).loss.item()
        description["problems"][problem] = {"labels": values.tolist(), "loss": loss}
    model.config.problem_type = None


def record_pools(hidden, mask, tensors):
    """sentence-transformers' Pooling, by its formulas."""
    wide = mask[..., None].float()
    count = wide.sum(1).clamp(min=1e-9)
    weights = torch.arange(1, SHAPE[1] + 1)[None, :, None] * wide
    last = mask.sum(1) - 1
    pools = {
        "cls_token": hidden[:, 0],
        "max_tokens": hidden.masked_fill(wide == 0, -1e9).max(1)[0],
        "mean_tokens": (hidden * wide).sum(1) / count,
        "mean_sqrt_len_tokens": (hidden * wide).sum(1) / count.sqrt(),
        "weightedmean_tokens": (hidden * weights).sum(1) / weights.sum(1),
        "lasttoken": hidden[torch.arange(SHAPE[0]), last],
    }
    for name, values in pools.items():
        tensors[f"pool.{name}"] = values
    tensors["pool.normalized"] = torch.nn.functional.normalize(pools["mean_tokens"], dim=1)


def record_training(model, task, generator, description, tensors):
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weightDecay"],
    )
    batches, losses = [], []
    for _ in range(STEPS):
        inputs = inputs_of(model.config, generator)
        labels = labels_of(task, inputs, generator)
        optimizer.zero_grad()
        loss = model(**inputs, **labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["clip"])
        optimizer.step()
        losses.append(loss.item())
        batches.append(lists({**inputs, **labels}))
    with torch.no_grad():
        final = model(**inputs)
    tensors["final"] = outputs_of(task, final, inputs["attention_mask"])
    description |= {"adamw": ADAMW, "batches": batches, "losses": losses}


def lists(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def record(out, family, task):
    folder = os.path.join(out, family, task)
    seed = 2000 + 10 * list(FAMILIES).index(family) + ALL.index(task)
    model = build(family, task, seed)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    inputs = inputs_of(model.config, generator)
    mask = inputs["attention_mask"]
    tensors, description = {}, {"task": task, "inputs": lists(inputs)}
    with torch.no_grad():
        output = model(**inputs)
    tensors["outputs"] = outputs_of(task, output, mask).contiguous()
    if family in ("llama", "qwen2", "qwen3", "gpt2", "modernbert"):
        left = inputs_of(model.config, generator, left=True)
        description["left"] = lists(left)
        with torch.no_grad():
            tensors["outputs.left"] = outputs_of(task, model(**left), left["attention_mask"])
    if task == "embedding":
        record_pools(output.last_hidden_state, mask, tensors)
    else:
        labels = labels_of(task, inputs, generator)
        loss = model(**inputs, **labels).loss
        loss.backward()
        description |= {"labels": lists(labels), "loss": loss.item()}
        if task in ("sequence-classification", "masked-lm"):
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    tensors[f"gradient.{name}"] = parameter.grad.clone()
        if task == "sequence-classification":
            record_problems(model, inputs, generator, description)
        record_training(model, task, generator, description, tensors)
    description["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(folder, {name: tensor.clone() for name, tensor in tensors.items()}, description)


WORDS = """the a cat dog film was is good bad very not , . ! ? ' great awful plot act ##ing ##ed
##s ##er un ##happy happy b c d e f g h i j k l m n o p q r s t u v w x y z ##a ##b ##c ##d ##e ##f
##g ##h ##i ##j ##k ##l ##m ##n ##o ##p ##q ##r ##t ##u ##v ##w ##x ##y ##z 1 2 ##1 ##2 中""".split()
TEXTS = [
    "The cat was GOOD.",
    "unhappy acting, not great!",
    "Café  naïve\tfilms中 12",
    "",
    "a very very very very long film with a plot that was awful",
    "the dog [MASK] happy",
]
PAIRS = [
    ["The cat was good.", "was the dog bad?"],
    ["a very very very very long film", "plot"],
    ["plot", "a very very very very long film"],
    ["", "dog"],
]


def record_tokenizers(out):
    """A folder with vocab.txt alone, and two pairs of tokenizer.json."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    folder = os.path.join(out, "tokenizers", "wordpiece")
    os.makedirs(folder, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(vocabulary) + "\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, file)
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    save_texts(folder, reader)
    corpus = [*TEXTS, *(text for pair in PAIRS for text in pair)] * 3
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=special, initial_alphabet=alphabet)
    byte_level.train_from_iterator(corpus, trainer)
    byte_level.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    save_json(os.path.join(out, "tokenizers", "roberta"), byte_level)
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC()])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.train_from_iterator(
        corpus, trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>")
    )
    unigram.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    save_json(os.path.join(out, "tokenizers", "xlm-roberta"), unigram)


def save_json(folder, tokenizer):
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        cls_token="<s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    )
    fast.save_pretrained(folder)
    save_texts(folder, fast)


def save_texts(folder, tokenizer):
    def plain(encoded):
        ids = encoded["input_ids"]
        return {"ids": ids, "types": encoded.get("token_type_ids", [0] * len(ids))}

    content = {
        "texts": [{"text": text, **plain(tokenizer(text))} for text in TEXTS],
        "pairs": [{"pair": pair, **plain(tokenizer(*pair))} for pair in PAIRS],
        "cut": [
            {"pair": pair, **plain(tokenizer(*pair, truncation=True, max_length=11))}
            for pair in PAIRS
        ],
        "maxLength": 11,
    }
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump(content, file)
        file.write("\n")
