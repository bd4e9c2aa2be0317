// Parses the expressions of a template, with jinja2's operator precedence.
import { required } from '../../runtime/required.js';
import { syntaxError, type TemplateFault } from './fault.js';
import { type Token, type TokenType, tokenize } from './lexer.js';
import type { Arguments, Expression, Filter, Slice } from './nodes.js';
import { Float } from './values.js';

const COMPARISONS = new Set(['==', '!=', '<', '<=', '>', '>=']);
const PRODUCTS = new Set(['*', '/', '//', '%']);
/** Names that may follow a test without an argument. */
const AFTER_TEST = new Set(['else', 'or', 'and']);
/** Maximum nesting of expressions. */
const DEPTH = 100;

interface TupleOptions {
  /** Accepts names and literals only. */
  isSimple?: boolean;
  takesNamespaces?: boolean;
  hasCondition?: boolean;
  /** Accepts "()". */
  isInParentheses?: boolean;
  /** Names that end the tuple. */
  ends?: readonly string[];
}

export class ExpressionParser {
  private readonly tokens: readonly Token[];
  private position = 0;
  private nesting = 0;

  constructor(template: string) {
    this.tokens = tokenize(template);
  }

  protected get token(): Token {
    return required(this.tokens[this.position]);
  }

  protected next(): Token {
    const { token } = this;
    if (token.type !== 'eof') this.position++;
    return token;
  }

  private get following(): Token {
    return required(this.tokens[Math.min(this.position + 1, this.tokens.length - 1)]);
  }

  protected syntaxFault(message: string): TemplateFault {
    return syntaxError(message, this.token.line);
  }

  private unexpectedFault(expected: string): TemplateFault {
    if (this.token.type === 'eof') {
      return this.syntaxFault(`unexpected end of template, expected '${expected}'.`);
    }
    return this.syntaxFault(`expected token '${expected}', got '${describeText(this.token)}'`);
  }

  protected isOperator(operator: string): boolean {
    return this.token.type === 'operator' && this.token.value === operator;
  }

  protected isName(name: string): boolean {
    return this.token.type === 'name' && this.token.value === name;
  }

  protected skip(operator: string): boolean {
    const isMatch = this.isOperator(operator);
    if (isMatch) this.next();
    return isMatch;
  }

  protected skipName(name: string): boolean {
    const isMatch = this.isName(name);
    if (isMatch) this.next();
    return isMatch;
  }

  protected expect(operator: string): void {
    if (!this.skip(operator)) throw this.unexpectedFault(operator);
  }

  protected expectKeyword(name: string): void {
    if (!this.skipName(name)) throw this.unexpectedFault(name);
  }

  protected expectType(type: TokenType): void {
    if (this.token.type !== type) throw this.unexpectedFault(DESCRIPTIONS[type] ?? type);
    this.next();
  }

  protected expectName(): string {
    if (this.token.type !== 'name') throw this.unexpectedFault('name');
    return this.next().value;
  }

  /** Parses one expression, or several separated by commas. */
  protected parseTuple(options: TupleOptions = {}): Expression {
    const { isSimple = false, hasCondition = true, isInParentheses = false, ends = [] } = options;
    const items: Expression[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.expect(',');
      if (this.isTupleEnd(ends)) break;
      if (isSimple) items.push(this.parsePrimary(options.takesNamespaces));
      else items.push(hasCondition ? this.parseExpression() : this.parseOr());
      if (!this.isOperator(',')) break;
      isTuple = true;
    }
    const [first] = items;
    if (!isTuple && first) return first;
    if (!isTuple && !isInParentheses) {
      throw this.syntaxFault(`Expected an expression, got '${describeText(this.token)}'`);
    }
    return { type: 'Tuple', items };
  }

  private isTupleEnd(ends: readonly string[]): boolean {
    const { type } = this.token;
    if (type === 'variable_end' || type === 'block_end' || this.isOperator(')')) return true;
    return ends.some((end) => this.isName(end));
  }

  protected parseExpression(): Expression {
    if (++this.nesting > DEPTH) {
      throw this.syntaxFault(`more than ${DEPTH} expressions within each other`);
    }
    let node = this.parseOr();
    while (this.skipName('if')) {
      const test = this.parseOr();
      const no = this.skipName('else') ? this.parseExpression() : null;
      node = { type: 'Condition', test, yes: node, no };
    }
    this.nesting--;
    return node;
  }

  private parseOr(): Expression {
    let left = this.parseAnd();
    while (this.skipName('or')) {
      left = { type: 'Logic', operator: 'or', left, right: this.parseAnd() };
    }
    return left;
  }

  private parseAnd(): Expression {
    let left = this.parseNot();
    while (this.skipName('and')) {
      left = { type: 'Logic', operator: 'and', left, right: this.parseNot() };
    }
    return left;
  }

  private parseNot(): Expression {
    let count = 0;
    while (this.skipName('not')) count++;
    let node = this.parseComparison();
    for (; count > 0; --count) node = { type: 'Unary', operator: 'not', node };
    return node;
  }

  private parseComparison(): Expression {
    const node = this.parseSum();
    const operations: { operator: string; node: Expression }[] = [];
    for (;;) {
      if (this.token.type === 'operator' && COMPARISONS.has(this.token.value)) {
        operations.push({ operator: this.next().value, node: this.parseSum() });
      } else if (this.skipName('in')) operations.push({ operator: 'in', node: this.parseSum() });
      else if (this.isName('not') && this.following.value === 'in') {
        this.next();
        this.next();
        operations.push({ operator: 'not in', node: this.parseSum() });
      } else break;
    }
    return operations.length === 0 ? node : { type: 'Compare', node, operations };
  }

  private parseSum(): Expression {
    let left = this.parseConcatenation();
    while (this.isOperator('+') || this.isOperator('-')) {
      const operator = this.next().value;
      left = { type: 'Binary', operator, left, right: this.parseConcatenation() };
    }
    return left;
  }

  private parseConcatenation(): Expression {
    const first = this.parseProduct();
    if (!this.isOperator('~')) return first;
    const nodes = [first];
    while (this.skip('~')) nodes.push(this.parseProduct());
    return { type: 'Concat', nodes };
  }

  private parseProduct(): Expression {
    let left = this.parsePower();
    while (this.token.type === 'operator' && PRODUCTS.has(this.token.value)) {
      const operator = this.next().value;
      left = { type: 'Binary', operator, left, right: this.parsePower() };
    }
    return left;
  }

  private parsePower(): Expression {
    let left = this.parseUnary(true);
    while (this.skip('**')) {
      left = { type: 'Binary', operator: '**', left, right: this.parseUnary(true) };
    }
    return left;
  }

  private parseUnary(takesFilters: boolean): Expression {
    let node: Expression;
    const operator = this.isOperator('-') ? '-' : this.isOperator('+') ? '+' : null;
    if (operator === null) node = this.parsePrimary();
    else {
      this.next();
      if (++this.nesting > DEPTH) throw this.syntaxFault(`more than ${DEPTH} signs`);
      node = { type: 'Unary', operator, node: this.parseUnary(false) };
      this.nesting--;
    }
    node = this.parsePostfix(node);
    return takesFilters ? this.parseFiltered(node) : node;
  }

  private parsePrimary(takesNamespaces = false): Expression {
    const { token } = this;
    if (token.type === 'name') {
      this.next();
      return this.parseNamed(token.value, takesNamespaces);
    }
    if (token.type === 'string') {
      let text = '';
      while (this.token.type === 'string') text += this.next().value;
      return { type: 'Constant', value: text };
    }
    if (token.type === 'number') {
      this.next();
      return { type: 'Constant', value: token.number ?? null };
    }
    if (this.skip('(')) {
      const node = this.parseTuple({ isInParentheses: true });
      this.expect(')');
      return node;
    }
    if (this.isOperator('[')) return this.parseList();
    if (this.isOperator('{')) return this.parseDict();
    throw this.syntaxFault(`unexpected '${describeText(token)}'`);
  }

  private parseNamed(name: string, takesNamespaces: boolean): Expression {
    if (/^(?:[Tt]rue|[Ff]alse)$/.test(name)) {
      return { type: 'Constant', value: name.toLowerCase() === 'true' };
    }
    if (name === 'none' || name === 'None') return { type: 'Constant', value: null };
    if (takesNamespaces && this.skip('.')) {
      return { type: 'NamespaceTarget', name, attribute: this.expectName() };
    }
    return { type: 'Name', name, context: 'load' };
  }

  private parseList(): Expression {
    this.expect('[');
    const items: Expression[] = [];
    while (!this.isOperator(']')) {
      if (items.length > 0) this.expect(',');
      if (this.isOperator(']')) break;
      items.push(this.parseExpression());
    }
    this.expect(']');
    return { type: 'List', items };
  }

  private parseDict(): Expression {
    this.expect('{');
    const pairs: { key: Expression; value: Expression }[] = [];
    while (!this.isOperator('}')) {
      if (pairs.length > 0) this.expect(',');
      if (this.isOperator('}')) break;
      const key = this.parseExpression();
      this.expect(':');
      pairs.push({ key, value: this.parseExpression() });
    }
    this.expect('}');
    return { type: 'Dict', pairs };
  }

  private parsePostfix(first: Expression): Expression {
    let node = first;
    for (;;) {
      if (this.isOperator('.') || this.isOperator('[')) node = this.parseSubscript(node);
      else if (this.isOperator('(')) node = { type: 'Call', node, ...this.parseArguments() };
      else return node;
    }
  }

  private parseFiltered(first: Expression): Expression {
    let node = first;
    for (;;) {
      if (this.isOperator('|')) node = required(this.parseFilters(node));
      else if (this.isName('is')) node = this.parseTest(node);
      else if (this.isOperator('(')) node = { type: 'Call', node, ...this.parseArguments() };
      else return node;
    }
  }

  private parseSubscript(node: Expression): Expression {
    if (this.skip('.')) {
      const token = this.next();
      if (token.type === 'name') return { type: 'Attribute', node, name: token.value };
      if (token.type !== 'number' || token.number instanceof Float) {
        throw syntaxError('expected name or number', token.line);
      }
      return { type: 'Item', node, key: { type: 'Constant', value: token.number ?? null } };
    }
    this.expect('[');
    const keys: Expression[] = [];
    while (!this.isOperator(']')) {
      if (keys.length > 0) this.expect(',');
      keys.push(this.parseSubscripted());
    }
    this.expect(']');
    const [first] = keys;
    return {
      type: 'Item',
      node,
      key: keys.length === 1 && first ? first : { type: 'Tuple', items: keys },
    };
  }

  private parseSubscripted(): Expression {
    const isBound = (): boolean =>
      !this.isOperator(':') && !this.isOperator(']') && !this.isOperator(',');
    const start = this.isOperator(':') ? null : this.parseExpression();
    if (start !== null && !this.isOperator(':')) return start;
    const bounds: Slice['bounds'] = [start, null, null];
    this.expect(':');
    if (isBound()) bounds[1] = this.parseExpression();
    if (this.skip(':') && isBound()) bounds[2] = this.parseExpression();
    return { type: 'Slice', bounds };
  }

  private parseArguments(): Arguments {
    const { line } = this.token;
    const parsed: Arguments = { args: [], keywords: [], rest: null, restKeywords: null };
    const require = (isRight: boolean): void => {
      if (!isRight) throw syntaxError('invalid syntax for function call expression', line);
    };
    this.expect('(');
    for (let isFirst = true; !this.isOperator(')'); isFirst = false) {
      if (!isFirst) {
        this.expect(',');
        if (this.isOperator(')')) break;
      }
      if (this.skip('*')) {
        require(parsed.rest === null && parsed.restKeywords === null);
        parsed.rest = this.parseExpression();
      } else if (this.skip('**')) {
        require(parsed.restKeywords === null);
        parsed.restKeywords = this.parseExpression();
      } else if (
        this.token.type === 'name' &&
        this.following.value === '=' &&
        this.following.type === 'operator'
      ) {
        require(parsed.restKeywords === null);
        this.parseKeyword(parsed);
      } else {
        require(
          parsed.rest === null && parsed.restKeywords === null && parsed.keywords.length === 0,
        );
        parsed.args.push(this.parseExpression());
      }
    }
    this.expect(')');
    return parsed;
  }

  private parseKeyword({ keywords }: Arguments): void {
    const key = this.next().value;
    this.next();
    if (keywords.some((keyword) => keyword.key === key))
      throw this.syntaxFault(`keyword argument repeated: ${key}`);
    keywords.push({ key, value: this.parseExpression() });
  }

  /** Parses `node|name|name`. With `startsInline`, the first name has no "|" before it. */
  protected parseFilters(first: Expression | null, startsInline = false): Expression | null {
    let node = first;
    let isInline = startsInline;
    while (isInline || this.skip('|')) {
      isInline = false;
      const { line } = this.token;
      const name = this.parseDottedName();
      const filter: Filter = { type: 'Filter', node, name, line, ...this.parseOptionalArguments() };
      node = filter;
    }
    return node;
  }

  private parseDottedName(): string {
    let name = this.expectName();
    while (this.skip('.')) name += `.${this.expectName()}`;
    return name;
  }

  private parseOptionalArguments(): Arguments {
    if (this.isOperator('(')) return this.parseArguments();
    return { args: [], keywords: [], rest: null, restKeywords: null };
  }

  private parseTest(node: Expression): Expression {
    this.next();
    const isNegated = this.skipName('not');
    const { line } = this.token;
    const name = this.parseDottedName();
    const parsed = this.isOperator('(') ? this.parseArguments() : this.parseTestArgument();
    const test: Expression = { type: 'Test', node, name, line, ...parsed };
    return isNegated ? { type: 'Unary', operator: 'not', node: test } : test;
  }

  /** Parses the argument of a test without parentheses. */
  private parseTestArgument(): Arguments {
    const none: Arguments = { args: [], keywords: [], rest: null, restKeywords: null };
    const { type, value } = this.token;
    const isLiteral =
      type === 'string' || type === 'number' || this.isOperator('[') || this.isOperator('{');
    const isName = type === 'name' && !AFTER_TEST.has(value);
    if (!isLiteral && !isName) return none;
    if (this.isName('is')) throw this.syntaxFault('You cannot chain multiple tests with is');
    return { ...none, args: [this.parsePostfix(this.parsePrimary())] };
  }
}

const DESCRIPTIONS: Readonly<Partial<Record<TokenType, string>>> = {
  data: 'template data / text',
  variable_begin: 'begin of print statement',
  variable_end: 'end of print statement',
  block_begin: 'begin of statement block',
  block_end: 'end of statement block',
  eof: 'end of template',
};

const describeText = ({ type, value }: Token): string => DESCRIPTIONS[type] ?? value;
