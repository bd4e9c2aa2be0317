// Names of models, revisions and files. Everything that becomes a path or a URL passes here.

import { existsSync } from 'node:fs';
import { argumentError } from '../runtime/input-errors.js';
import { required } from '../runtime/required.js';

/** A part of a name. Source: the rules of the Hugging Face hub. */
const PART = /^\w(?:[\w.-]{0,94}\w)?$/;
/** Folders that begin like this are paths, not names. */
const FOREIGN = new Set(['models', 'datasets', 'spaces', 'model', 'dataset', 'space']);
const COMMIT = /^[0-9a-f]{40}$/;
/** Longest revision, and longest path of a file in a repository. */
const [REVISION_LENGTH, PATH_LENGTH, PART_LENGTH] = [255, 1024, 255];

/** Returns true if `text` can name a model of the hub: "ORG/NAME" or "NAME". */
export function isModelName(text: string): boolean {
  const parts = text.split('/');
  if (parts.length > 2 || !parts.every((part) => PART.test(part))) return false;
  if (parts.length === 2 && FOREIGN.has(required(parts[0]))) return false;
  return !/--|\.\.|\.git$|\.ipynb$/.test(text);
}

/**
 * Returns true if `text` names a model of the hub and nothing on this machine has that path. The
 * name of a GGUF file is always a path.
 */
export function isRemote(text: string): boolean {
  return isModelName(text) && !text.endsWith('.gguf') && !existsSync(text);
}

/** Returns true for a full commit id. The files of a commit never change. */
export const isCommit = (revision: string): boolean => COMMIT.test(revision);

/** Throws DS_ARGUMENT unless `name` is "ORG/NAME" or "NAME". */
export function requireModelName(op: string, name: unknown): asserts name is string {
  if (typeof name === 'string' && isModelName(name)) return;
  const hint = 'An example is "Qwen/Qwen3-0.6B".';
  throw argumentError(op, 'the name of a model of the hub, ORG/NAME', printable(name), hint);
}

/** Throws DS_ARGUMENT unless `revision` can be a branch, a tag or a commit. */
export function requireRevision(op: string, revision: unknown): asserts revision is string {
  const isText = typeof revision === 'string' && revision.length <= REVISION_LENGTH;
  const hasParts = isText && revision.split('/').every((part) => /^[\w+@-][\w.+@-]*$/.test(part));
  if (hasParts && !revision.includes('..') && !revision.endsWith('.lock')) return;
  throw argumentError(op, 'a branch, a tag or a commit', printable(revision));
}

/** Names of devices on Windows; a file of this name cannot exist there. */
const DEVICE = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i;

/** Returns why the path of a file from a server is unsafe on this or another system, or null. */
export function unsafePath(path: unknown): string | null {
  if (typeof path !== 'string' || path === '') return 'no text';
  if (path.length > PATH_LENGTH) return `more than ${PATH_LENGTH} characters`;
  if (/[\p{Cc}\u2028\u2029]/u.test(path)) return 'a control character';
  if (path.includes('\\')) return 'a backslash';
  if (path.includes(':')) return 'a drive or a stream (":")';
  if (path.startsWith('/')) return 'a leading "/"';
  for (const part of path.split('/')) {
    if (part === '' || part === '.' || part === '..') return `the part "${part}"`;
    if (Buffer.byteLength(part) > PART_LENGTH) return `a part of more than ${PART_LENGTH} bytes`;
    if (/[. ]$/.test(part)) return 'a part that ends with a dot or a space';
    if (DEVICE.test(part)) return 'the name of a device';
  }
  return null;
}

/** Returns a text of a server or a caller on one line of at most 120 characters, for messages. */
export function printable(text: unknown): string {
  if (typeof text !== 'string') return String(text).slice(0, 120);
  const plain = text.replaceAll(/[\p{Cc}\u2028\u2029]+/gu, ' ').trim();
  return JSON.stringify(plain.length > 120 ? `${plain.slice(0, 120)}..` : plain);
}
