// Splits a template into tokens, as jinja2 does with trim_blocks and lstrip_blocks.
import { required } from '../../runtime/required.js';
import { syntaxError } from './fault.js';
import { escapeCode } from './print.js';
import { SPACES } from './unicode.js';
import { Float, normalizeInteger, type Value } from './values.js';

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
  /** Text of the token. For a string literal, its value. */
  readonly value: string;
  readonly line: number;
  /** Value of a number literal. */
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

/** Returns the tokens of a template. Throws TemplateSyntaxError. */
export function tokenize(template: string): Token[] {
  const source = template.replace(/\r\n?/g, '\n').replace(/\n$/, '');
  return new Lexer(source).run();
}

class Lexer {
  private readonly tokens: Token[] = [];
  private position = 0;
  private line = 1;
  /** Position up to which `line` counts newlines. */
  private countedTo = 0;
  /** Whether the last token ended a line. */
  private startsLine = true;

  constructor(private readonly source: string) {}

  run(): Token[] {
    while (this.position < this.source.length) this.readText();
    this.push('eof', '');
    return this.tokens;
  }

  /** Reads text up to the next tag, and the start of the tag. */
  private readText(): void {
    const { source } = this;
    TAG.lastIndex = this.position;
    const tag = TAG.exec(source);
    if (tag === null) {
      this.pushData(source.slice(this.position));
      this.position = source.length;
      return;
    }
    const text = source.slice(this.position, tag.index);
    RAW.lastIndex = tag.index;
    const raw = RAW.exec(source);
    const mark = raw ? required(raw[1]) : (/[-+]/.exec(source[tag.index + 2] ?? '')?.[0] ?? '');
    const isVariable = tag[0] === '{{';
    this.pushData(trimBeforeTag(text, mark, isVariable, this.startsLine));
    this.position = tag.index;
    this.advance(raw ? raw[0].length : 2 + mark.length);
    if (raw) this.readRaw();
    else if (tag[0] === '{#') this.skipComment();
    else this.readCode(isVariable ? 'variable' : 'block');
  }

  private readRaw(): void {
    RAW_END.lastIndex = this.position;
    const end = RAW_END.exec(this.source);
    if (end === null)
      throw syntaxError('Missing end of raw directive', this.advanceLine(this.position));
    const text = this.source.slice(this.position, end.index);
    this.pushData(trimBeforeTag(text, required(end[1]), false, this.startsLine));
    this.position = end.index;
    this.advance(end[0].length);
  }

  private skipComment(): void {
    COMMENT_END.lastIndex = this.position;
    const end = COMMENT_END.exec(this.source);
    if (end === null)
      throw syntaxError('Missing end of comment tag', this.advanceLine(this.position));
    this.advance(end.index + end[0].length - this.position);
  }

  /** Advances the position, and records whether a line has ended. */
  private advance(length: number): void {
    this.position += length;
    this.startsLine = this.source[this.position - 1] === '\n';
  }

  private readCode(kind: 'variable' | 'block'): void {
    this.push(`${kind}_begin`, '');
    const open: string[] = [];
    const end = kind === 'variable' ? VARIABLE_END : BLOCK_END;
    while (this.position < this.source.length) {
      const closing = open.length === 0 ? this.match(end) : null;
      if (closing !== null) {
        this.push(`${kind}_end`, '');
        this.advance(closing.length);
        return;
      }
      this.readExpressionToken(open);
    }
  }

  private readExpressionToken(open: string[]): void {
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
      const number = float === null ? normalizeInteger(BigInt(plain)) : new Float(Number(plain));
      this.push('number', digits, number);
      this.advance(digits.length);
      return;
    }
    const text = this.match(NAME) ?? this.match(STRING) ?? this.match(OPERATOR);
    if (text === null) {
      const letter = String.fromCodePoint(required(this.source.codePointAt(this.position)));
      throw syntaxError(`unexpected char '${letter}'`, this.advanceLine(this.position));
    }
    this.pushText(text, open);
    this.advance(text.length);
  }

  private pushText(text: string, open: string[]): void {
    const [first] = text as unknown as [string];
    if (first === '"' || first === "'") {
      this.push('string', unescapeText(text.slice(1, -1), this.advanceLine(this.position)));
    } else if (/[\p{L}\p{M}\p{N}\p{Pc}\u00b7\u0387]/u.test(text)) {
      if (!IDENTIFIER.test(text)) {
        throw syntaxError('Invalid character in identifier', this.advanceLine(this.position));
      }
      this.push('name', text);
    } else {
      this.checkBracket(text, open);
      this.push('operator', text);
    }
  }

  /** Checks that brackets are paired. */
  private checkBracket(operator: string, open: string[]): void {
    const closing = CLOSING[operator];
    if (closing !== undefined) open.push(closing);
    if (operator !== '}' && operator !== ')' && operator !== ']') return;
    const expected = open.pop();
    if (expected === operator) return;
    const hint = expected === undefined ? '' : `, expected '${expected}'`;
    throw syntaxError(`unexpected '${operator}'${hint}`, this.advanceLine(this.position));
  }

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.position;
    return pattern.exec(this.source)?.[0] ?? null;
  }

  private pushData(text: string): void {
    if (text !== '') this.push('data', text);
  }

  private push(type: TokenType, value: string, number?: Value): void {
    this.tokens.push({
      type,
      value,
      line: this.advanceLine(this.position),
      ...(number !== undefined && { number }),
    });
  }

  private advanceLine(at: number): number {
    for (; this.countedTo < at; ++this.countedTo)
      if (this.source[this.countedTo] === '\n') this.line++;
    return this.line;
  }
}

/**
 * Returns the text before a tag: "-" strips trailing whitespace, a block tag the indentation of its
 * own line.
 */
function trimBeforeTag(
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

/** Decodes a string literal with Python's codec "unicode-escape". */
function unescapeText(text: string, line: number): string {
  if (!text.includes('\\')) return text;
  // The codec reads ASCII, so other letters become escapes first.
  const ascii = text.replace(/[\x80-\u{10ffff}]/gu, escapeCode);
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
