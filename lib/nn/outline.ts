// A model as text: a line per module, with its shapes and its number of parameters.
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { Tensor } from '../tensor/index.js';
import { Parameter } from './parameter.js';

/** The members of a module (module.ts) that the outline shows. */
interface OutlinedModule {
  parameters(): Parameter[];
  numParameters(): number;
}

type Fields<M extends OutlinedModule> = (module: M) => Iterable<[string, Tensor | M]>;

/** A module's line and the lines below it. */
interface Entry {
  name: string;
  /** "Linear, weight [2, 4] f32, bias [2] f32: 10". */
  text: string;
  below: Entry[];
}

/**
 * Returns the tree below `module`: "Mlp: 58 parameters", then a line per module. Equal consecutive
 * numbered modules share one line, "blocks.0 to blocks.11: 12 x Block". A tied parameter counts at
 * its first name.
 */
export function outline<M extends OutlinedModule>(module: M, fields: Fields<M>): string {
  const seen = new Map<Parameter, string>();
  const { text, below } = createEntry(module, { name: '', path: '', fields, seen });
  const wanting = module.parameters().filter(({ requiresGrad }) => requiresGrad);
  const trained = wanting.reduce((sum, { numel }) => sum + numel, 0);
  const total = module.numParameters();
  const frozen = total > trained ? `, ${formatCount(trained)} of them trained` : '';
  const head = text.replace(/(: [\d,]+)?$/, `: ${formatCount(total)} parameters${frozen}`);
  return [head, ...formatEntries(below, '  ')].join('\n');
}

const formatCount = (count: number): string => count.toLocaleString('en-US');

interface OutlineEntry<M extends OutlinedModule> {
  name: string;
  /** Path from the root, for the names that tied parameters refer to. */
  path: string;
  fields: Fields<M>;
  /** Parameters so far, by their first path. */
  seen: Map<Parameter, string>;
}

function createEntry<M extends OutlinedModule>(
  module: M,
  { name, path, fields, seen }: OutlineEntry<M>,
): Entry {
  const own: string[] = [];
  const below: Entry[] = [];
  const before = total(seen);
  for (const [key, field] of fields(module)) {
    const at = path === '' ? key : `${path}.${key}`;
    if (field instanceof Tensor) own.push(formatTensor(key, field, at, seen));
    else below.push(createEntry(field, { name: key, path: at, fields, seen }));
  }
  const count = total(seen) - before;
  const parts = [module.constructor.name, ...own].join(', ');
  return { name, text: count > 0 ? `${parts}: ${formatCount(count)}` : parts, below };
}

function total(seen: ReadonlyMap<Parameter, string>): number {
  let sum = 0;
  for (const { numel } of seen.keys()) sum += numel;
  return sum;
}

function formatTensor(key: string, tensor: Tensor, path: string, seen: Map<Parameter, string>) {
  if (!(tensor instanceof Parameter)) return `buffer ${key} ${describe(tensor)}`;
  const first = seen.get(tensor);
  if (first !== undefined) return `${key} tied to ${first}`;
  seen.set(tensor, path);
  return `${key} ${describe(tensor)}${tensor.requiresGrad ? '' : ' frozen'}`;
}

function formatEntries(entries: readonly Entry[], indent: string): string[] {
  const lines: string[] = [];
  for (let i = 0; i < entries.length; ) {
    const first = required(entries[i]);
    let end = i + 1;
    while (end < entries.length && isNext(required(entries[end - 1]), required(entries[end])))
      end++;
    const last = required(entries[end - 1]);
    const label = end - i > 1 ? `${first.name} to ${last.name}: ${end - i} x ` : `${first.name}: `;
    const each = end - i > 1 && / [\d,]+$/.test(first.text) ? ' each' : '';
    lines.push(
      `${indent}${label}${first.text}${each}`,
      ...formatEntries(first.below, `${indent}  `),
    );
    i = end;
  }
  return lines;
}

/** Returns whether `next` follows `entry` in a list and looks the same. */
function isNext(entry: Entry, next: Entry): boolean {
  const [stem, number] = splitNumber(entry.name);
  const [nextStem, nextNumber] = splitNumber(next.name);
  const consecutive = number !== null && stem === nextStem && nextNumber === number + 1;
  return consecutive && formatEntry(entry) === formatEntry(next);
}

function splitNumber(name: string): [string, number | null] {
  const match = /^(.*?)(\d+)$/.exec(name);
  return match ? [required(match[1]), Number(match[2])] : [name, null];
}

const formatEntry = ({ text, below }: Entry): string =>
  [text, ...below.map((each) => `${each.name} ${formatEntry(each)}`)].join('\n');
