// Parses the statements of a template by jinja2's grammar.

import { ExpressionParser } from './expression-parser.js';
import { syntaxError, type TemplateFault } from './fault.js';
import type {
  AssignBlock,
  Block,
  CallBlock,
  Expression,
  Filter,
  FilterBlock,
  For,
  If,
  Macro,
  Name,
  Output,
  Signature,
  Statement,
  Target,
  With,
} from './nodes.js';

/** Maximum nesting of statements. */
const DEPTH = 100;

/** Returns the statements of a template. Throws TemplateSyntaxError. */
export function parseTemplate(template: string): Statement[] {
  return new Parser(template).parseAll();
}

class Parser extends ExpressionParser {
  private depth = 0;

  parseAll(): Statement[] {
    return this.parseStatements([]);
  }

  /** Parses statements up to a tag in `ends`, which becomes the current token. */
  private parseStatements(ends: readonly string[]): Statement[] {
    const statements: Statement[] = [];
    let output: Output | null = null;
    const print = (part: string | Expression, line: number): void => {
      if (output === null) {
        output = { type: 'Output', line, parts: [] };
        statements.push(output);
      }
      output.parts.push(part);
    };
    for (;;) {
      const { type, value, line } = this.token;
      if (type === 'eof') break;
      this.next();
      if (type === 'data') print(value, line);
      else if (type === 'variable_begin') {
        print(this.parseTuple(), line);
        this.expectType('variable_end');
      } else {
        output = null;
        if (ends.some((end) => this.isName(end))) return statements;
        statements.push(this.parseStatement());
        this.expectType('block_end');
      }
    }
    if (ends.length > 0) {
      throw this.syntaxFault(`Unexpected end of template. Expected ${ends.join(' or ')}.`);
    }
    return statements;
  }

  /** Parses the body of a block, up to a tag in `ends`. */
  private parseBody(...ends: string[]): Statement[] {
    this.skip(':');
    this.expectType('block_end');
    if (++this.depth > DEPTH)
      throw this.syntaxFault(`more than ${DEPTH} statements within each other`);
    const statements = this.parseStatements(ends);
    this.depth--;
    return statements;
  }

  /** Parses statements up to and including the tag `end`. */
  private parseBodyAndEnd(end: string): Statement[] {
    const statements = this.parseBody(end);
    this.next();
    return statements;
  }

  private parseStatement(): Statement {
    const { type, value, line } = this.token;
    if (type !== 'name') throw this.syntaxFault('tag name expected');
    this.next();
    const parse = STATEMENTS[value];
    if (parse === undefined) throw syntaxError(`Encountered unknown tag '${value}'.`, line);
    return parse.call(this, line);
  }

  private parseAssignTarget(ends: readonly string[] = []): Target {
    const target = this.parseTuple({ isSimple: true, ends });
    return this.toTarget(target, 'store', false);
  }

  /** Parses a target of {% set %}, which may be an attribute of a namespace. */
  private parseSetTarget(): Target {
    return this.toTarget(this.parseTuple({ isSimple: true, takesNamespaces: true }), 'store', true);
  }

  private toTarget(node: Expression, context: 'store' | 'param', takesNamespaces: boolean): Target {
    if (node.type === 'Name') {
      node.context = context;
      return node;
    }
    if (node.type === 'Tuple') {
      for (const item of node.items) this.toTarget(item, context, takesNamespaces);
      return node;
    }
    if (node.type === 'NamespaceTarget' && takesNamespaces) return node;
    throw this.syntaxFault(`can't assign to '${node.type.toLowerCase()}'`);
  }

  private parseNameTarget(): Name {
    const name = this.expectName();
    if (/^(?:[Tt]rue|[Ff]alse|[Nn]one)$/.test(name))
      throw this.syntaxFault("can't assign to 'name'");
    return { type: 'Name', name, context: 'store' };
  }

  parseSet(line: number): Statement {
    const target = this.parseSetTarget();
    if (this.skip('=')) return { type: 'Assign', line, target, value: this.parseTuple() };
    const filter = this.isOperator('|') ? (this.parseFilters(null) as Filter) : null;
    return {
      type: 'AssignBlock',
      line,
      target,
      filter,
      body: this.parseBodyAndEnd('endset'),
    } as AssignBlock;
  }

  parseFor(line: number): For {
    const target = this.parseAssignTarget(['in']);
    this.expectKeyword('in');
    const iterated = this.parseTuple({ hasCondition: false, ends: ['recursive'] });
    const test = this.skipName('if') ? this.parseExpression() : null;
    const isRecursive = this.skipName('recursive');
    const body = this.parseBody('endfor', 'else');
    const hasElse = this.isName('else');
    this.next();
    const otherwise = hasElse ? this.parseBodyAndEnd('endfor') : [];
    return { type: 'For', line, target, iterated, test, isRecursive, body, otherwise };
  }

  parseIf(line: number): If {
    const result = this.parseBranch(line);
    for (;;) {
      if (this.skipName('elif')) result.branches.push(this.parseBranch(line));
      else if (this.skipName('else')) {
        result.otherwise = this.parseBodyAndEnd('endif');
        return result;
      } else {
        this.next();
        return result;
      }
    }
  }

  private parseBranch(line: number): If {
    const test = this.parseTuple({ hasCondition: false });
    const body = this.parseBody('elif', 'else', 'endif');
    return { type: 'If', line, test, body, branches: [], otherwise: [] };
  }

  parseWith(line: number): With {
    const targets: Target[] = [];
    const values: Expression[] = [];
    while (this.token.type !== 'block_end') {
      if (targets.length > 0) this.expect(',');
      const target = this.parseTuple({ isSimple: true });
      targets.push(this.toTarget(target, 'param', false));
      this.expect('=');
      values.push(this.parseExpression());
    }
    return { type: 'With', line, targets, values, body: this.parseBodyAndEnd('endwith') };
  }

  private parseSignature(): Omit<Signature, 'body'> {
    const parameters: Name[] = [];
    const defaults: Expression[] = [];
    this.expect('(');
    while (!this.isOperator(')')) {
      if (parameters.length > 0) this.expect(',');
      const name = this.parseNameTarget();
      name.context = 'param';
      if (this.skip('=')) defaults.push(this.parseExpression());
      else if (defaults.length > 0)
        throw this.syntaxFault('non-default argument follows default argument');
      parameters.push(name);
    }
    this.expect(')');
    const names = parameters.map(({ name }) => name);
    if (new Set(names).size < names.length)
      throw this.syntaxFault('duplicate argument in a signature');
    return { parameters, defaults };
  }

  parseMacro(line: number): Macro {
    const { name } = this.parseNameTarget();
    const signature = this.parseSignature();
    return { type: 'Macro', line, name, ...signature, body: this.parseBodyAndEnd('endmacro') };
  }

  parseCall(line: number): CallBlock {
    const signature = this.isOperator('(')
      ? this.parseSignature()
      : { parameters: [], defaults: [] };
    const call = this.parseExpression();
    if (call.type !== 'Call') throw this.syntaxFault('expected call');
    return {
      type: 'CallBlock',
      line,
      call: call,
      ...signature,
      body: this.parseBodyAndEnd('endcall'),
    };
  }

  parseGeneration(line: number): CallBlock {
    const body = this.parseBodyAndEnd('endgeneration');
    return { type: 'CallBlock', line, call: null, parameters: [], defaults: [], body };
  }

  parseFilter(line: number): FilterBlock {
    const filter = this.parseFilters(null, true) as Filter;
    return { type: 'FilterBlock', line, filter, body: this.parseBodyAndEnd('endfilter') };
  }

  parsePrint(line: number): Output {
    const parts: Expression[] = [];
    while (this.token.type !== 'block_end') {
      if (parts.length > 0) this.expect(',');
      parts.push(this.parseExpression());
    }
    return { type: 'Output', line, parts };
  }

  parseBlock(line: number): Block {
    const name = this.expectName();
    const isScoped = this.skipName('scoped');
    const isRequired = this.skipName('required');
    const body = this.parseBodyAndEnd('endblock');
    this.skipName(name);
    const isBlank = (part: unknown): boolean => typeof part === 'string' && part.trim() === '';
    const isEmpty = body.every(
      (statement) => statement.type === 'Output' && statement.parts.every(isBlank),
    );
    if (isRequired && !isEmpty) {
      throw this.syntaxFault('Required blocks can only contain comments or whitespace');
    }
    return { type: 'Block', line, name, isScoped, isRequired, body };
  }

  /** Parses a tag that would load another template. */
  parseLoad(line: number, tag: string): Statement {
    const node = this.parseExpression();
    const stored: string[] = [];
    if (tag === 'import') {
      this.expectKeyword('as');
      stored.push(this.parseNameTarget().name);
    } else if (tag === 'from') {
      this.expectKeyword('import');
      do {
        const { name } = this.parseNameTarget();
        stored.push(this.skipName('as') ? this.parseNameTarget().name : name);
      } while (this.skip(','));
    }
    while (this.token.type === 'name') this.next();
    return { type: 'Load', line, tag, node, stored };
  }

  unsupportedFault(tag: string): TemplateFault {
    return this.syntaxFault(`{% ${tag} %} is not supported`);
  }
}

type StatementParser = (this: Parser, line: number) => Statement;

const parseLoadTag = (tag: string): StatementParser =>
  function (line) {
    return this.parseLoad(line, tag);
  };

const STATEMENTS: Readonly<Record<string, StatementParser | undefined>> = Object.assign(
  Object.create(null),
  {
    for: Parser.prototype.parseFor,
    if: Parser.prototype.parseIf,
    set: Parser.prototype.parseSet,
    with: Parser.prototype.parseWith,
    macro: Parser.prototype.parseMacro,
    call: Parser.prototype.parseCall,
    filter: Parser.prototype.parseFilter,
    print: Parser.prototype.parsePrint,
    block: Parser.prototype.parseBlock,
    generation: Parser.prototype.parseGeneration,
    break: (line: number): Statement => ({ type: 'Break', line }),
    continue: (line: number): Statement => ({ type: 'Continue', line }),
    extends: parseLoadTag('extends'),
    include: parseLoadTag('include'),
    import: parseLoadTag('import'),
    from: parseLoadTag('from'),
    autoescape(this: Parser): Statement {
      throw this.unsupportedFault('autoescape');
    },
  },
);
