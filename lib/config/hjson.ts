// A parser of Hjson, the superset of JSON that DeepSpeed reads. It returns the location of every
// key. Grammar: https://hjson.github.io/syntax.html
import { shorten } from './config-error.js';
import { TextLines } from './text-lines.js';

/** A value and its offset; an object has its members in order, with duplicates. */
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
  /** Offset of the key. */
  readonly offset: number;
  readonly value: HjsonNode;
}

/** Likely mistakes in a valid text, with their offsets. */
export interface LikelyMistakes {
  /** Comments after a value that contain further keys of the line. */
  readonly commentsWithKeys: readonly number[];
  /** Keys whose entry has no comma before a following quoted key. */
  readonly withoutComma: readonly { readonly key: string; readonly offset: number }[];
}

/** A syntax error: its offset, the expected syntax and the actual one. */
export class HjsonError extends Error {
  constructor(
    readonly offset: number,
    readonly expected: string,
    readonly got: string,
    readonly hint = '',
  ) {
    super(`expected ${expected}, got ${got}`);
  }
}

/** Maximum nesting of objects and arrays. */
export const MAX_DEPTH = 100;

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const ESCAPES: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' };
const WORDS = new Map<string, boolean | null>([
  ['true', true],
  ['false', false],
  ['null', null],
]);

/** Python's words for true, false and null. */
const OF_PYTHON: Partial<Record<string, string>> = { True: 'true', False: 'false', None: 'null' };

/** Returns the hint for `text`, a string without quotes. */
export function quotingHint(text: string): string {
  const [, value] = /^(-?\d[\w.+-]*|true|false|null)\s+["']/.exec(text) ?? [];
  if (value !== undefined) return `Write a comma after ${value}.`;
  const [, word = ''] = /^(\w+)\s*(?:[,}\]]|$)/.exec(text) ?? [];
  const instead = OF_PYTHON[word];
  const cure = instead ? `write ${instead}` : 'quote it';
  return `Without quotes a string runs to the end of its line: ${cure}.`;
}

/**
 * Parses JSON and Hjson. Hjson adds comments (`#`, `//`, slash-star), trailing and omitted commas,
 * and keys and strings without quotes. It also has single quotes, triple quotes around several
 * lines, and an object without outer braces. Returns null for an empty text. Reads every character
 * a bounded number of times. Throws HjsonError for invalid syntax.
 */
export function parseHjson(text: string): HjsonNode | null {
  return readHjson(text).root;
}

/** Parses as parseHjson() does; also returns likely mistakes. */
export function readHjson(text: string): { root: HjsonNode | null; mistakes: LikelyMistakes } {
  const reader = new Reader(text);
  return { root: reader.document(), mistakes: reader };
}

/** Number of characters of a comment that are searched for keys. */
const SEARCHED = 4096;

/**
 * Returns whether a comment contains JSON: several quoted keys, or one quoted key and the end of a
 * value.
 */
function holdsKeys(comment: string): boolean {
  const keys = comment.slice(0, SEARCHED).match(/"[\w.]+"\s*:/g)?.length ?? 0;
  return keys > 1 || (keys === 1 && ',}]'.includes(comment.trimEnd().at(-1) ?? ' '));
}

class Reader implements LikelyMistakes {
  readonly commentsWithKeys: number[] = [];
  readonly withoutComma: { key: string; offset: number }[] = [];
  private at = 0;
  private depth = 0;
  /** The last string without quotes that contains a closing bracket without its opening bracket. */
  private runaway: { offset: number; text: string } | null = null;
  private readonly textLines: TextLines;

  constructor(private readonly text: string) {
    this.textLines = new TextLines(text);
  }

  document(): HjsonNode | null {
    this.skipBlank();
    if (this.at === this.text.length) return null;
    const braced = '{['.includes(this.char());
    const root = braced ? this.value() : this.object(this.at, '');
    this.skipBlank();
    if (this.at < this.text.length) throw this.unexpectedError('nothing after the end');
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
    for (this.skipBlank(); this.char() !== end; this.endOfMember(members)) {
      const at = this.at;
      const key = this.key(end);
      this.skipBlank();
      if (this.char() !== ':') throw this.unexpectedError(`":" after the key "${shorten(key)}"`);
      ++this.at;
      members.push({ key, offset: at, value: this.value() });
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

  private endOfMember(members: readonly Member[]): void {
    const hasComma = this.endOfEntry();
    const last = members.at(-1);
    if (!hasComma && last && this.char() === '"') {
      this.withoutComma.push({ key: last.key, offset: last.offset });
    }
  }

  /** Skips an optional comma after an entry; returns whether there is one. */
  private endOfEntry(): boolean {
    this.skipBlank();
    if (this.char() !== ',') return false;
    ++this.at;
    this.skipBlank();
    return true;
  }

  private key(end: string): string {
    if (this.char() === '"' || this.char() === "'") return this.readQuoted();
    const text = this.match(/[^\s{}[\],:]+/y);
    if (!text) throw this.unexpectedError(end ? `a key or "${end}"` : 'a key');
    return text;
  }

  /** Returns the number, true, false or null up to a separator; else the line as a string. */
  private word(offset: number): HjsonNode {
    if ('{}[],:'.includes(this.char())) throw this.unexpectedError('a value');
    const token = this.token();
    const plain = token.trim();
    const known = WORDS.get(plain);
    if (known !== undefined || (NUMBER.test(plain) && Number.isFinite(Number(plain)))) {
      const value = known === undefined ? Number(plain) : known;
      return { kind: 'scalar', offset, value, unquoted: false };
    }
    const text = (token + this.match(/[^\r\n]*/y)).trim();
    const opened = text.replace(/\{[^{}]*\}|\[[^[\]]*\]/g, '');
    if (/[}\]]/.test(opened)) this.runaway = { offset, text };
    return { kind: 'scalar', offset, value: text, unquoted: true };
  }

  /** Reads the text up to a separator, a comment or the end of the line. */
  private token(): string {
    const start = this.at;
    this.match(/[^,}\]#/\r\n]*/y);
    while (this.char() === '/' && !'/*'.includes(this.text[this.at + 1] ?? '-')) {
      this.match(/\/[^,}\]#/\r\n]*/y);
    }
    return this.text.slice(start, this.at);
  }

  private string(): string {
    return this.text.startsWith("'''", this.at) ? this.lines() : this.readQuoted();
  }

  private readQuoted(): string {
    const quote = this.char();
    const start = this.at;
    const parts: string[] = [];
    for (++this.at; ; ++this.at) {
      parts.push(this.match(quote === '"' ? /[^"\\\r\n]*/y : /[^'\\\r\n]*/y));
      const char = this.char();
      if (char === quote) break;
      if (char !== '\\') {
        throw new HjsonError(start, `a closing ${quote} on the same line`, this.describeChar());
      }
      parts.push(this.escape());
    }
    ++this.at;
    return parts.join('');
  }

  /** Reads an escape. The position is its backslash before, and its last character afterwards. */
  private escape(): string {
    const char = this.text[++this.at] ?? '';
    if (char === 'u') {
      const code = this.text.slice(this.at + 1, this.at + 5);
      if (!/^[\da-fA-F]{4}$/.test(code)) {
        throw this.unexpectedError('four hexadecimal digits after \\u');
      }
      this.at += 4;
      return String.fromCharCode(Number.parseInt(code, 16));
    }
    if (char !== '' && '"\'\\/'.includes(char)) return char;
    const escaped = ESCAPES[char];
    if (escaped === undefined) throw this.unexpectedError('an escape such as \\n');
    return escaped;
  }

  /** Reads ''' ... ''', without the indentation of its opening quotes and the last line break. */
  private lines(): string {
    const start = this.at;
    const indent = this.textLines.at(start).column - 1;
    const end = this.text.indexOf("'''", start + 3);
    if (end < 0) throw new HjsonError(start, "a closing '''", 'the end of the file');
    this.at = end + 3;
    const body = this.text.slice(start + 3, end).replaceAll('\r', '');
    const [first = '', ...rest] = body.split('\n');
    const kept = rest.map((line) => line.slice(Math.min(indent, line.search(/[^ \t]|$/))));
    if (kept.at(-1) === '' && (kept.length > 1 || first.trim() !== '')) kept.pop();
    return (first.trim() === '' && rest.length > 0 ? kept : [first.trimStart(), ...kept]).join(
      '\n',
    );
  }

  private skipBlank(): void {
    for (;;) {
      this.match(/\s*/y);
      if (this.char() === '#' || this.text.startsWith('//', this.at)) this.skipLine();
      else if (this.text.startsWith('/*', this.at)) this.skipBlock();
      else return;
    }
  }

  private skipLine(): void {
    const start = this.at;
    const comment = this.match(/[^\n]*/y);
    const { column } = this.textLines.at(start);
    const before = this.text.slice(start - column + 1, start).trim();
    if (before !== '' && holdsKeys(comment)) this.commentsWithKeys.push(start);
  }

  private skipBlock(): void {
    const end = this.text.indexOf('*/', this.at + 2);
    if (end < 0) throw new HjsonError(this.at, 'a closing */', 'the end of the file');
    this.at = end + 2;
  }

  /** Returns and skips the match of the sticky `pattern`; "" without a match. */
  private match(pattern: RegExp): string {
    pattern.lastIndex = this.at;
    const matched = pattern.exec(this.text)?.[0] ?? '';
    this.at += matched.length;
    return matched;
  }

  /** Returns the present character; "" at the end. */
  private char(): string {
    return this.text.charAt(this.at);
  }

  private unexpectedError(expected: string): HjsonError {
    const [comment] = this.commentsWithKeys;
    if (comment !== undefined && this.char() === '') {
      const { line, column } = this.textLines.at(comment);
      const hint = `The comment at ${line}:${column} holds the rest of its line, with keys. Break the line after the comment.`;
      return new HjsonError(this.at, expected, this.describeChar(), hint);
    }
    if (this.runaway && '{}[]'.includes(this.char())) {
      const { offset, text } = this.runaway;
      const wanted = 'a string without brackets, or quotes around it';
      return new HjsonError(offset, wanted, `"${shorten(text)}"`, quotingHint(text));
    }
    return new HjsonError(this.at, expected, this.describeChar());
  }

  private describeChar(): string {
    const char = this.char();
    if (char === '') return 'the end of the file';
    return char === '\n' || char === '\r' ? 'the end of the line' : `"${char}"`;
  }
}
