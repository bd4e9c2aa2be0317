// Reads a configuration from a file (JSON with comments and trailing commas), base64 or an object.
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import {
  findNodeAtLocation,
  getNodeValue,
  type Node,
  type ParseError,
  parseTree,
  printParseErrorCode,
} from 'jsonc-parser';

import { DsError } from '../errors.js';
import { isSection, type Section } from './schema.js';

/** Keys and indices from the top of the file down to a value. */
export type Path = readonly (string | number)[];

/** A configuration as it was written, with the way back to its place in the file. */
export interface ConfigDocument {
  readonly value: Section;
  /** "ds_config.json:12:5: zero_optimization.stage", or the dotted path alone for an object. */
  readonly locate: (path: Path) => string;
}

export function dotted(path: Path): string {
  return path.join('.') || 'config';
}

/**
 * `source` is a file, URL-safe base64 of its contents, or an object, which is copied. Throws
 * DS_CONFIG for an unreadable file, a syntax error, a key given twice, or anything that is not an
 * object.
 */
export function readDocument(source: unknown): ConfigDocument {
  if (typeof source === 'string') {
    const decoded = decodeBase64(source);
    return decoded === null
      ? parseConfig(readText(source), basename(source))
      : parseConfig(decoded, 'base64');
  }
  if (!isSection(source)) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'config',
      expected: 'the path of a ds_config.json, or an object',
      got: source === null ? 'null' : Array.isArray(source) ? 'an array' : typeof source,
    });
  }
  return { value: copyJson(source) as Section, locate: dotted };
}

/**
 * The text behind a base64 string that holds a JSON object; null for anything else, such as a path.
 */
function decodeBase64(source: string): string | null {
  if (!/^[\w-]+={0,2}$/.test(source)) return null;
  const text = Buffer.from(source, 'base64url').toString('utf8').trim();
  return text.startsWith('{') && text.endsWith('}') ? text : null;
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8').replace(/^\uFEFF/, '');
  } catch (cause) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'config',
      expected: 'the path of a readable ds_config.json',
      got: (cause as Error).message,
      hint: 'Check the path; it is relative to the working directory.',
      cause,
    });
  }
}

/** Parses `text`; `name` stands for the file in messages. Throws DS_CONFIG with line and column. */
export function parseConfig(text: string, name: string): ConfigDocument {
  const errors: ParseError[] = [];
  const root = parseTree(text, errors, { allowTrailingComma: true });
  const first = errors[0];
  if (first) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: `${name}:${position(text, first.offset)}`,
      expected: 'JSON (comments and trailing commas are fine)',
      got: spaced(printParseErrorCode(first.error)),
    });
  }
  if (root?.type !== 'object') {
    throw new DsError({
      code: 'DS_CONFIG',
      op: name,
      expected: 'one JSON object',
      got: root ? `a JSON ${root.type}` : 'an empty file',
    });
  }
  const locate = (path: Path): string => {
    const node = nearest(root, path);
    return `${name}:${position(text, node.offset)}: ${dotted(path)}`;
  };
  refuseDuplicates(root, [], locate);
  return { value: getNodeValue(root) as Section, locate };
}

/** The property at `path`, or the closest section around it that exists. */
function nearest(root: Node, path: Path): Node {
  for (let length = path.length; length > 0; --length) {
    const node = findNodeAtLocation(root, path.slice(0, length) as (string | number)[]);
    if (node) return node.parent?.type === 'property' ? node.parent : node;
  }
  return root;
}

function refuseDuplicates(node: Node, path: Path, locate: (path: Path) => string): void {
  const seen = new Set<string>();
  for (const [index, child] of (node.children ?? []).entries()) {
    const [name, value] = child.type === 'property' ? (child.children ?? []) : [];
    const key = name ? String(name.value) : index;
    if (typeof key === 'string' && seen.has(key)) {
      throw new DsError({
        code: 'DS_CONFIG',
        op: locate([...path, key]),
        expected: 'every key once',
        got: `"${key}" twice in the same section`,
        hint: 'Keep one of them.',
      });
    }
    if (typeof key === 'string') seen.add(key);
    refuseDuplicates(value ?? child, [...path, key], locate);
  }
}

function position(text: string, offset: number): string {
  const before = text.slice(0, offset);
  const line = before.split('\n').length;
  return `${line}:${offset - before.lastIndexOf('\n')}`;
}

/** "PropertyNameExpected" to "property name expected". */
function spaced(code: string): string {
  return code.replace(/(?!^)([A-Z])/g, ' $1').toLowerCase();
}

/** A deep copy; an undefined property is an absent one. */
function copyJson(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(copyJson);
  if (!isSection(value)) return value;
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(entries.map(([key, item]) => [key, copyJson(item)]));
}
