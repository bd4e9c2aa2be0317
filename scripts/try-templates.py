#!/usr/bin/env python3
"""Writes random templates and their results in Python's jinja2, one JSON object per line.

    python3 scripts/try-templates.py SEED COUNT

scripts/try-templates.mjs runs it and compares. Templates are of the kinds that chat templates use:
their statements, operators, filters, tests and methods, on texts, numbers, lists and dicts, with
mistakes among them.
"""
import json
import random
import re
import signal
import sys
import warnings

from golden.template_environment import environment, refusal

# A filter may have changed its letters or its blanks.
ADDRESS = re.compile(r"at(\W|%20)*0x", re.IGNORECASE)
STRINGS = [
    "", "a", "b", "ab", "A", " a ", "a b", "a,b,,c", "Hello World", "x\n y\n\n", "\t", "é", "😀",
    "a😀b", "ß", "1", "-7", "3.5", "1e3", "0x1F", " 42 ", "nan", "it's", 'say "hi"', "<b>&", "%s",
    "%d", "%5.2f", "{}", "{0}", "{:>5}", "{{", "a\\b", "<|im_start|>", "\u2028", "ÀÉ", "ΑΣ", "role",
    "content", "user", "system", "tools", "aaa", "abcabc", "hello-world foo_bar", "\x1c\x85", "²½",
]
NAMES = ["a", "b", "c", "m", "x", "y", "ns", "messages", "tools", "d", "l", "s", "n", "f", "nope", "t", "loop"]
KEYS = ["role", "content", "name", "a", "b", "x", "type", "items", "keys", "get", "zz", "0", "upper"]

FILTERS = [
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "first", "float",
    "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list",
    "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "select",
    "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate",
    "unique", "upper", "urlencode", "wordcount", "wordwrap", "safe", "attr", "filesizeformat",
]
LISTING = ["list", "join", "length", "first", "tojson", "sort", "last", "sum"]
TESTS = [
    "odd", "even", "defined", "undefined", "none", "boolean", "false", "true", "integer", "float",
    "lower", "upper", "string", "mapping", "number", "sequence", "iterable", "callable",
]
BINARY_TESTS = ["divisibleby", "sameas", "in", "eq", "ne", "gt", "ge", "lt", "le", "equalto", "lessthan"]
METHODS = [
    "capitalize", "casefold", "count", "endswith", "expandtabs", "find", "format", "index", "isalnum",
    "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable",
    "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill", "center",
    "get", "items", "keys", "values", "copy", "append", "update", "bit_length", "is_integer",
]
FORMATS = [
    "%s", "%r", "%d", "%i", "%x", "%o", "%5s|", "%-5s|", "%05d", "%+d", "%.2f", "%e", "%g", "%10.3f", "%%",
    "%c", "%(a)s", "%.3s", "%#x", "% d", "%X", "%G", "%a", "%3d%%",
]
BRACES = [
    "{}", "{0}", "{a}", "{:5}|", "{:>5}", "{:^7}", "{:*<6}", "{:05d}", "{:,}", "{:.2f}", "{:e}", "{:g}",
    "{:%}", "{!r}", "{!s:>6}", "{0[a]}", "{0.a}", "{:x}", "{:#b}", "{:_}", "{:+}", "{{}}", "{:.3}", "{:c}",
    "{:08.3f}", "{:<8}|", "{:=+6d}", "{:n}",
]


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.macros = []

    def one(self, *choices):
        return self.random.choice(choices)

    def chance(self, share):
        return self.random.random() < share

    # Expressions

    def literal(self, text):
        kind = self.random.random()
        if kind < 0.1:
            # The escape \ud83d is half of a character in Python; JavaScript joins halves.
            return json.dumps(text, ensure_ascii=max(text, default="") <= "\uffff")
        quoted = repr(text)
        return quoted

    def atom(self):
        kind = self.random.random()
        if kind < 0.3:
            return self.literal(self.random.choice(STRINGS))
        if kind < 0.5:
            return str(self.one(0, 1, 2, 3, 5, -1, 7, 10, 100, 123456789, 2**53, 10**18))
        if kind < 0.57:
            return self.one("0.5", "1.0", "2.5", "-0.1", "3.14159", "1e16", "1e-7", "100.0", "0.0", "1.005")
        if kind < 0.63:
            return self.one("true", "false", "none", "True", "None")
        return self.random.choice(NAMES)

    def number(self, depth):
        return self.one(
            lambda: str(self.random.randint(-9, 12)),
            lambda: str(self.random.randint(-9, 12)),
            lambda: self.one("n", "f", "big", "loop.index", "l|length"),
            lambda: f"({self.number(depth - 1)} {self.one('+', '-', '*', '//', '%')} {self.number(depth - 1)})" if depth > 0 else "3",
        )()

    def text(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.45:
            return self.literal(self.random.choice(STRINGS))
        if kind < 0.6:
            return self.one("s", "t", "m.content", "m['role']", "messages[0].content", "messages[-1]['content']")
        if kind < 0.7:
            return f"({self.text(depth - 1)} {self.one('+', '~')} {self.text(depth - 1)})"
        if kind < 0.85:
            return f"{self.text(depth - 1)}{self.method(depth - 1)}"
        return f"({self.text(depth - 1)}|{self.filter(depth - 1)})"

    def sequence(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.35:
            return self.one("l", "messages", "tools", "d", "l2", "s", "[]", "[3, 1, 2]", "['b', 'A', 'a']", "(1, 'x')")
        if kind < 0.5:
            return "[" + ", ".join(self.expression(depth - 1) for _ in range(self.random.randint(0, 3))) + "]"
        if kind < 0.6:
            return f"range({self.random.randint(-2, 6)})"
        if kind < 0.7:
            return f"{self.sequence(depth - 1)}{self.slice(depth - 1)}"
        if kind < 0.85:
            return f"{self.sequence(depth - 1)}|{self.filter(depth - 1)}"
        return self.one("d.items()", "d.keys()", "d.values()", "d|items", "d|dictsort", "messages|selectattr('role', '==', 'user')", "l|map('string')")

    def slice(self, depth):
        bound = lambda: self.one("", "", str(self.random.randint(-4, 4)), "none", "n")
        step = self.one("", "", ":" + self.one("", "1", "-1", "2", "-2", "0"))
        return f"[{bound()}:{bound()}{step}]"

    def dict(self, depth):
        pairs = []
        for _ in range(self.random.randint(0, 3)):
            key = self.literal(self.one("a", "b", "x", "role")) if self.chance(0.8) else self.expression(0)
            pairs.append(f"{key}: {self.expression(depth - 1)}")
        return "{" + ", ".join(pairs) + "}"

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        kind = self.random.random()
        if kind < 0.14:
            return self.atom()
        if kind < 0.26:
            return self.text(depth)
        if kind < 0.34:
            return self.number(depth)
        if kind < 0.42:
            return self.sequence(depth)
        if kind < 0.45:
            return self.dict(depth)
        if kind < 0.52:
            operator = self.one("+", "-", "*", "/", "//", "%", "~", "+", "~")
            return self.maybe_enclosed(f"{self.expression(depth - 1)} {operator} {self.expression(depth - 1)}")
        if kind < 0.54:
            return f"{self.number(1)} ** {self.one('0', '1', '2', '3', '-1', '0.5')}"
        if kind < 0.6:
            operator = self.one("==", "!=", "<", "<=", ">", ">=", "in", "not in", "==", "in")
            whole = f"{self.expression(depth - 1)} {operator} {self.expression(depth - 1)}"
            if self.chance(0.1):
                whole += f" {self.one('<', '==', 'in')} {self.expression(depth - 1)}"
            return self.maybe_enclosed(whole)
        if kind < 0.66:
            return self.maybe_enclosed(f"{self.expression(depth - 1)} {self.one('and', 'or')} {self.expression(depth - 1)}")
        if kind < 0.68:
            return f"{self.one('not ', '-', '+', 'not ')}{self.expression(depth - 1)}"
        if kind < 0.72:
            end = f" else {self.expression(depth - 1)}" if self.chance(0.7) else ""
            return f"({self.expression(depth - 1)} if {self.expression(depth - 1)}{end})"
        if kind < 0.82:
            return f"{self.expression(depth - 1)}|{self.filter(depth - 1)}"
        if kind < 0.88:
            return self.maybe_enclosed(f"{self.expression(depth - 1)} is {self.one('', '', 'not ')}{self.test(depth - 1)}")
        if kind < 0.94:
            return f"{self.expression(depth - 1)}{self.access(depth - 1)}"
        if kind < 0.96:
            return f"{self.formats()}"
        if kind < 0.98 and self.macros:
            return self.macro_call(depth - 1)
        return self.one(
            "loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex",
            "loop.previtem", "loop.nextitem", "loop.cycle('a', 'b')", "loop.changed(x)", "loop.depth",
            "namespace(a=1)", "dict(a=1)", "ns.a", "ns.b", "d.a", "d['b']", "messages[0]",
        )

    def maybe_enclosed(self, text):
        return f"({text})" if self.chance(0.6) else text

    def access(self, depth):
        kind = self.random.random()
        if kind < 0.25:
            return f".{self.random.choice(KEYS)}"
        if kind < 0.45:
            return f"['{self.random.choice(KEYS)}']"
        if kind < 0.6:
            return f"[{self.random.randint(-3, 3)}]"
        if kind < 0.7:
            return self.slice(depth)
        if kind < 0.75:
            return f"[{self.expression(depth)}]"
        return self.method(depth)

    def method(self, depth):
        name = self.random.choice(METHODS)
        return f".{name}({self.arguments(depth, name)})"

    def arguments(self, depth, name):
        if name in ("split", "rsplit"):
            return self.one("", "','", "' '", "none, 1", "',', 1", "'a', 2", "'b', maxsplit=1")
        if name in ("strip", "lstrip", "rstrip"):
            return self.one("", "", "' '", "'a'", "'\\n'", "none", "'ab<'")
        if name in ("startswith", "endswith", "removeprefix", "removesuffix", "count", "find", "rfind", "index", "rindex", "partition", "rpartition"):
            first = self.one(self.literal(self.random.choice(STRINGS)), "'a'", "'b'", "('a', 'H')", "' '")
            return first + self.one("", "", "", f", {self.random.randint(-3, 3)}", f", {self.random.randint(-3, 3)}, {self.random.randint(-3, 5)}")
        if name == "replace":
            return f"{self.literal(self.one('a', '', 'b', ' ', 'ab'))}, {self.literal(self.one('', 'X', '--', '😀'))}" + self.one("", "", ", 1", ", -1", ", 0")
        if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
            return self.one("5", "8", "0", "7, '*'", "4", "-1")
        if name == "join":
            return self.one("l", "['a', 'b']", "s", "messages|map(attribute='role')", "d", "()")
        if name == "get":
            return self.one("'a'", "'zz'", "'a', 1", "'zz', 'x'", "'role', ''", "1")
        if name == "format":
            return self.one("", "1", "'a'", "'a', 2", "a=1", "1.5", "*l", "**d")
        if self.chance(0.85):
            return ""
        return self.expression(depth - 1)

    def filter(self, depth):
        name = self.random.choice(FILTERS)
        args = {
            "batch": ["2", "3, 'x'", "1"],
            "center": ["", "9", "4"],
            "d": ["'z'", "'z', true", "none", "1, boolean=true"],
            "default": ["", "'z'", "'z', true", "[]"],
            "dictsort": ["", "true", "false, 'value'", "reverse=true", "by='value'"],
            "float": ["", "1.5", "none"],
            "format": ["1", "'a', 2", "a=1", ""],
            "groupby": ["'role'", "'a'", "0", "'a', default='z'", "attribute='role', case_sensitive=true"],
            "indent": ["", "2", "2, true", "'> '", "1, blank=true", "width=3, first=true"],
            "int": ["", "7", "base=16", "default=none", "0, 2"],
            "join": ["", "', '", "'-', attribute='role'", "d='|'", "1"],
            "map": ["attribute='role'", "'upper'", "'string'", "'length'", "'replace', 'a', 'b'", "attribute='content', default='-'", "'int'", "attribute=0", "'tojson'", "'default', 'q'"],
            "max": ["", "attribute='role'", "true"],
            "min": ["", "attribute='role'", "case_sensitive=true"],
            "reject": ["", "'odd'", "'equalto', 1", "'in', l", "'none'", "'string'"],
            "select": ["", "'odd'", "'equalto', 1", "'in', l", "'defined'", "'string'", "'gt', 1"],
            "rejectattr": ["'role'", "'role', 'equalto', 'user'", "'content', 'none'", "'a.b'"],
            "selectattr": ["'role'", "'role', 'equalto', 'user'", "'content', 'none'", "'zz', 'defined'", "0"],
            "replace": ["'a', 'b'", "' ', ''", "'', '-'", "'a', 'b', 1", "1, 2"],
            "round": ["", "1", "2", "0, 'floor'", "1, 'ceil'", "-1", "method='ceil'"],
            "slice": ["2", "3, 'x'", "1"],
            "sort": ["", "true", "attribute='role'", "case_sensitive=true", "reverse=true, attribute='content'", "attribute='role,content'"],
            "sum": ["", "start=10", "attribute='n'"],
            "tojson": ["", "", "indent=2", "sort_keys=true", "ensure_ascii=true", "separators=(',', ':')", "indent=4, ensure_ascii=false"],
            "trim": ["", "", "'a'", "' \\n'", "none"],
            "truncate": ["", "5", "5, true", "6, false, '..'", "4, true, '', 0", "7, end='…'"],
            "unique": ["", "true", "attribute='role'"],
            "wordwrap": ["", "5", "4, false", "7, wrapstring='/'"],
            "attr": ["'a'", "'upper'", "'keys'"],
            "filesizeformat": ["", "true"],
        }.get(name)
        given = self.random.choice(args) if args and self.chance(0.95) else ""
        if self.chance(0.02):
            given = self.expression(1)
        whole = f"{name}({given})" if given else name
        if name in ("map", "select", "reject", "selectattr", "rejectattr", "batch", "slice", "unique", "items", "reverse") and self.chance(0.85):
            whole += "|" + self.random.choice(LISTING)
        return whole

    def test(self, depth):
        if self.chance(0.7):
            return self.random.choice(TESTS)
        name = self.random.choice(BINARY_TESTS)
        arg = self.one("1", "2", "'a'", "l", "none", "s", "'abc'", "n")
        return f"{name}({arg})" if self.chance(0.6) else f"{name} {arg}"

    def formats(self):
        values = self.one("1", "'a'", "(1, 2)", "('a', 1)", "1.5", "d", "[1]", "-3", "(2.5, 'x')", "none", "65")
        if self.chance(0.5):
            count = self.one(1, 1, 2)
            text = " ".join(self.random.choice(FORMATS) for _ in range(count))
            return f"({text!r} % {values})"
        text = " ".join(self.random.choice(BRACES) for _ in range(self.one(1, 1, 2)))
        return f"{text!r}.format({self.one('1', chr(39) + 'a' + chr(39), '1, 2', 'a=3', '1.5, 2', 'd', 'none', '-12345.678', '255', 'true')})"

    def macro_call(self, depth):
        name = self.random.choice(self.macros)
        args = self.one("", self.expression(depth), f"{self.expression(depth)}, {self.expression(0)}", "1", "a=2", "b='q'", "1, 2, 3", "1, b=3")
        return f"{name}({args})"

    # Statements

    def open(self):
        return self.one("{%", "{%", "{%", "{%-", "{%-", "{%+")

    def close(self):
        return self.one("%}", "%}", "%}", "-%}", "-%}", "+%}")

    def tag(self, text):
        return f"{self.open()} {text} {self.close()}"

    def data(self):
        return self.one("", "", "\n", "a", " b ", "\n  ", "  \n", "x\n\ny", "<|im_start|>", "\t", "é\r\n", "{", "}", "\n\n", "  z")

    def output(self, depth):
        start = self.one("{{", "{{", "{{", "{{-")
        end = self.one("}}", "}}", "}}", "-}}")
        return f"{start} {self.expression(depth)} {end}"

    def target(self):
        return self.one("a", "b", "c", "x", "y", "s", "n", "ns.a", "ns.b", "ns.n", "a, b", "messages", "l")

    def statements(self, depth, in_loop):
        return self.data() + "".join(
            self.statement(depth, in_loop) + self.data() for _ in range(self.random.randint(1, 3))
        )

    def statement(self, depth, in_loop):
        kind = self.random.random()
        if depth <= 0 or kind < 0.42:
            return self.output(self.one(1, 2, 2, 3))
        if kind < 0.55:
            return self.tag(f"set {self.target()} = {self.expression(2)}")
        if kind < 0.6:
            filters = f" | {self.filter(1)}" if self.chance(0.3) else ""
            return self.tag(f"set {self.one('a', 'b', 's', 'ns.a')}{filters}") + self.statements(depth - 1, in_loop) + self.tag("endset")
        if kind < 0.72:
            whole = self.tag(f"if {self.expression(2)}") + self.statements(depth - 1, in_loop)
            if self.chance(0.3):
                whole += self.tag(f"elif {self.expression(2)}") + self.statements(depth - 1, in_loop)
            if self.chance(0.4):
                whole += self.tag("else") + self.statements(depth - 1, in_loop)
            return whole + self.tag("endif")
        if kind < 0.85:
            return self.loop(depth, in_loop)
        if kind < 0.88:
            name = f"f{len(self.macros)}"
            params = self.one("", "a", "a, b=2", "a, b", "a=1, b='x'", "x, y=x")
            body = self.statements(depth - 1, False)
            if self.chance(0.3):
                body += "{{ caller() }}" if self.chance(0.5) else "{{ varargs }}{{ kwargs }}"
            self.macros.append(name)
            return self.tag(f"macro {name}({params})") + body + self.tag("endmacro")
        if kind < 0.9 and self.macros:
            return self.tag(f"call {self.macro_call(1)}") + self.statements(depth - 1, False) + self.tag("endcall")
        if kind < 0.92:
            return self.tag(f"filter {self.filter(1)}") + self.statements(depth - 1, in_loop) + self.tag("endfilter")
        if kind < 0.94:
            return self.tag(f"with {self.one('a = 1', 'x = n, y = x', 'a = s', '')}") + self.statements(depth - 1, in_loop) + self.tag("endwith")
        if kind < 0.96:
            return self.tag("generation") + self.statements(depth - 1, False) + self.tag("endgeneration")
        if kind < 0.97:
            return self.one("{# note #}", "{#- note -#}", "{%raw%}{{ x }}{% endraw %}", "{%- raw -%} {% if %} {%- endraw -%}", "\n  {# x #}\n")
        if in_loop:
            return self.tag(self.one("break", "continue", "continue"))
        return self.tag(f"set ns.{self.one('a', 'b')} = ns.{self.one('a', 'b', 'n')} + 1")

    def loop(self, depth, in_loop):
        target = self.one("m", "x", "i", "a", "k, v", "k, v", "x")
        source = self.one("messages", "l", "d.items()", "s", "range(3)", "tools", "d", self.sequence(2), self.sequence(2), "messages[1:]", "d|items", "l2")
        test = f" if {self.expression(2)}" if self.chance(0.2) else ""
        recursive = " recursive" if self.chance(0.05) else ""
        body = self.statements(depth - 1, True)
        if recursive and self.chance(0.7):
            body += "{% if loop.depth < 3 %}{{ loop(" + self.one("l", "[1, 2]", "m") + ") }}{% endif %}"
        whole = self.tag(f"for {target} in {source}{test}{recursive}") + body
        if self.chance(0.2):
            whole += self.tag("else") + self.statements(depth - 1, in_loop)
        return whole + self.tag("endfor")

    def pieces(self):
        """Statements of which a template is put together."""
        if self.chance(0.8):
            yield "{% set ns = namespace(a=1, b='x', n=0) %}"
        for _ in range(self.random.randint(1, 8)):
            yield self.data() + self.statement(self.one(0, 1, 1, 2, 3), False)

    def spoiled(self, template):
        """With a letter too many, too few or changed."""
        at = self.random.randint(0, len(template))
        letter = self.one("{", "}", "%}", "{{", "'", "(", "|", " ", "", "\\")
        return template[:at] + letter + template[at + self.one(0, 1, 2) :]

    def given(self):
        messages = []
        for _ in range(self.random.randint(0, 4)):
            message = {"role": self.one("user", "assistant", "system", "tool")}
            message["content"] = self.one(*STRINGS, None, [{"type": "text", "text": "p"}])
            if self.chance(0.2):
                message["tool_calls"] = [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]
            messages.append(message)
        return {
            "messages": messages,
            "tools": self.one(None, [], [{"name": "f", "parameters": {"type": "object", "n": 2.5}}]),
            "d": self.one({"a": 1, "b": "x"}, {}, {"b": [1, 2], "a": {"b": None}, "items": 3}, {"a": "y", "B": "z", "c": 1.5}),
            "l": self.one([3, 1, 2], [], ["b", "a", "C"], [1, "a", None, 2.5], [[1, 2], [3]], ["a😀", "é", "zz"]),
            "l2": self.one([["a", 1], ["b", 2]], [{"a": 1}, {"a": 2, "n": 3}], [0, "", None, "q"]),
            "s": self.random.choice(STRINGS),
            "t": self.random.choice(STRINGS),
            "n": self.one(0, 1, 2, 3, -4, 7),
            "f": self.one(0.5, -2.5, 3.25, 1e-9),
            "big": 2**52 + 1,
        }


class Late(Exception):
    pass


def late(*_):
    raise Late


def outcome(made, template, given):
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        return {"text": made.from_string(template).render(**given)}
    except Late:
        return None
    except Exception as error:  # Each kind of refusal is a result.
        return {"error": refusal(error), "message": str(error)[:200]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def put_together(made, writer, given):
    """Mostly statements that render, so that one mistake does not hide what follows it."""
    template, result = "", {"text": ""}
    for piece in writer.pieces():
        longer = outcome(made, template + piece, given)
        if longer is not None and ("text" in longer or writer.chance(0.04)):
            template, result = template + piece, longer
        if "error" in result:
            break
    if writer.chance(0.03):
        template = writer.spoiled(template)
        result = outcome(made, template, given)
    return template, result


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    made = environment()
    for number in range(count):
        writer = Writer(f"{seed}/{number}")
        given = writer.given()
        template, result = put_together(made, writer, given)
        # What prints an address has no one result.
        if result is None or ADDRESS.search(result.get("text", "")):
            continue
        if len(result.get("text", "")) > 200_000:
            continue
        print(json.dumps({"number": number, "template": template, "given": given, **result}))


main()
