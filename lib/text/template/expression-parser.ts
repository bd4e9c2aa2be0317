// Reads the expressions of a template, with jinja2's precedence of operators.
import { required } from '../../runtime/required.js';
import { syntaxError, type TemplateFault } from './fault.js';
import { type Token, type TokenType, tokensOf } from './lexer.js';
import type { Arguments, Expression, Filter, Slice } from './nodes.js';
import { Float } from './values.js';

const COMPARISONS = new Set(['==', '!=', '<', '<=', '>', '>=']);
const PRODUCTS = new Set(['*', '/', '//', '%']);
/** Names that end a test without an argument. */
const AFTER_TEST = new Set(['else', 'or', 'and']);
/** Expressions within each other. */
const DEPTH = 100;

interface TupleOptions {
  /** Takes names and literals only. */
  isSimple?: boolean;
  takesNamespaces?: boolean;
  hasCondition?: boolean;
  /** Takes "()". */
  isInParentheses?: boolean;
  /** Names that end it. */
  ends?: readonly string[];
}

export class ExpressionParser {
  private readonly tokens: readonly Token[];
  private at = 0;
  private nesting = 0;

  constructor(template: string) {
    this.tokens = tokensOf(template);
  }

  protected get token(): Token {
    return required(this.tokens[this.at]);
  }

  protected next(): Token {
    const { token } = this;
    if (token.type !== 'eof') this.at++;
    return token;
  }

  private get following(): Token {
    return required(this.tokens[Math.min(this.at + 1, this.tokens.length - 1)]);
  }

  protected fail(message: string): TemplateFault {
    return syntaxError(message, this.token.line);
  }

  private unexpected(expected: string): TemplateFault {
    if (this.token.type === 'eof') {
      return this.fail(`unexpected end of template, expected '${expected}'.`);
    }
    return this.fail(`expected token '${expected}', got '${describeText(this.token)}'`);
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
    if (!this.skip(operator)) throw this.unexpected(operator);
  }

  protected expectKeyword(name: string): void {
    if (!this.skipName(name)) throw this.unexpected(name);
  }

  protected expectType(type: TokenType): void {
    if (this.token.type !== type) throw this.unexpected(DESCRIPTIONS[type] ?? type);
    this.next();
  }

  protected expectName(): string {
    if (this.token.type !== 'name') throw this.unexpected('name');
    return this.next().value;
  }

  /** Parses one expression, or several with commas between them. */
  protected tuple(options: TupleOptions = {}): Expression {
    const { isSimple = false, hasCondition = true, isInParentheses = false, ends = [] } = options;
    const items: Expression[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.expect(',');
      if (this.isTupleEnd(ends)) break;
      if (isSimple) items.push(this.primary(options.takesNamespaces));
      else items.push(hasCondition ? this.expression() : this.or());
      if (!this.isOperator(',')) break;
      isTuple = true;
    }
    const [first] = items;
    if (!isTuple && first) return first;
    if (!isTuple && !isInParentheses) {
      throw this.fail(`Expected an expression, got '${describeText(this.token)}'`);
    }
    return { type: 'Tuple', items };
  }

  private isTupleEnd(ends: readonly string[]): boolean {
    const { type } = this.token;
    if (type === 'variable_end' || type === 'block_end' || this.isOperator(')')) return true;
    return ends.some((end) => this.isName(end));
  }

  protected expression(): Expression {
    if (++this.nesting > DEPTH) {
      throw this.fail(`more than ${DEPTH} expressions within each other`);
    }
    let node = this.or();
    while (this.skipName('if')) {
      const test = this.or();
      const no = this.skipName('else') ? this.expression() : null;
      node = { type: 'Condition', test, yes: node, no };
    }
    this.nesting--;
    return node;
  }

  private or(): Expression {
    let left = this.and();
    while (this.skipName('or')) {
      left = { type: 'Logic', operator: 'or', left, right: this.and() };
    }
    return left;
  }

  private and(): Expression {
    let left = this.not();
    while (this.skipName('and')) {
      left = { type: 'Logic', operator: 'and', left, right: this.not() };
    }
    return left;
  }

  private not(): Expression {
    let count = 0;
    while (this.skipName('not')) count++;
    let node = this.comparison();
    for (; count > 0; --count) node = { type: 'Unary', operator: 'not', node };
    return node;
  }

  private comparison(): Expression {
    const node = this.sum();
    const operations: { operator: string; node: Expression }[] = [];
    for (;;) {
      if (this.token.type === 'operator' && COMPARISONS.has(this.token.value)) {
        operations.push({ operator: this.next().value, node: this.sum() });
      } else if (this.skipName('in')) operations.push({ operator: 'in', node: this.sum() });
      else if (this.isName('not') && this.following.value === 'in') {
        this.next();
        this.next();
        operations.push({ operator: 'not in', node: this.sum() });
      } else break;
    }
    return operations.length === 0 ? node : { type: 'Compare', node, operations };
  }

  private sum(): Expression {
    let left = this.concatenation();
    while (this.isOperator('+') || this.isOperator('-')) {
      const operator = this.next().value;
      left = { type: 'Binary', operator, left, right: this.concatenation() };
    }
    return left;
  }

  private concatenation(): Expression {
    const first = this.product();
    if (!this.isOperator('~')) return first;
    const nodes = [first];
    while (this.skip('~')) nodes.push(this.product());
    return { type: 'Concat', nodes };
  }

  private product(): Expression {
    let left = this.power();
    while (this.token.type === 'operator' && PRODUCTS.has(this.token.value)) {
      const operator = this.next().value;
      left = { type: 'Binary', operator, left, right: this.power() };
    }
    return left;
  }

  private power(): Expression {
    let left = this.unary(true);
    while (this.skip('**')) {
      left = { type: 'Binary', operator: '**', left, right: this.unary(true) };
    }
    return left;
  }

  private unary(takesFilters: boolean): Expression {
    let node: Expression;
    const operator = this.isOperator('-') ? '-' : this.isOperator('+') ? '+' : null;
    if (operator === null) node = this.primary();
    else {
      this.next();
      if (++this.nesting > DEPTH) throw this.fail(`more than ${DEPTH} signs`);
      node = { type: 'Unary', operator, node: this.unary(false) };
      this.nesting--;
    }
    node = this.postfix(node);
    return takesFilters ? this.filtered(node) : node;
  }

  private primary(takesNamespaces = false): Expression {
    const { token } = this;
    if (token.type === 'name') {
      this.next();
      return this.named(token.value, takesNamespaces);
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
      const node = this.tuple({ isInParentheses: true });
      this.expect(')');
      return node;
    }
    if (this.isOperator('[')) return this.list();
    if (this.isOperator('{')) return this.dict();
    throw this.fail(`unexpected '${describeText(token)}'`);
  }

  private named(name: string, takesNamespaces: boolean): Expression {
    if (/^(?:[Tt]rue|[Ff]alse)$/.test(name)) {
      return { type: 'Constant', value: name.toLowerCase() === 'true' };
    }
    if (name === 'none' || name === 'None') return { type: 'Constant', value: null };
    if (takesNamespaces && this.skip('.')) {
      return { type: 'NamespaceTarget', name, attribute: this.expectName() };
    }
    return { type: 'Name', name, context: 'load' };
  }

  private list(): Expression {
    this.expect('[');
    const items: Expression[] = [];
    while (!this.isOperator(']')) {
      if (items.length > 0) this.expect(',');
      if (this.isOperator(']')) break;
      items.push(this.expression());
    }
    this.expect(']');
    return { type: 'List', items };
  }

  private dict(): Expression {
    this.expect('{');
    const pairs: { key: Expression; value: Expression }[] = [];
    while (!this.isOperator('}')) {
      if (pairs.length > 0) this.expect(',');
      if (this.isOperator('}')) break;
      const key = this.expression();
      this.expect(':');
      pairs.push({ key, value: this.expression() });
    }
    this.expect('}');
    return { type: 'Dict', pairs };
  }

  private postfix(first: Expression): Expression {
    let node = first;
    for (;;) {
      if (this.isOperator('.') || this.isOperator('[')) node = this.subscript(node);
      else if (this.isOperator('(')) node = { type: 'Call', node, ...this.arguments() };
      else return node;
    }
  }

  private filtered(first: Expression): Expression {
    let node = first;
    for (;;) {
      if (this.isOperator('|')) node = required(this.filters(node));
      else if (this.isName('is')) node = this.test(node);
      else if (this.isOperator('(')) node = { type: 'Call', node, ...this.arguments() };
      else return node;
    }
  }

  private subscript(node: Expression): Expression {
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
      keys.push(this.subscribed());
    }
    this.expect(']');
    const [first] = keys;
    return {
      type: 'Item',
      node,
      key: keys.length === 1 && first ? first : { type: 'Tuple', items: keys },
    };
  }

  private subscribed(): Expression {
    const isBound = (): boolean =>
      !this.isOperator(':') && !this.isOperator(']') && !this.isOperator(',');
    const start = this.isOperator(':') ? null : this.expression();
    if (start !== null && !this.isOperator(':')) return start;
    const bounds: Slice['bounds'] = [start, null, null];
    this.expect(':');
    if (isBound()) bounds[1] = this.expression();
    if (this.skip(':') && isBound()) bounds[2] = this.expression();
    return { type: 'Slice', bounds };
  }

  private arguments(): Arguments {
    const { line } = this.token;
    const found: Arguments = { args: [], keywords: [], rest: null, restKeywords: null };
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
        require(found.rest === null && found.restKeywords === null);
        found.rest = this.expression();
      } else if (this.skip('**')) {
        require(found.restKeywords === null);
        found.restKeywords = this.expression();
      } else if (
        this.token.type === 'name' &&
        this.following.value === '=' &&
        this.following.type === 'operator'
      ) {
        require(found.restKeywords === null);
        this.keyword(found);
      } else {
        require(found.rest === null && found.restKeywords === null && found.keywords.length === 0);
        found.args.push(this.expression());
      }
    }
    this.expect(')');
    return found;
  }

  private keyword({ keywords }: Arguments): void {
    const key = this.next().value;
    this.next();
    if (keywords.some((keyword) => keyword.key === key))
      throw this.fail(`keyword argument repeated: ${key}`);
    keywords.push({ key, value: this.expression() });
  }

  /** `node|name|name`; `startsInline` begins without a "|". */
  protected filters(first: Expression | null, startsInline = false): Expression | null {
    let node = first;
    let isInline = startsInline;
    while (isInline || this.skip('|')) {
      isInline = false;
      const { line } = this.token;
      const name = this.dottedName();
      const filter: Filter = { type: 'Filter', node, name, line, ...this.optionalArguments() };
      node = filter;
    }
    return node;
  }

  private dottedName(): string {
    let name = this.expectName();
    while (this.skip('.')) name += `.${this.expectName()}`;
    return name;
  }

  private optionalArguments(): Arguments {
    if (this.isOperator('(')) return this.arguments();
    return { args: [], keywords: [], rest: null, restKeywords: null };
  }

  private test(node: Expression): Expression {
    this.next();
    const isNegated = this.skipName('not');
    const { line } = this.token;
    const name = this.dottedName();
    const found = this.isOperator('(') ? this.arguments() : this.testArgument();
    const test: Expression = { type: 'Test', node, name, line, ...found };
    return isNegated ? { type: 'Unary', operator: 'not', node: test } : test;
  }

  /** A test takes one argument without parentheses. */
  private testArgument(): Arguments {
    const none: Arguments = { args: [], keywords: [], rest: null, restKeywords: null };
    const { type, value } = this.token;
    const isLiteral =
      type === 'string' || type === 'number' || this.isOperator('[') || this.isOperator('{');
    const isName = type === 'name' && !AFTER_TEST.has(value);
    if (!isLiteral && !isName) return none;
    if (this.isName('is')) throw this.fail('You cannot chain multiple tests with is');
    return { ...none, args: [this.postfix(this.primary())] };
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
