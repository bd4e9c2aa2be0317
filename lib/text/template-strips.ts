// strip(), lstrip() and rstrip() of templates, whose characters the library's own do not read.

/** A node of a parsed template. */
interface Node {
  type: string;
  [part: string]: unknown;
}

/** A call such as `content.strip("\n")`. */
interface MethodCall extends Node {
  callee: { type: string; object: unknown; property: { value: unknown }; computed: boolean };
  args: unknown[];
}

/** Which ends they take away at: the left one, the right one. */
const ENDS: Readonly<Record<string, readonly [boolean, boolean]>> = {
  strip: [true, true],
  lstrip: [true, false],
  rstrip: [false, true],
};

/** A name that no template can write. */
const nameOf = (method: string): string => ` ${method}`;

/** What templates that callStrips() has changed are given beside their variables. */
export const STRIPS: Readonly<Record<string, unknown>> = Object.fromEntries(
  Object.entries(ENDS).map(([method, [left, right]]) => [
    nameOf(method),
    (text: unknown, characters: unknown) => stripped(String(text), characters, left, right),
  ]),
);

/** Makes such calls in a parsed template ones of STRIPS, where they say which characters. */
export function callStrips(part: unknown): void {
  if (typeof part !== 'object' || part === null) return;
  const inner = part instanceof Map ? [...part].flat() : Object.values(part);
  for (const one of inner) callStrips(one);
  if (!isStrip(part as Node)) return;
  const call = part as MethodCall;
  const { object, property } = call.callee;
  const callee = { type: 'Identifier', value: nameOf(property.value as string) };
  Object.assign(call, { callee, args: [object, ...call.args] });
}

function isStrip(node: Node): boolean {
  const { callee, args } = node as MethodCall;
  const isMethod = node.type === 'CallExpression' && callee.type === 'MemberExpression';
  return isMethod && !callee.computed && args.length > 0 && isNamed(callee.property.value);
}

const isNamed = (method: unknown): boolean => Object.hasOwn(ENDS, String(method));

/** As in Python: each of `characters`, in any order; white space where there are none. */
function stripped(text: string, characters: unknown, left: boolean, right: boolean): string {
  const gone = typeof characters === 'string' ? new Set(characters) : null;
  const isGone = (one: string | undefined): boolean =>
    one !== undefined && (gone ? gone.has(one) : one.trim() === '');
  const letters = Array.from(text);
  let [start, end] = [0, letters.length];
  while (left && start < end && isGone(letters[start])) start++;
  while (right && end > start && isGone(letters[end - 1])) end--;
  return letters.slice(start, end).join('');
}
