// Reads the file of --config, which contains arguments of `ds train` in YAML or JSON.

import { readFileSync } from 'node:fs';
import type { Document, LineCounter, Pair, Scalar } from 'yaml';
import { shorten } from '../../config/config-error.js';
import { DsError } from '../../errors.js';
import { argumentError } from '../../runtime/input-errors.js';
import { requireShallow } from '../../runtime/parse-json.js';
import { errorMessage } from '../../runtime/system-error.js';
import { type CommandArgument, toUnderscores } from './split-arguments.js';

/**
 * Returns the arguments in `file` with their locations. Arguments with the value null are left out.
 * Throws DS_IO if the file cannot be read. Throws DS_ARGUMENT if it is not YAML, is not a map of
 * names and values, or sets max_length to null.
 */
export async function readRunFile(file: string): Promise<CommandArgument[]> {
  const text = readText(file);
  // Loaded only here, because most runs have no such file.
  const yaml = await import('yaml');
  const lines = new yaml.LineCounter();
  const document = parseValue(file, () => {
    requireFlatTokens(yaml, text);
    return yaml.parseDocument(text, { lineCounter: lines, prettyErrors: false });
  });
  const [error] = document.errors;
  if (error) throw argumentError(formatLocation(file, lines, error.pos[0]), 'YAML', error.message);
  const { contents } = document;
  if (!yaml.isMap<Scalar>(contents)) {
    throw argumentError(
      file,
      'names and values, such as "learning_rate: 2e-5"',
      describeContents(contents),
    );
  }
  const pairs = contents.items.map((pair) => readArgument(pair, { file, lines, document }));
  return pairs.filter(isGiven);
}

/**
 * Returns whether the argument has a value. Throws DS_ARGUMENT for max_length: null. In TRL it
 * means no limit, which is not supported. For the older names of max_length, null is the default.
 */
function isGiven({ location, name, values }: CommandArgument): boolean {
  if (values[0] !== null) return true;
  if (name !== 'max_length') return false;
  const hint =
    "The model's longest, max_position_embeddings of its config.json, cuts no other row.";
  throw argumentError(location, 'a number of tokens, at which rows are cut', 'null', hint);
}

/** Maximum nesting of lists and maps in a file. */
const MAX_DEPTH = 100;

/**
 * Throws an Error if values are nested deeper. The composer of YAML is recursive. Near the end of
 * the stack, V8 aborts the process when it compiles a regular expression.
 */
function requireFlatTokens({ Lexer, Parser }: typeof import('yaml'), text: string): void {
  const parser = new Parser();
  for (const lexeme of new Lexer().lex(text)) {
    for (const _ of parser.next(lexeme));
    if (parser.stack.length > MAX_DEPTH)
      throw new Error(`more than ${MAX_DEPTH} levels of nesting`);
  }
}

interface RunFile {
  file: string;
  lines: LineCounter;
  document: Document;
}

function readArgument(
  { key, value }: Pair<Scalar, unknown>,
  { file, lines, document }: RunFile,
): CommandArgument {
  const begin = formatLocation(file, lines, key.range?.[0] ?? 0);
  if (typeof key.value === 'object' || key.value === undefined) {
    throw argumentError(begin, 'the name of an argument', 'a list, a record or an alias');
  }
  const location = `${begin}: ${shorten(String(key.value))}`;
  const node = value as { toJS?: (document: Document) => unknown } | null;
  const parsed = parseValue(location, () => {
    const plain = node?.toJS ? node.toJS(document) : null;
    requireShallow(plain);
    return plain;
  });
  return { location, name: toUnderscores(String(key.value)), values: [parsed] };
}

/**
 * Calls `body`, and converts its errors to DS_ARGUMENT: YAML throws for unknown or too many
 * aliases, and for deep nesting.
 */
function parseValue<T>(location: string, body: () => T): T {
  try {
    return body();
  } catch (cause) {
    const hint = 'Write each value out, without anchors and aliases.';
    throw argumentError(location, 'YAML of names and values', errorMessage(cause), hint);
  }
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    const got = errorMessage(cause);
    const expected = 'a file of arguments that can be read';
    throw new DsError({ code: 'DS_IO', op: `--config ${file}`, expected, got, cause });
  }
}

function formatLocation(file: string, lines: LineCounter, offset: number): string {
  const { line, col } = lines.linePos(offset);
  return `${file}:${line}:${col}`;
}

function describeContents(contents: unknown): string {
  if (contents === null) return 'an empty file';
  return 'items' in (contents as object) ? 'a list' : 'one value';
}
