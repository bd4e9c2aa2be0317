"""The text that tokenizers are trained on, and the strings whose ids are recorded."""

import functools
import os
import random
import unicodedata

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CORPUS = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "checkpoints",
            "coming-from-deepspeed",
            "data",
            "install",
            "launcher",
            "tensors",
            "training-loop",
        )
    ),
]
COUNT = 2000


@functools.cache
def corpus():
    texts = []
    for name in CORPUS:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            texts.append(file.read())
    return texts


EDGES = [
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\u0000",
    "\u0001\u001f\u007f\u0085",
    "a",
    " a",
    "a ",
    " a ",
    "  a  b   c    d",
    "\n\n\n",
    "a\n\nb",
    "a \n b",
    "\t\tx = 1;\n\t\ty",
    "don't",
    "DON'T",
    "I'LL we've he'd",
    "'s'",
    "’s",
    "ſ'ſ",
    "1234567890",
    "1 22 333 4444 55555",
    "3.14159",
    "१२३४",
    "Ⅷ½²",
    "a1b22c333",
    "_x__y_",
    "--flag=--",
    "...!!!???",
    "é",
    "e\u0301",
    "n\u0303o",
    "\u1e9b\u0323",
    "\ufb01",
    "Å\u212b",
    "ｆｕｌｌ",
    "한국어",
    "\u1112\u1161\u11ab",
    "日本語のテキスト",
    "中文，标点。",
    "العربية",
    "עִבְרִית",
    "हिन्दी",
    "ไทย",
    "Ελληνικά",
    "кириллица",
    "İstanbul",
    "ß ẞ",
    "😀",
    "😀😀",
    "👍🏽",
    "👨‍👩‍👧‍👦",
    "🇩🇪🇫🇷",
    "❤️",
    "a😀b",
    "\U0001d54f\U00010400",
    "\U000e0041",
    "▁",
    "▁a▁b",
    "Ġ",
    "ĠaĠ",
    "<0x0A>",
    "<0x41>",
    "</s",
    "<s>",
    "</s>",
    " <s> ",
    "<unk>",
    "a<unk>b",
    "<|im_start|>user\nhi<|im_end|>",
    "<|begin_of_text|>x",
    "<|eot_id|><|eot_id|>",
    "x<|endoftext|>y",
    "<think>\n</think>",
    '<tool_call>{"a": 1}</tool_call>',
    "<|im_start",
    "|im_end|>",
    "a <left> b",
    "a <right>  b",
    "zero",
    "zeros zero, zero-zero _zero",
    "NORMAL",
    "[INST] hi [/INST]",
    "[INST][/INST]",
    "x" * 500,
    " " * 100,
    "\n" * 30,
    "ab" * 100,
    "\u0301",
    "\u0301\u0302\u0303a",
    "\ufffd",
    "\ue000",
    "http://example.com/a?b=c&d=%20",
    "const x: number[] = [1, 2];",
    "\\n\\t\\u0041",
]
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABC xyz",
    " \t\n\r\u00a0\u3000",
    "0123456789",
    ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~`",
    "äöüßéèñçåøæœłşğı",
    "\u0300\u0301\u0308\u0327\u20dd\u0e31\u093f",
    "日本語漢字かなカナ中文한국",
    "אבגדابتثहिनद",
    "😀👍🏽❤️\u200d🇩🇪👩",
    "\u0000\u0007\u001b\u007f\u0090\u200b\u200e\u2060",
    "ſİıﬁǆ㎏①²",
]
ADDED = [
    "<s>",
    "</s>",
    "<unk>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</tool_call>",
    "[INST]",
    "[/INST]",
    "<left>",
    "<right>",
    "zero",
    "NORMAL",
    "<0xE2>",
]


def assigned(random_):
    """A random character that Unicode assigns, and that is no surrogate."""
    while True:
        character = chr(random_.randrange(0x20, 0x1FAFF if random_.random() < 0.3 else 0x3100))
        if unicodedata.category(character) not in ("Cn", "Cs", "Co"):
            return character


@functools.cache
def strings():
    random_ = random.Random(20)
    text = "\n".join(corpus())
    found = dict.fromkeys(EDGES)
    while len(found) < COUNT:
        kind = random_.random()
        if kind < 0.35:
            start = random_.randrange(len(text))
            made = text[start : start + random_.randrange(5, 90)]
        elif kind < 0.6:
            made = "".join(
                random_.choice(random_.choice(ALPHABETS)) for _ in range(random_.randrange(1, 25))
            )
        elif kind < 0.75:
            made = "".join(assigned(random_) for _ in range(random_.randrange(1, 15)))
        elif kind < 0.9:
            words = random_.choices(text.split(" "), k=random_.randrange(1, 5)) + random_.choices(
                ADDED, k=random_.randrange(1, 4)
            )
            random_.shuffle(words)
            made = random_.choice(["", " ", "  ", "\n"]).join(words)
        else:
            words = random_.choices(text.split(), k=random_.randrange(2, 8))
            made = "".join(
                word + random_.choice([" ", "  ", "   ", "\n", "\r\n", " \n", "\t", "\n\n  "])
                for word in words
            )
        found.setdefault(made)
    return list(found)
