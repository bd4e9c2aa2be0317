// Renames the columns of rows, for files with other names than a reader expects.
import { formatValue } from '../runtime/format-value.js';
import { argumentError, dataError, valueError } from '../runtime/input-errors.js';
import { isPlainObject } from '../runtime/is-object.js';
import { ownValue } from '../runtime/own-value.js';

/** New name of each renamed column, by its name in the file. */
export type Columns = Readonly<Record<string, string>>;

/** A row and its location, which is computed only for errors. */
interface Located {
  row: Record<string, unknown>;
  location(): string;
}

/** Maximum number of columns in a message. */
const MAX_SHOWN = 12;

/**
 * Checks the option `columns`; undefined without a column. Throws DS_ARGUMENT for other values than
 * texts, and for two columns of one name.
 */
export function readColumns(op: string, columns: unknown): Columns | undefined {
  if (columns === undefined) return undefined;
  if (!isPlainObject(columns)) {
    throw valueError(op, 'new names by column, such as { question: "prompt" }', columns);
  }
  const names = Object.values(columns);
  for (const [column, name] of Object.entries(columns)) {
    if (typeof name === 'string' && name !== '') continue;
    throw argumentError(`${op} ${column}`, 'the new name of the column', formatValue(name));
  }
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined)
    throw argumentError(op, 'different new names', `two ${formatValue(twice)}`);
  return names.length === 0 ? undefined : (columns as Columns);
}

/**
 * Returns the row with renamed columns, in their order. Throws DS_DATA with file and line if the
 * row lacks a column, or has another column of the new name.
 */
export function renameColumns<Item extends Located>(
  located: Item,
  columns: Columns | undefined,
): Item {
  if (columns === undefined) return located;
  const { row, location } = located;
  for (const [column, name] of Object.entries(columns)) {
    if (!Object.hasOwn(row, column)) {
      const expected = `the column ${JSON.stringify(column)}, which \`columns\` renames`;
      throw dataError(location(), expected, formatColumns(row));
    }
    if (!Object.hasOwn(row, name) || Object.hasOwn(columns, name)) continue;
    const expected = `no column ${JSON.stringify(name)}, the new name of ${JSON.stringify(column)}`;
    const hint = `Rename it too, such as ${JSON.stringify({ [name]: `old_${name}` })}.`;
    throw dataError(location(), expected, formatColumns(row), hint);
  }
  const entries = Object.entries(row).map(([name, value]) => [
    ownValue(columns, name) ?? name,
    value,
  ]);
  return { ...located, row: Object.fromEntries(entries) };
}

function formatColumns(row: object): string {
  const names = Object.keys(row);
  const shown = names.slice(0, MAX_SHOWN).map((name) => JSON.stringify(name));
  const more = names.length > MAX_SHOWN ? `, and ${names.length - MAX_SHOWN} more` : '';
  return names.length === 0 ? 'no column' : `${shown.join(', ')}${more}`;
}
