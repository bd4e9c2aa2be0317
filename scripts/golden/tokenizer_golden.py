"""Trains small tokenizers on this repository's text, and records results of the Rust crate."""

import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from chat_golden import TEMPLATES, render
from golden_strings import corpus, strings

VOCABULARY = 1000
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3_SPLIT = CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
KINDS = ("llama3", "qwen2", "llama2", "mistral", "gpt2")


def special(*contents):
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def byte_level(split, normalizer=None):
    """An untrained byte-level BPE; `split` is its regular expression, None for GPT-2's own."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == LLAMA3_SPLIT))
    if normalizer:
        tokenizer.normalizer = normalizer
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def llama3():
    tokenizer = byte_level(LLAMA3_SPLIT)
    tokenizer.add_special_tokens(
        special(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|finetune_right_pad_id|>",
        )
    )
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, tokenizer.token_to_id(bos))],
            ),
        ]
    )
    return tokenizer, {
        "bos_token": bos,
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
        "model_max_length": 131072,
    }


def qwen2():
    tokenizer = byte_level(QWEN2_SPLIT, normalizers.NFC())
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(
        [
            AddedToken(content, normalized=False)
            for content in ("<tool_call>", "</tool_call>", "<think>", "</think>")
        ]
    )
    return tokenizer, {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 32768,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    }


def gpt2():
    tokenizer = byte_level(None)
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    # Tokens that take white space along, which only tokenizer.json knows of.
    tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("zero", normalized=False),
            AddedToken("NORMAL", normalized=True),
        ]
    )
    end = "<|endoftext|>"
    return tokenizer, {
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "model_max_length": 1024,
    }


def byte_fallback(split_words):
    """A BPE over characters, unknown ones as bytes; trained on words, as SentencePiece does."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        limit_alphabet=150,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    # The bytes are entries of the vocabulary, not added tokens; text never contains them.
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = described["added_tokens"][:3]
    described["model"]["byte_fallback"] = True
    described |= split_words
    return Tokenizer.from_str(json.dumps(described))


def finish_llama(tokenizer):
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s>:1 $B:1",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )
    return tokenizer, {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 4096,
    }


def llama2():
    return finish_llama(
        byte_fallback(
            {
                "pre_tokenizer": None,
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "▁"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                    ],
                },
            }
        )
    )


def mistral():
    tokenizer, config = finish_llama(
        byte_fallback(
            {
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Metaspace",
                    "replacement": "▁",
                    "prepend_scheme": "first",
                    "split": False,
                },
            }
        )
    )
    tokenizer.add_special_tokens(special("[INST]", "[/INST]"))
    return tokenizer, config


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(value, file, separators=(",", ":"))
        file.write("\n")


def write_strings(out):
    write_json(os.path.join(out, "strings.json"), strings())


def config_of(kind, settings, tokenizer):
    """A tokenizer_config.json as transformers 4 wrote them."""
    added = {
        str(id_): {
            key: getattr(token, key)
            for key in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        }
        for id_, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    template = TEMPLATES.get(kind)
    chat = {"chat_template": template} if template else {}
    return {
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        **settings,
        **chat,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def record(out, kind):
    folder = os.path.join(out, kind)
    tokenizer, settings = globals()[kind]()
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    write_json(os.path.join(folder, "tokenizer_config.json"), config_of(kind, settings, tokenizer))
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in strings()]
    bare = [tokenizer.encode(text, add_special_tokens=False).ids for text in strings()]
    prefix = len(ids[0]) - len(bare[0])
    assert all(whole[prefix:] == rest for whole, rest in zip(ids, bare)), "specials are a prefix"

    def decoded(skip):
        """What decode() gives; null where it is the string itself."""
        texts = (tokenizer.decode(row, skip_special_tokens=skip) for row in ids)
        return [None if text == string else text for text, string in zip(texts, strings())]

    write_json(
        os.path.join(folder, "golden.json"),
        {
            "prefix": ids[0][:prefix],
            "ids": bare,
            "decoded": decoded(False),
            "decodedSkipping": decoded(True),
            "chats": render(folder, kind),
        },
    )
