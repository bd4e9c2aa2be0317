// Cuts a template into tokens, as jinja2 does with trim_blocks and lstrip_blocks.
import { required } from '../../runtime/required.js';
import { syntaxError } from './fault.js';
import { codeEscape } from './print.js';
import { SPACES } from './unicode.js';
import { Float, normalized, type Value } from './values.js';

export type TokenType =
  | 'data'
  | 'variable_begin'
  | 'variable_end'
  | 'block_begin'
  | 'block_end'
  | 'name'
  | 'string'
  | 'number'
  | 'operator'
  | 'eof';

export interface Token {
  readonly type: TokenType;
  /** The text of the token; for a string literal, its value. */
  readonly value: string;
  readonly line: number;
  /** Value of a number token. */
  readonly number?: Value;
}

const BLANKS = new RegExp(`[${SPACES}]+`, 'y');
const FLOAT = /(?<!\.)(?:\d+_)*\d+(?:(?:\.(?:\d+_)*\d+)?e[+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)/iy;
const INTEGER = /0b(?:_?[01])+|0o(?:_?[0-7])+|0x(?:_?[\da-f])+|[1-9](?:_?\d)*|0(?:_?0)*/iy;
const NAME = /[\p{L}\p{M}\p{N}\p{Pc}\u00b7\u0387]+/uy;
const IDENTIFIER = /^[\p{XID_Start}_]\p{XID_Continue}*$/u;
const STRING = /'(?:[^'\\]|\\[\s\S])*'|"(?:[^"\\]|\\[\s\S])*"/y;
const OPERATOR = /\/\/|\*\*|==|!=|>=|<=|[-+/*%~[\](){}><=.:|,;]/y;

const RAW = new RegExp(`\\{%([-+]?)[${SPACES}]*raw[${SPACES}]*(?:-%\\}[${SPACES}]*|%\\})`, 'y');
const RAW_END = new RegExp(
  `\\{%([-+]?)[${SPACES}]*endraw[${SPACES}]*(?:\\+%\\}|-%\\}[${SPACES}]*|%\\}\\n?)`,
  'g',
);
const COMMENT_END = new RegExp(`\\+#\\}|-#\\}[${SPACES}]*|#\\}\\n?`, 'g');
const BLOCK_END = new RegExp(`\\+%\\}|-%\\}[${SPACES}]*|%\\}\\n?`, 'y');
const VARIABLE_END = new RegExp(`-\\}\\}[${SPACES}]*|\\}\\}`, 'y');
const TAG = /\{[{%#]/g;
const LAST_BLANKS = new RegExp(`^[${SPACES}]+$`);

const CLOSING: Readonly<Record<string, string>> = { '{': '}', '(': ')', '[': ']' };

/** Throws TemplateSyntaxError. */
export function tokensOf(template: string): Token[] {
  const source = template.replace(/\r\n?/g, '\n').replace(/\n$/, '');
  return new Lexer(source).run();
}

class Lexer {
  private readonly tokens: Token[] = [];
  private at = 0;
  private line = 1;
  /** The position up to which `line` counts newlines. */
  private counted = 0;
  /** Whether the last token ended a line. */
  private startsLine = true;

  constructor(private readonly source: string) {}

  run(): Token[] {
    while (this.at < this.source.length) this.root();
    this.push('eof', '');
    return this.tokens;
  }

  /** Text up to the next tag, and the tag. */
  private root(): void {
    const { source } = this;
    TAG.lastIndex = this.at;
    const tag = TAG.exec(source);
    if (tag === null) {
      this.data(source.slice(this.at));
      this.at = source.length;
      return;
    }
    const text = source.slice(this.at, tag.index);
    RAW.lastIndex = tag.index;
    const raw = RAW.exec(source);
    const mark = raw ? required(raw[1]) : (/[-+]/.exec(source[tag.index + 2] ?? '')?.[0] ?? '');
    const isVariable = tag[0] === '{{';
    this.data(trimmedBefore(text, mark, isVariable, this.startsLine));
    this.at = tag.index;
    this.advance(raw ? raw[0].length : 2 + mark.length);
    if (raw) this.raw();
    else if (tag[0] === '{#') this.comment();
    else this.code(isVariable ? 'variable' : 'block');
  }

  private raw(): void {
    RAW_END.lastIndex = this.at;
    const end = RAW_END.exec(this.source);
    if (end === null) throw syntaxError('Missing end of raw directive', this.lineAt(this.at));
    const text = this.source.slice(this.at, end.index);
    this.data(trimmedBefore(text, required(end[1]), false, this.startsLine));
    this.at = end.index;
    this.advance(end[0].length);
  }

  private comment(): void {
    COMMENT_END.lastIndex = this.at;
    const end = COMMENT_END.exec(this.source);
    if (end === null) throw syntaxError('Missing end of comment tag', this.lineAt(this.at));
    this.advance(end.index + end[0].length - this.at);
  }

  /** Moves on, and notes whether a line has ended. */
  private advance(length: number): void {
    this.at += length;
    this.startsLine = this.source[this.at - 1] === '\n';
  }

  private code(kind: 'variable' | 'block'): void {
    this.push(`${kind}_begin`, '');
    const open: string[] = [];
    const end = kind === 'variable' ? VARIABLE_END : BLOCK_END;
    while (this.at < this.source.length) {
      const closing = open.length === 0 ? this.match(end) : null;
      if (closing !== null) {
        this.push(`${kind}_end`, '');
        this.advance(closing.length);
        return;
      }
      this.expressionToken(open);
    }
  }

  private expressionToken(open: string[]): void {
    const blanks = this.match(BLANKS);
    if (blanks !== null) {
      this.advance(blanks.length);
      return;
    }
    const float = this.match(FLOAT);
    const integer = float === null ? this.match(INTEGER) : null;
    const digits = float ?? integer;
    if (digits !== null) {
      const plain = digits.replaceAll('_', '');
      const number = float === null ? normalized(BigInt(plain)) : new Float(Number(plain));
      this.push('number', digits, number);
      this.advance(digits.length);
      return;
    }
    const text = this.match(NAME) ?? this.match(STRING) ?? this.match(OPERATOR);
    if (text === null) {
      const letter = String.fromCodePoint(required(this.source.codePointAt(this.at)));
      throw syntaxError(`unexpected char '${letter}'`, this.lineAt(this.at));
    }
    this.pushText(text, open);
    this.advance(text.length);
  }

  private pushText(text: string, open: string[]): void {
    const [first] = text as unknown as [string];
    if (first === '"' || first === "'") {
      this.push('string', unescapeText(text.slice(1, -1), this.lineAt(this.at)));
    } else if (/[\p{L}\p{M}\p{N}\p{Pc}\u00b7\u0387]/u.test(text)) {
      if (!IDENTIFIER.test(text)) {
        throw syntaxError('Invalid character in identifier', this.lineAt(this.at));
      }
      this.push('name', text);
    } else {
      this.balance(text, open);
      this.push('operator', text);
    }
  }

  /** Brackets belong together. */
  private balance(operator: string, open: string[]): void {
    const closing = CLOSING[operator];
    if (closing !== undefined) open.push(closing);
    if (operator !== '}' && operator !== ')' && operator !== ']') return;
    const expected = open.pop();
    if (expected === operator) return;
    const hint = expected === undefined ? '' : `, expected '${expected}'`;
    throw syntaxError(`unexpected '${operator}'${hint}`, this.lineAt(this.at));
  }

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    return pattern.exec(this.source)?.[0] ?? null;
  }

  private data(text: string): void {
    if (text !== '') this.push('data', text);
  }

  private push(type: TokenType, value: string, number?: Value): void {
    this.tokens.push({
      type,
      value,
      line: this.lineAt(this.at),
      ...(number !== undefined && { number }),
    });
  }

  private lineAt(at: number): number {
    for (; this.counted < at; ++this.counted) if (this.source[this.counted] === '\n') this.line++;
    return this.line;
  }
}

/** The text before a tag: "-" strips its blanks, a block tag the indent of its own line. */
function trimmedBefore(
  text: string,
  mark: string,
  isVariable: boolean,
  startsLine: boolean,
): string {
  if (mark === '-') return text.replace(TRAILING, '');
  if (mark === '+' || isVariable) return text;
  const start = text.lastIndexOf('\n') + 1;
  if (start === 0 && !startsLine) return text;
  return LAST_BLANKS.test(text.slice(start)) ? text.slice(0, start) : text;
}

const TRAILING = new RegExp(`(?<![${SPACES}])[${SPACES}]+$`);

const SIMPLE: Readonly<Record<string, string>> = {
  '\\': '\\',
  "'": "'",
  '"': '"',
  '\n': '',
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
const ESCAPE = /\\(?:([0-7]{1,3})|(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})|[\s\S])/g;

/** The value of a string literal, by Python's codec "unicode-escape". */
function unescapeText(text: string, line: number): string {
  if (!text.includes('\\')) return text;
  // The codec reads ASCII: other letters are escapes to it as well.
  const ascii = text.replace(/[\x80-\u{10ffff}]/gu, codeEscape);
  return ascii.replace(ESCAPE, (whole: string, octal?: string, hex?: string) => {
    if (octal !== undefined) return String.fromCharCode(Number.parseInt(octal, 8));
    if (hex !== undefined) {
      const code = Number.parseInt(hex.slice(1), 16);
      if (code > 0x10ffff) throw syntaxError('illegal Unicode character', line);
      return String.fromCodePoint(code);
    }
    const letter = whole.slice(1);
    if ('xuUN'.includes(letter)) throw syntaxError(`truncated or unknown \\${letter} escape`, line);
    return SIMPLE[letter] ?? whole;
  });
}
