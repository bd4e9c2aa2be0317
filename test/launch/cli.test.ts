// The `ds` command as users run it: a process, its output and its exit code.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const CLI = join(ROOT, 'lib', 'launch', 'cli.ts');

function ds(args: string[], env: Record<string, string> = {}) {
  const options = { encoding: 'utf8', env: { ...process.env, ...env } } as const;
  return spawnSync(process.execPath, ['-r', HOOK, CLI, ...args], options);
}

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-cli-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function config(text: string): string {
  const path = join(dir, 'ds_config.json');
  writeFileSync(path, text);
  return path;
}

describe('ds env', () => {
  test('says what was found, in lines', () => {
    const { status, stdout } = ds(['env']);
    expect(status).toBe(0);
    for (const label of ['@ds/native', 'node', 'cpu', 'memory', 'addon', 'threads', 'GPUs']) {
      expect(stdout).toMatch(new RegExp(`^${label} +\\S`, 'm'));
    }
  });

  test('says the same as JSON', () => {
    const { status, stdout } = ds(['env', '--json'], { DS_NUM_THREADS: '3' });
    expect(status).toBe(0);
    const report = JSON.parse(stdout);
    expect(report.native).toMatchObject({
      threads: 3,
      fileEngine: expect.stringMatching(/^(io_uring|threads)$/),
      devices: [expect.objectContaining({ name: 'cpu' }), ...report.native.devices.slice(1)],
    });
    expect(report.native.libraries.map((l: { name: string }) => l.name)).toContain('cuBLASLt');
  });

  test('reports an addon that does not load', () => {
    const { status, stdout } = ds(['env'], { DS_NATIVE_BINDING: join(dir, 'absent.node') });
    expect(status).toBe(1);
    expect(stdout).toMatch(/^addon +does not load\. .*absent\.node/m);
  });
});

describe('ds validate', () => {
  test('prints notices and the resolved configuration', () => {
    const path = config('{ "train_batch_size": 8, "sparse_gradients": true }');
    const { status, stdout } = ds(['validate', path, '--world-size', '4']);
    expect(status).toBe(0);
    expect(stdout).toMatch(/^note: ds_config.json:1:26: sparse_gradients has no effect/);
    expect(stdout).toContain('"train_micro_batch_size_per_gpu": 2');
  });

  test('lists every error with its place and fails', () => {
    const path = config('{\n  "train_batch_size": 0,\n  "wandb": { "enabled": true }\n}');
    const { status, stdout, stderr } = ds(['validate', path]);
    expect({ status, stdout }).toEqual({ status: 1, stdout: '' });
    expect(stderr).toMatch(/^error: ds_config.json:2:3: train_batch_size: expected a value >= 1/m);
    expect(stderr).toMatch(/^error: ds_config.json:3:3: wandb: .*not supported yet/m);
    const json = ds(['validate', path, '--json']);
    expect(json.status).toBe(1);
    expect(JSON.parse(json.stdout)).toMatchObject({ valid: false, config: null });
    expect(JSON.parse(json.stdout).errors).toHaveLength(2);
  });

  test('a bad option is refused', () => {
    const { status, stderr } = ds(['validate', 'x', '--world-size', 'two']);
    expect(status).toBe(1);
    expect(stderr).toContain('positive integer');
  });
});
