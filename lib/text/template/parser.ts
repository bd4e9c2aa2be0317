// Reads the statements of a template: a parser of jinja2's grammar.

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

/** Statements within each other. */
const DEPTH = 100;

/** Throws TemplateSyntaxError. */
export function parse(template: string): Statement[] {
  return new Parser(template).all();
}

class Parser extends ExpressionParser {
  private depth = 0;

  all(): Statement[] {
    return this.statements([]);
  }

  /** Statements up to a tag of `ends`, which is the current token afterwards. */
  private statements(ends: readonly string[]): Statement[] {
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
        print(this.tuple(), line);
        this.expectType('variable_end');
      } else {
        output = null;
        if (ends.some((end) => this.isName(end))) return statements;
        statements.push(this.statement());
        this.expectType('block_end');
      }
    }
    if (ends.length > 0) {
      throw this.fail(`Unexpected end of template. Expected ${ends.join(' or ')}.`);
    }
    return statements;
  }

  /** The body of a block, up to a tag of `ends`. */
  private body(...ends: string[]): Statement[] {
    this.skip(':');
    this.expectType('block_end');
    if (++this.depth > DEPTH) throw this.fail(`more than ${DEPTH} statements within each other`);
    const statements = this.statements(ends);
    this.depth--;
    return statements;
  }

  /** Parses statements up to the tag `end`, and the tag. */
  private bodyTo(end: string): Statement[] {
    const statements = this.body(end);
    this.next();
    return statements;
  }

  private statement(): Statement {
    const { type, value, line } = this.token;
    if (type !== 'name') throw this.fail('tag name expected');
    this.next();
    const parse = STATEMENTS[value];
    if (parse === undefined) throw syntaxError(`Encountered unknown tag '${value}'.`, line);
    return parse.call(this, line);
  }

  private assignTarget(ends: readonly string[] = []): Target {
    const target = this.tuple({ isSimple: true, ends });
    return this.asTarget(target, 'store', false);
  }

  /** A target of {% set %}, where attributes of a namespace may be. */
  private setTarget(): Target {
    return this.asTarget(this.tuple({ isSimple: true, takesNamespaces: true }), 'store', true);
  }

  private asTarget(node: Expression, context: 'store' | 'param', takesNamespaces: boolean): Target {
    if (node.type === 'Name') {
      node.context = context;
      return node;
    }
    if (node.type === 'Tuple') {
      for (const item of node.items) this.asTarget(item, context, takesNamespaces);
      return node;
    }
    if (node.type === 'NamespaceTarget' && takesNamespaces) return node;
    throw this.fail(`can't assign to '${node.type.toLowerCase()}'`);
  }

  private nameTarget(): Name {
    const name = this.expectName();
    if (/^(?:[Tt]rue|[Ff]alse|[Nn]one)$/.test(name)) throw this.fail("can't assign to 'name'");
    return { type: 'Name', name, context: 'store' };
  }

  parseSet(line: number): Statement {
    const target = this.setTarget();
    if (this.skip('=')) return { type: 'Assign', line, target, value: this.tuple() };
    const filter = this.isOperator('|') ? (this.filters(null) as Filter) : null;
    return {
      type: 'AssignBlock',
      line,
      target,
      filter,
      body: this.bodyTo('endset'),
    } as AssignBlock;
  }

  parseFor(line: number): For {
    const target = this.assignTarget(['in']);
    this.expectKeyword('in');
    const iterated = this.tuple({ hasCondition: false, ends: ['recursive'] });
    const test = this.skipName('if') ? this.expression() : null;
    const isRecursive = this.skipName('recursive');
    const body = this.body('endfor', 'else');
    const hasElse = this.isName('else');
    this.next();
    const otherwise = hasElse ? this.bodyTo('endfor') : [];
    return { type: 'For', line, target, iterated, test, isRecursive, body, otherwise };
  }

  parseIf(line: number): If {
    const result = this.branch(line);
    for (;;) {
      if (this.skipName('elif')) result.branches.push(this.branch(line));
      else if (this.skipName('else')) {
        result.otherwise = this.bodyTo('endif');
        return result;
      } else {
        this.next();
        return result;
      }
    }
  }

  private branch(line: number): If {
    const test = this.tuple({ hasCondition: false });
    const body = this.body('elif', 'else', 'endif');
    return { type: 'If', line, test, body, branches: [], otherwise: [] };
  }

  parseWith(line: number): With {
    const targets: Target[] = [];
    const values: Expression[] = [];
    while (this.token.type !== 'block_end') {
      if (targets.length > 0) this.expect(',');
      const target = this.tuple({ isSimple: true });
      targets.push(this.asTarget(target, 'param', false));
      this.expect('=');
      values.push(this.expression());
    }
    return { type: 'With', line, targets, values, body: this.bodyTo('endwith') };
  }

  private signature(): Omit<Signature, 'body'> {
    const parameters: Name[] = [];
    const defaults: Expression[] = [];
    this.expect('(');
    while (!this.isOperator(')')) {
      if (parameters.length > 0) this.expect(',');
      const name = this.nameTarget();
      name.context = 'param';
      if (this.skip('=')) defaults.push(this.expression());
      else if (defaults.length > 0)
        throw this.fail('non-default argument follows default argument');
      parameters.push(name);
    }
    this.expect(')');
    const names = parameters.map(({ name }) => name);
    if (new Set(names).size < names.length) throw this.fail('duplicate argument in a signature');
    return { parameters, defaults };
  }

  parseMacro(line: number): Macro {
    const { name } = this.nameTarget();
    const signature = this.signature();
    return { type: 'Macro', line, name, ...signature, body: this.bodyTo('endmacro') };
  }

  parseCall(line: number): CallBlock {
    const signature = this.isOperator('(') ? this.signature() : { parameters: [], defaults: [] };
    const call = this.expression();
    if (call.type !== 'Call') throw this.fail('expected call');
    return {
      type: 'CallBlock',
      line,
      call: call,
      ...signature,
      body: this.bodyTo('endcall'),
    };
  }

  parseGeneration(line: number): CallBlock {
    const body = this.bodyTo('endgeneration');
    return { type: 'CallBlock', line, call: null, parameters: [], defaults: [], body };
  }

  parseFilter(line: number): FilterBlock {
    const filter = this.filters(null, true) as Filter;
    return { type: 'FilterBlock', line, filter, body: this.bodyTo('endfilter') };
  }

  parsePrint(line: number): Output {
    const parts: Expression[] = [];
    while (this.token.type !== 'block_end') {
      if (parts.length > 0) this.expect(',');
      parts.push(this.expression());
    }
    return { type: 'Output', line, parts };
  }

  parseBlock(line: number): Block {
    const name = this.expectName();
    const isScoped = this.skipName('scoped');
    const isRequired = this.skipName('required');
    const body = this.bodyTo('endblock');
    this.skipName(name);
    const isBlank = (part: unknown): boolean => typeof part === 'string' && part.trim() === '';
    const isEmpty = body.every(
      (statement) => statement.type === 'Output' && statement.parts.every(isBlank),
    );
    if (isRequired && !isEmpty) {
      throw this.fail('Required blocks can only contain comments or whitespace');
    }
    return { type: 'Block', line, name, isScoped, isRequired, body };
  }

  /** Tags that load another template. */
  parseLoad(line: number, tag: string): Statement {
    const node = this.expression();
    const stored: string[] = [];
    if (tag === 'import') {
      this.expectKeyword('as');
      stored.push(this.nameTarget().name);
    } else if (tag === 'from') {
      this.expectKeyword('import');
      do {
        const { name } = this.nameTarget();
        stored.push(this.skipName('as') ? this.nameTarget().name : name);
      } while (this.skip(','));
    }
    while (this.token.type === 'name') this.next();
    return { type: 'Load', line, tag, node, stored };
  }

  unsupported(tag: string): TemplateFault {
    return this.fail(`{% ${tag} %} is not supported`);
  }
}

type StatementParser = (this: Parser, line: number) => Statement;

const load = (tag: string): StatementParser =>
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
    extends: load('extends'),
    include: load('include'),
    import: load('import'),
    from: load('from'),
    autoescape(this: Parser): Statement {
      throw this.unsupported('autoescape');
    },
  },
);
