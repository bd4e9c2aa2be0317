// The source of each value of a resolved configuration.
import { formatLocation } from './config-error.js';
import type { Draft } from './draft.js';
import { dottedPath, type Path } from './parse.js';
import { isSection, type Section } from './schema.js';

/**
 * The source of a value. `file`: a file (`at` is "file:line:column") or an object; `name` is the
 * user's name of the key if it is not the current name. `default`: the schema. `auto` and
 * `derived`: the value `of`.
 */
export type Origin =
  | { readonly from: 'file'; readonly at: string | null; readonly name?: string }
  | { readonly from: 'default' }
  | { readonly from: 'auto' | 'derived'; readonly of: string };

/** Origins by dotted path, for every value that is not a section. */
export type Origins = Readonly<Record<string, Origin>>;

/**
 * Returns the origins of all values of `config`, resolved from `draft`; `given` is the user's file.
 */
export function originsOf(config: Section, draft: Draft, given: Section): Origins {
  const origins: Record<string, Origin> = {};
  const visit = (section: Section, written: unknown, path: Path): void => {
    for (const [key, item] of Object.entries(section)) {
      const here = [...path, key];
      const source = isSection(written) ? written[key] : undefined;
      if (isSection(item) && Object.keys(item).length > 0) visit(item, source, here);
      else origins[dottedPath(here)] = originOf(draft, here, source !== undefined);
    }
  };
  visit(config, given, []);
  return origins;
}

function originOf(draft: Draft, path: Path, given: boolean): Origin {
  const filled = draft.filled.get(dottedPath(path));
  if (filled) return filled;
  if (!given) return { from: 'default' };
  const { path: name, file, location } = draft.where(path);
  const at = file && formatLocation(file, location, '');
  return name === dottedPath(path) ? { from: 'file', at } : { from: 'file', at, name };
}

/** Returns an origin as text: "ds_config.json:3:5", "default", "derived from ...". */
export function originLine(origin: Origin): string {
  if (origin.from === 'default') return 'default';
  if (origin.from !== 'file') return `${origin.from}: ${origin.of}`;
  return `${origin.at ?? 'given'}${origin.name ? ` as ${origin.name}` : ''}`;
}
