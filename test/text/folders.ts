// Folders for tests of the text room, and errors with their code.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DsError } from '../../lib/errors.js';

// biome-ignore lint/suspicious/noExplicitAny: the content of a JSON file, whatever it is.
export type Edit = (tokenizer: any) => unknown;

const result: string[] = [];

/** An empty folder, until removeFolders(). */
export function emptyFolder(): string {
  const path = mkdtempSync(join(tmpdir(), 'ds-text-'));
  result.push(path);
  return path;
}

/** A folder with nothing but this tokenizer.json. */
export function folderOf(tokenizer: object): string {
  const path = emptyFolder();
  writeFileSync(join(path, 'tokenizer.json'), JSON.stringify(tokenizer));
  return path;
}

/** Removes the folders of this file. */
export function removeFolders(): void {
  for (const path of result) rmSync(path, { recursive: true, force: true });
}

/** A copy of a tokenizer's folder, its files edited. */
export function folderWith(
  from: string,
  changes: { config?: object; edit?: Edit },
): { path: string; write(name: string, text: string): void } {
  const path = emptyFolder();
  const write = (name: string, text: string): void => writeFileSync(join(path, name), text);
  cpSync(join(from, 'tokenizer.json'), join(path, 'tokenizer.json'));
  write('tokenizer_config.json', JSON.stringify(changes.config ?? {}));
  if (changes.edit) {
    const tokenizer = JSON.parse(readFileSync(join(path, 'tokenizer.json'), 'utf8'));
    changes.edit(tokenizer);
    write('tokenizer.json', JSON.stringify(tokenizer));
  }
  return { path, write };
}

/** Passes if `body` throws a DsError with this code and a matching message. */
export function expectError(body: () => unknown, code: string, message: RegExp): void {
  let thrown: unknown = null;
  try {
    body();
  } catch (error) {
    thrown = error;
  }
  requireError(thrown, code, message);
}

/** The same for an asynchronous call. */
export async function expectRejection(
  body: () => Promise<unknown>,
  code: string,
  message: RegExp,
): Promise<void> {
  const thrown = await body().then(
    () => null,
    (error: unknown) => error,
  );
  requireError(thrown, code, message);
}

function requireError(thrown: unknown, code: string, message: RegExp): void {
  assert.ok(thrown instanceof DsError, `no DsError: ${thrown}`);
  assert.equal(thrown.code, code);
  assert.match(thrown.message, message);
}
