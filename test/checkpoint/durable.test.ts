// Tests the order of sync and rename in a save: after a power loss, a renamed file or folder must
// be complete.
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import * as filePromises from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { replaceFile } from '../../lib/checkpoint/replace-file.js';
import * as files from '../../lib/runtime/file.js';
import { content, save } from './content.js';

jest.mock('../../lib/runtime/file.js', () => {
  const actual = jest.requireActual('../../lib/runtime/file.js');
  const { writeFile, syncPath, renameExclusive } = actual;
  return {
    ...actual,
    writeFile: jest.fn(writeFile),
    syncPath: jest.fn(syncPath),
    renameExclusive: jest.fn(renameExclusive),
  };
});
jest.mock('node:fs/promises', () => {
  const actual = jest.requireActual('node:fs/promises');
  return { ...actual, writeFile: jest.fn(actual.writeFile), rename: jest.fn(actual.rename) };
});

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-durable-'));
  for (const mock of [files.writeFile, files.syncPath, files.renameExclusive]) {
    jest.mocked(mock as () => unknown).mockClear();
  }
  for (const mock of [filePromises.writeFile, filePromises.rename]) {
    jest.mocked(mock as () => unknown).mockClear();
  }
});
afterEach(() => rmSync(dir, { recursive: true }));

/** Replaces names of claims, which change from save to save. */
const nameOf = (path: unknown): string =>
  String(path)
    .slice(dir.length + 1)
    .replace(/^(\.[a-z]+(?:-t)?)-[^/~]+/, '$1');

/** Writes, syncs and renames in order: "sync t/manifest.json". */
function order(): string[] {
  const calls = (mock: unknown, text: (...paths: string[]) => string) => {
    const { calls: all, invocationCallOrder } = (mock as jest.Mock).mock;
    return all.map((paths, i) => ({ at: invocationCallOrder[i] ?? 0, text: text(...paths) }));
  };
  const moves = (from: string, to: string) => `rename ${nameOf(from)} ${nameOf(to)}`;
  return [
    ...calls(files.writeFile, (path) => `write ${nameOf(path)}`),
    ...calls(filePromises.writeFile, (path) => `write ${nameOf(path)}`),
    ...calls(files.syncPath, (path) => `sync ${nameOf(path)}`),
    ...calls(files.renameExclusive, moves),
    ...calls(filePromises.rename, moves),
  ]
    .sort((a, b) => a.at - b.at)
    .map(({ text }) => text);
}

/** Each file of a folder is synced after its last write, and then the folder before its rename. */
function requireSynced(steps: readonly string[], folder: string, rename: string): void {
  const renamed = steps.indexOf(rename);
  expect([rename, renamed]).not.toEqual([rename, -1]);
  const written = steps.filter((step) => step.startsWith(`write ${folder}/`));
  expect(written.length).toBeGreaterThan(0);
  for (const write of written) {
    const last = steps.lastIndexOf(write);
    const synced = steps.indexOf(write.replace('write', 'sync'), last);
    expect([write, last < synced && synced < renamed]).toEqual([write, true]);
  }
  const fullValue = steps.lastIndexOf(`sync ${folder}`, renamed);
  const lastWrite = Math.max(...written.map((write) => steps.lastIndexOf(write)));
  expect([`sync ${folder}`, lastWrite < fullValue]).toEqual([`sync ${folder}`, true]);
}

test('a checkpoint is synced in order: files, folder, name, and then latest', async () => {
  await save(dir, 't', content(1));
  const steps = order();
  const rename = 'rename .tmp-t t';
  expect(steps.filter((step) => step === 'write .tmp-t/manifest.json')).toHaveLength(1);
  expect(steps.filter((step) => /write .*safetensors/.test(step)).length).toBeGreaterThan(1);
  requireSynced(steps, '.tmp-t', rename);
  const at = (text: string, from = 0) => {
    const found = steps.indexOf(text, from);
    expect([text, found]).not.toEqual([text, -1]);
    return found;
  };
  const shown = at('sync ', at(rename));
  const pointed = at('rename .latest latest', at('sync .latest', at('write .latest', shown)));
  at('sync ', pointed);
});

test('a checkpoint that replaces another one is synced before the old one is deleted', async () => {
  await save(dir, 't', content(1));
  const before = order().length;
  await save(dir, 't', content(2));
  requireSynced(order().slice(before), '.tmp-t', 'rename .tmp-t t');
  expect(readdirSync(dir).sort()).toEqual(['latest', 't']);
});

test('a replaced file is synced before and after its rename', async () => {
  const path = join(dir, 'a.json');
  writeFileSync(path, 'old');
  await replaceFile(path, 'new');
  const steps = order();
  const [write, sync, rename] = ['write', 'sync', 'rename'].map((kind) =>
    steps.findIndex((step) => step.startsWith(kind)),
  ) as [number, number, number];
  expect(steps).toEqual([steps[write], steps[sync], steps[rename], ...steps.slice(3)]);
  expect(steps[write]?.split(' ')[1]).toBe(steps[sync]?.split(' ')[1]);
  expect(readFileSync(path, 'utf8')).toBe('new');
});
