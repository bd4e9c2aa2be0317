// Tests which names belong to saves, which files are opened by name, and files that are replaced
// during the open.
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileSlicesOf } from '../../lib/checkpoint/file-slices.js';
import { openInside } from '../../lib/checkpoint/folder.js';
import { soloWorld } from '../../lib/checkpoint/index.js';
import { isUnfinishedFile } from '../../lib/checkpoint/replace-file.js';
import { openStable } from '../../lib/checkpoint/stable-files.js';
import { isExportFile } from '../../lib/checkpoint/weight-files.js';
import { joinedWorlds } from './joined-worlds.js';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-names-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

test.each([
  ['config.json', true],
  ['generation_config.json', true],
  ['model.safetensors', true],
  ['model.safetensors.index.json', true],
  ['model-00001-of-00002.safetensors', true],
  ['model-100001-of-100002.safetensors', true],
  ['model-0001-of-00002.safetensors', false],
  ['model-00001-of-0002.safetensors', false],
  ['xmodel-00001-of-00002.safetensors', false],
  ['model-00001-of-00002.safetensors~', false],
  ['model-0000x-of-00002.safetensors', false],
  ['mine.json', false],
])('the file name %s may come from an export: %p', (name, isOurs) => {
  expect(isExportFile(name)).toBe(isOurs);
});

test.each([
  ['.a.json.01234567-89ab-cdef-0123-456789abcdef', true],
  ['.a.json.01234567-89ab-456789abcdef', false],
  ['a.json.01234567-89ab-cdef-0123-456789abcdef', false],
  ['x.a.json.01234567-89ab-cdef-0123-456789abcdef', false],
  ['.01234567-89ab-cdef-0123-456789abcdef', false],
  ['.a.01234567-89ab-cdef-0123-456789abcdef0', false],
  ['.a.json.01234567-89ab-cdef-0123-456789abcdeX', false],
])('the file name %s belongs to an unfinished file: %p', (name, isDraft) => {
  expect(isUnfinishedFile(name)).toBe(isDraft);
});

test('only a regular file of the folder itself is opened', async () => {
  writeFileSync(join(dir, 'file'), 'text');
  mkdirSync(join(dir, 'folder'));
  symlinkSync(join(dir, 'file'), join(dir, 'link'));
  const opened = await openInside(dir, 'file');
  expect(opened.bytes).toBe(4);
  await opened.close();
  const refusals: [string, string, RegExp][] = [
    ['folder', 'a file', /folder/],
    ['absent', 'an existing file', /no such file/],
    ['link', 'a regular file', /a symbolic link/],
    ['../file', 'names of files directly in this folder', /"\.\.\/file"/],
    ['', 'names of files directly in this folder', /""/],
  ];
  for (const [name, expected, got] of refusals) {
    await expect(openInside(dir, name)).rejects.toMatchObject({
      code: 'DS_CHECKPOINT',
      expected,
      got: expect.stringMatching(got),
    });
  }
  await expect(openInside(join(dir, 'file'), 'x')).rejects.toMatchObject({
    expected: 'an existing file',
  });
});

test('pieces of a tensor: all, none, or experts with their halves in separate files', () => {
  expect(fileSlicesOf([], [2])).toEqual([]);
  expect(fileSlicesOf(['a'], [2, 3])).toEqual([
    { name: 'a', box: { offset: [0, 0], shape: [2, 3] }, shape: [2, 3] },
  ]);
  const piece = (name: string, index: number, row: number) => ({
    name,
    shape: [2, 3],
    box: { offset: [index, row, 0], shape: [1, 2, 3] },
  });
  expect(fileSlicesOf(['e.*.gate', 'e.*.up'], [2, 4, 3])).toEqual([
    piece('e.0.gate', 0, 0),
    piece('e.0.up', 0, 2),
    piece('e.1.gate', 1, 0),
    piece('e.1.up', 1, 2),
  ]);
});

describe('files that are replaced while they are opened', () => {
  /**
   * Opens that find these states in order, then the last one again; counts files that stay open.
   */
  function openStates(states: readonly (string | Error)[], now = (id: string) => id) {
    let [calls, open] = [0, 0];
    const call = async () => {
      const state = states[Math.min(calls++, states.length - 1)] as string | Error;
      if (state instanceof Error) throw state;
      ++open;
      return { id: state, currentIds: async () => now(state), close: async () => void --open };
    };
    return { call, left: () => open, calls: () => calls };
  }

  test('the first stable set of files is opened', async () => {
    let turn = 0;
    const { call, left, calls } = openStates(['a', 'b', 'c'], (id) => (++turn < 3 ? 'other' : id));
    expect((await openStable(soloWorld, 'here', call)).id).toBe('c');
    expect([left(), calls()]).toEqual([1, 3]);
  });

  test('after fifty attempts an error is thrown, and no file stays open', async () => {
    const { call, left, calls } = openStates(['a'], () => 'other');
    await expect(openStable(soloWorld, 'here', call)).rejects.toMatchObject({
      code: 'DS_CHECKPOINT',
      op: 'here',
      got: 'files that changed 50 times',
      expected: 'files that do not change while they are opened',
    });
    expect([left(), calls()]).toEqual([0, 50]);
  });

  test('a failure counts only if it repeats', async () => {
    const lost = new Error('damaged');
    const once = openStates([lost, 'a']);
    expect((await openStable(soloWorld, 'here', once.call)).id).toBe('a');
    const twice = openStates([lost]);
    await expect(openStable(soloWorld, 'here', twice.call)).rejects.toBe(lost);
    expect(twice.calls()).toBe(2);
  });

  test('ranks that see different files', async () => {
    const opens = [openStates(['a']), openStates(['b'])];
    const results = await Promise.allSettled(
      joinedWorlds(2).map((world, rank) =>
        openStable(world, 'here', (opens[rank] as (typeof opens)[0]).call),
      ),
    );
    for (const result of results) {
      expect(result).toMatchObject({
        status: 'rejected',
        reason: { expected: 'the same checkpoint as on rank 0' },
      });
    }
    expect(opens.map(({ left }) => left())).toEqual([0, 0]);
  });
});
