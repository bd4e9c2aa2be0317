// What a template compares: as Python does, where the library takes JavaScript's rules.

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

/** Names that no template can write. */
const NAMES: Readonly<Record<string, string>> = {
  ...{ '==': ' equal', '!=': ' unequal', in: ' within', 'not in': ' without' },
};

/** What templates that callComparisons() has changed are given beside their variables. */
export const COMPARISONS: Readonly<Record<string, unknown>> = {
  ' equal': ([a, b]: readonly [Value, Value]) => isEqual(a, b),
  ' unequal': ([a, b]: readonly [Value, Value]) => !isEqual(a, b),
  ' within': ([a, b]: readonly [Value, Value]) => isWithin(a, b),
  ' without': ([a, b]: readonly [Value, Value]) => !isWithin(a, b),
};

/**
 * Makes `==`, `!=`, `in` and `not in` of a parsed template calls of COMPARISONS. Values are handed
 * over in a list, in which they keep their types.
 */
export function callComparisons(part: unknown): void {
  if (typeof part !== 'object' || part === null) return;
  const inner = part instanceof Map ? [...part].flat() : Object.values(part);
  for (const one of inner) callComparisons(one);
  const { type, operator, left, right } = part as Node;
  if (type !== 'BinaryExpression') return;
  const { value } = operator as { value: string };
  if (!Object.hasOwn(NAMES, value)) return;
  const callee = { type: 'Identifier', value: NAMES[value] };
  const list = { type: 'ArrayLiteral', value: [left, right] };
  Object.assign(part, { type: 'CallExpression', callee, args: [list] });
}

/** Numbers and truths alike, which are one kind in Python; null for all else. */
function numberOf({ value }: Value): number | null {
  return typeof value === 'number' || typeof value === 'boolean' ? Number(value) : null;
}

/** a == b. */
function isEqual(a: Value, b: Value): boolean {
  const number = numberOf(a);
  if (number !== null) return number === numberOf(b);
  if (a.type !== b.type) return false;
  if (a.type === 'NullValue' || a.type === 'UndefinedValue') return true;
  if (Array.isArray(a.value)) {
    const [own, others] = [a.value, b.value] as [Value[], Value[]];
    return own.length === others.length && own.every((one, i) => isEqual(one, others[i] as Value));
  }
  if (a.type !== 'ObjectValue') return a.value === b.value;
  const [own, others] = [a.value, b.value] as [Map<string, Value>, Map<string, Value>];
  const isAlike = ([key, one]: [string, Value]): boolean => {
    const other = others.get(key);
    return other !== undefined && isEqual(one, other);
  };
  return own.size === others.size && Array.from(own).every(isAlike);
}

/** a in b. Throws what Python calls a TypeError. */
function isWithin(a: Value, b: Value): boolean {
  const { type, value } = b;
  if (type === 'UndefinedValue') return false;
  if (Array.isArray(value)) return (value as Value[]).some((one) => isEqual(one, a));
  if (value instanceof Map) return a.type === 'StringValue' && value.has(a.value);
  if (typeof value === 'string' && a.type === 'StringValue') {
    return value.includes(a.value as string);
  }
  throw new Error(`what can hold it behind "in", got ${type} for ${a.type}`);
}
