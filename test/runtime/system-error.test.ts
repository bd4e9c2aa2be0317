// Errors of the system that no file call of ours converts: place, expected, got and fix.
import { spawnSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { data, initialize, nn, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { absolutePath, systemError } from '../../lib/runtime/system-error.js';
import { refusal, thrownBy } from '../support/refusal.js';

afterEach(() => jest.restoreAllMocks());

const GONE = { code: 'DS_IO', op: 'working directory', hint: expect.stringMatching(/^Change to/) };

/** As Node does in a folder that was deleted. */
function withoutFolder(): void {
  const cause = { code: 'ENOENT', syscall: 'uv_cwd', errno: -2 };
  jest.spyOn(process, 'cwd').mockImplementation(() => {
    throw Object.assign(new Error('ENOENT: no such file or directory, uv_cwd'), cause);
  });
}

test('too many open files are DS_LIMIT with a hint', () => {
  const fields = { code: 'EMFILE', syscall: 'open', path: '/a', errno: -24 };
  const error = Object.assign(new Error("EMFILE: too many open files, open '/a'"), fields);
  expect(systemError(error)).toMatchObject({
    code: 'DS_LIMIT',
    op: 'open /a',
    expected: 'a free file descriptor',
    cause: error,
    hint: expect.stringContaining('ulimit -n'),
  });
  expect(systemError(new Error('another'))).toBeNull();
});

test('relative paths in a deleted working directory are DS_IO', async () => {
  const config = { train_batch_size: 1, optimizer: { type: 'AdamW' } } as const;
  const { engine } = await initialize({ model: new nn.Linear(2, 2), config, device: 'cpu' });
  withoutFolder();
  expect(thrownBy(() => absolutePath('x'))).toMatchObject(GONE);
  expect(absolutePath('/x/../y')).toBe('/y');
  expect(await refusal(() => engine.saveCheckpoint('x'))).toMatchObject(GONE);
  const files = { files: 'x*.jsonl', tokenizer: '/none', length: 4 };
  expect((await refusal(() => text.TextDataset.open(files as never))).code).toMatch(/^DS_/);
  expect(thrownBy(() => new data.TokenDataset('x' as never, {} as never)).code).toMatch(/^DS_/);
  engine.destroy();
});

test('ds in a deleted working directory prints one line', () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-gone-'));
  const cli = join(packageRoot(), 'build', 'js', 'lib', 'launch', 'cli.js');
  const line = `cd ${folder} && rmdir ${folder} && exec "$0" ${cli} --num_procs 1 x.js`;
  const { status, stderr } = spawnSync('sh', ['-c', line, process.execPath], { encoding: 'utf8' });
  expect([status, stderr]).toEqual([
    2,
    'ds: working directory: expected an existing folder, got a deleted folder. Change to an existing folder, and start the program again.\n',
  ]);
});
