// What a template prints of its values: as Python does, where the library writes JSON.

/** A node of a parsed template. */
interface Node {
  type: string;
  [part: string]: unknown;
}

/** A value of the library while it renders; of lists and objects its items are such values. */
interface Value {
  readonly type: string;
  readonly value: unknown;
}

/** Where a node has statements, and prints those that are expressions. */
const BLOCKS = ['body', 'alternate', 'defaultBlock'];

/** What prints nothing itself, or text alone. */
const SILENT: ReadonlySet<string> = new Set([
  ...['If', 'For', 'Set', 'Macro', 'CallStatement', 'FilterStatement', 'Break', 'Continue'],
  ...['Comment', 'StringLiteral'],
]);

/** Names that no template can write. */
const [TEXT, TEXTS] = [' text', ' texts'];

/** What templates that callPrints() has changed are given beside their variables. */
export const PRINTS: Readonly<Record<string, unknown>> = {
  [TEXT]: (values: readonly Value[]) => values.map(textOf).join(''),
  [TEXTS]: ([{ type, value }]: readonly [Value]) =>
    isList(type) ? (value as Value[]).map(textOf) : value,
};

/**
 * Makes calls of PRINTS of what a parsed template prints, joins by `~`, and gives the filters
 * `string` and `join`. Values are handed over in a list, in which they keep their types.
 */
export function callPrints(part: unknown): void {
  if (typeof part !== 'object' || part === null) return;
  const inner = part instanceof Map ? [...part].flat() : Object.values(part);
  for (const one of inner) callPrints(one);
  const node = part as Node;
  for (const block of BLOCKS) {
    const statements = node[block];
    if (Array.isArray(statements)) node[block] = statements.map(printed);
  }
  if (node.type === 'BinaryExpression' && (node.operator as Value).value === '~') {
    Object.assign(node, call(TEXT, node.left, node.right));
  } else if (node.type === 'FilterExpression') {
    const name = filterOf(node);
    if (name === 'string') Object.assign(node, call(TEXT, node.operand));
    else if (name === 'join') node.operand = call(TEXTS, joined(node));
  }
}

/**
 * What a filter `join` joins: of its items what its argument `attribute` names, where it has one.
 */
function joined(node: Node): unknown {
  const { type, args } = node.filter as { type: string; args: Node[] };
  if (type !== 'CallExpression') return node.operand;
  const isNamed = ({ key }: Node): boolean => (key as Node | undefined)?.value === 'attribute';
  const named = args.find(isNamed);
  const value = named ? named.value : args.filter(({ key }) => key === undefined)[1];
  if (value === undefined) return node.operand;
  const argument = { type: 'KeywordArgumentExpression', key: identifier('attribute'), value };
  const filter = { type: 'CallExpression', callee: identifier('map'), args: [argument] };
  return { type: 'FilterExpression', operand: node.operand, filter };
}

const identifier = (value: string): Node => ({ type: 'Identifier', value });

function printed(statement: Node): Node {
  return SILENT.has(statement.type) ? statement : call(TEXT, statement);
}

function filterOf({ filter }: Node): unknown {
  const { type, value, callee } = filter as Node;
  return type === 'CallExpression' ? (callee as Node).value : value;
}

function call(name: string, ...values: unknown[]): Node {
  const list = { type: 'ArrayLiteral', value: values };
  return { type: 'CallExpression', callee: identifier(name), args: [list] };
}

const isList = (type: string): boolean => type === 'ArrayValue' || type === 'TupleValue';

/** str() of it. */
function textOf(value: Value): string {
  if (value.type === 'UndefinedValue') return '';
  return value.type === 'StringValue' ? (value.value as string) : shown(value);
}

/** repr() of it. */
function shown(one: Value): string {
  const { type, value } = one;
  if (type === 'NullValue') return 'None';
  if (type === 'UndefinedValue') return 'Undefined';
  if (type === 'BooleanValue') return value ? 'True' : 'False';
  if (type === 'FloatValue') return decimal(value as number);
  if (type === 'StringValue') return quoted(value as string);
  if (isList(type)) {
    const items = (value as Value[]).map(shown);
    if (type === 'ArrayValue') return `[${items.join(', ')}]`;
    return items.length === 1 ? `(${items[0]},)` : `(${items.join(', ')})`;
  }
  if (!(value instanceof Map)) return String(value);
  const entries = Array.from(value as Map<string, Value>);
  const inner = entries.map(([key, item]) => `${quoted(key)}: ${shown(item)}`).join(', ');
  return type === 'NamespaceValue' ? `<Namespace {${inner}}>` : `{${inner}}`;
}

/** The shortest digits, with an exponent where Python has one. */
function decimal(value: number): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.0';
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-4 && size < 1e16)) {
    return Number.isInteger(value) ? `${value}.0` : String(value);
  }
  const [digits, exponent = ''] = value.toExponential().split('e');
  const sign = exponent[0] as string;
  return `${digits}e${sign}${exponent.slice(1).padStart(2, '0')}`;
}

const ESCAPES: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** In quotes as Python chooses them, with escapes for what it does not print. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = Array.from(text, (letter) => {
    if (letter === quote || letter === '\\') return `\\${letter}`;
    if (letter === ' ' || !/[\p{C}\p{Z}]/u.test(letter)) return letter;
    return ESCAPES[letter] ?? escapeOf(letter.codePointAt(0) as number);
  });
  return `${quote}${escaped.join('')}${quote}`;
}

function escapeOf(code: number): string {
  const [mark, width] = code < 0x100 ? ['x', 2] : code < 0x10000 ? ['u', 4] : ['U', 8];
  return `\\${mark}${code.toString(16).padStart(width as number, '0')}`;
}
