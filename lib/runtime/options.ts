// Options objects of public functions: what is none, or has a name that nobody reads, is refused.
import { DsError } from '../errors.js';

/** Every name of an options interface; the compiler keeps the list complete. */
export type OptionNames<Options> = Readonly<Record<keyof Options & string, true>>;

/**
 * Throws DS_ARGUMENT unless `options` is an object all of whose names are `known`. What is undefined counts as left out.
 * Python refuses unknown keyword arguments; without this, JavaScript would ignore "client_state" in silence.
 */
export function requireOptions(
  op: string,
  options: unknown,
  known: Readonly<Record<string, true>>,
): void {
  const names = Object.keys(known);
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    const example = `{ ${names[0]}: ... }`;
    throw refused(op, `an object of options, such as ${example}`, describe(options), '');
  }
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || Object.hasOwn(known, name)) continue;
    const meant = names.find((one) => bare(one) === bare(name));
    const hint = meant ? `Did you mean "${meant}"?` : '';
    throw refused(op, `the options ${names.join(', ')}`, `"${name}"`, hint);
  }
}

/** Without case and underscores: DeepSpeed's names, and ours. */
const bare = (name: string): string => name.replaceAll('_', '').toLowerCase();

function describe(value: unknown): string {
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}

function refused(op: string, expected: string, got: string, hint: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op, expected, got, hint });
}
