// A reader of Hjson, the superset of JSON that DeepSpeed reads, which keeps the place of every key.
// Grammar: https://hjson.github.io/syntax.html

/** A value and where it starts; an object keeps its members in order, duplicates included. */
export type HjsonNode =
  | { readonly kind: 'object'; readonly offset: number; readonly members: readonly Member[] }
  | { readonly kind: 'array'; readonly offset: number; readonly items: readonly HjsonNode[] }
  | {
      readonly kind: 'scalar';
      readonly offset: number;
      readonly value: string | number | boolean | null;
      /** A string without quotes: it runs to the end of its line. */
      readonly unquoted: boolean;
    };

export interface Member {
  readonly key: string;
  /** Of the key. */
  readonly offset: number;
  readonly value: HjsonNode;
}

/** What does not parse: its offset, what should stand there and what does. */
export class HjsonError extends Error {
  constructor(
    readonly offset: number,
    readonly expected: string,
    readonly got: string,
  ) {
    super(`expected ${expected}, got ${got}`);
  }
}

const MAX_DEPTH = 100;
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const ESCAPES: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' };
const WORDS = new Map<string, boolean | null>([
  ['true', true],
  ['false', false],
  ['null', null],
]);

/**
 * Parses `text`: JSON, and beside it comments (`#`, `//`, slash-star), trailing and omitted commas,
 * keys and strings without quotes, single quotes, three quotes around several lines, and an object
 * without its outer braces. Returns null for an empty text. Throws HjsonError.
 */
export function parseHjson(text: string): HjsonNode | null {
  return new Reader(text).document();
}

class Reader {
  private at = 0;
  private depth = 0;

  constructor(private readonly text: string) {}

  document(): HjsonNode | null {
    this.skipBlank();
    if (this.at === this.text.length) return null;
    const braced = '{['.includes(this.char());
    const root = braced ? this.value() : this.object(this.at, '');
    this.skipBlank();
    if (this.at < this.text.length) throw this.unexpected('nothing after the end');
    return root;
  }

  private value(): HjsonNode {
    this.skipBlank();
    const offset = this.at;
    if (++this.depth > MAX_DEPTH) {
      throw new HjsonError(offset, `at most ${MAX_DEPTH} levels of nesting`, 'more');
    }
    const node = this.valueAt(offset);
    --this.depth;
    return node;
  }

  private valueAt(offset: number): HjsonNode {
    switch (this.char()) {
      case '{':
        ++this.at;
        return this.object(offset, '}');
      case '[':
        ++this.at;
        return this.array(offset);
      case '"':
      case "'":
        return { kind: 'scalar', offset, value: this.string(), unquoted: false };
      default:
        return this.word(offset);
    }
  }

  /** Members up to `end`, which is "" for an object without braces. */
  private object(offset: number, end: string): HjsonNode {
    const members: Member[] = [];
    for (this.skipBlank(); this.char() !== end; this.endOfEntry()) {
      const place = this.at;
      const key = this.key(end);
      this.skipBlank();
      if (this.char() !== ':') throw this.unexpected(`":" after the key "${key}"`);
      ++this.at;
      members.push({ key, offset: place, value: this.value() });
    }
    this.at += end.length;
    return { kind: 'object', offset, members };
  }

  private array(offset: number): HjsonNode {
    const items: HjsonNode[] = [];
    for (this.skipBlank(); this.char() !== ']'; this.endOfEntry()) items.push(this.value());
    ++this.at;
    return { kind: 'array', offset, items };
  }

  /** Commas between entries and after the last one are optional. */
  private endOfEntry(): void {
    this.skipBlank();
    if (this.char() !== ',') return;
    ++this.at;
    this.skipBlank();
  }

  private key(end: string): string {
    if (this.char() === '"' || this.char() === "'") return this.quoted();
    const name = /[^\s{}[\],:]+/y;
    name.lastIndex = this.at;
    const found = name.exec(this.text)?.[0];
    if (!found) throw this.unexpected(end ? `a key or "${end}"` : 'a key');
    this.at += found.length;
    return found;
  }

  /** A number, true, false or null if that is all up to a separator; else the line as a string. */
  private word(offset: number): HjsonNode {
    if ('{}[],:'.includes(this.char())) throw this.unexpected('a value');
    const newline = this.text.slice(offset).search(/[\r\n]/);
    const line = newline < 0 ? this.text.slice(offset) : this.text.slice(offset, offset + newline);
    const token = /^[^,}\]#/]*(\/(?![/*])[^,}\]#/]*)*/.exec(line)?.[0] ?? '';
    const plain = token.trim();
    const known = WORDS.get(plain);
    if (known !== undefined || (NUMBER.test(plain) && Number.isFinite(Number(plain)))) {
      this.at = offset + token.length;
      const value = known === undefined ? Number(plain) : known;
      return { kind: 'scalar', offset, value, unquoted: false };
    }
    this.at = offset + line.length;
    return { kind: 'scalar', offset, value: line.trim(), unquoted: true };
  }

  private string(): string {
    return this.text.startsWith("'''", this.at) ? this.lines() : this.quoted();
  }

  private quoted(): string {
    const quote = this.char();
    const start = this.at;
    let out = '';
    for (++this.at; this.char() !== quote; ++this.at) {
      const char = this.char();
      if (char === '' || char === '\n' || char === '\r') {
        throw new HjsonError(start, `a closing ${quote} on the same line`, this.shown());
      }
      out += char === '\\' ? this.escape() : char;
    }
    ++this.at;
    return out;
  }

  /** Stands on the backslash; leaves off on the last character of the escape. */
  private escape(): string {
    const char = this.text[++this.at] ?? '';
    if (char === 'u') {
      const digits = /[\da-fA-F]{4}/y;
      digits.lastIndex = this.at + 1;
      const code = digits.exec(this.text)?.[0];
      if (!code) throw this.unexpected('four hexadecimal digits after \\u');
      this.at += 4;
      return String.fromCharCode(Number.parseInt(code, 16));
    }
    if (char !== '' && '"\'\\/'.includes(char)) return char;
    const escaped = ESCAPES[char];
    if (escaped === undefined) throw this.unexpected('an escape such as \\n');
    return escaped;
  }

  /** ''' ... ''': loses the indentation of its opening quotes, and the last line break. */
  private lines(): string {
    const start = this.at;
    const indent = start - (this.text.lastIndexOf('\n', start) + 1);
    const end = this.text.indexOf("'''", start + 3);
    if (end < 0) throw new HjsonError(start, "a closing '''", 'the end of the file');
    this.at = end + 3;
    const body = this.text.slice(start + 3, end).replaceAll('\r', '');
    const [first = '', ...rest] = body.split('\n');
    const margin = new RegExp(`^[ \\t]{0,${indent}}`);
    const kept = rest.map((line) => line.replace(margin, ''));
    if (kept.at(-1) === '' && (kept.length > 1 || first.trim() !== '')) kept.pop();
    return (first.trim() === '' && rest.length > 0 ? kept : [first.trimStart(), ...kept]).join(
      '\n',
    );
  }

  private skipBlank(): void {
    const blank = /(?:\s|#[^\n]*|\/\/[^\n]*|\/\*[\s\S]*?\*\/)*/y;
    blank.lastIndex = this.at;
    blank.exec(this.text);
    this.at = blank.lastIndex;
    if (this.text.startsWith('/*', this.at)) {
      throw new HjsonError(this.at, 'a closing */', 'the end of the file');
    }
  }

  /** "" at the end. */
  private char(): string {
    return this.text.charAt(this.at);
  }

  private unexpected(expected: string): HjsonError {
    return new HjsonError(this.at, expected, this.shown());
  }

  private shown(): string {
    const char = this.char();
    if (char === '') return 'the end of the file';
    return char === '\n' || char === '\r' ? 'the end of the line' : `"${char}"`;
  }
}
