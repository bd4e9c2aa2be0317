// The programs of docs/hub.md run against a local server with a tiny model.
import { spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { writeModel } from '../evaluation/models.js';
import { HubServer } from '../support/hub-server.js';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/hub.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-hub-page-'));
let server: HubServer;

beforeAll(async () => {
  const folder = join(dir, 'model');
  await writeModel(folder);
  cpSync(join(packageRoot(), 'examples', 'tokenizer'), folder, { recursive: true });
  const names = readdirSync(folder);
  server = await HubServer.start();
  server.add(
    'Qwen/Qwen3-0.6B',
    Object.fromEntries(names.map((name) => [name, readFileSync(join(folder, name))])),
  );
});
afterAll(async () => {
  await server.stop();
  rmSync(dir, { recursive: true });
});

const programs = snippetsOf(PAGE, readPage(PAGE), ['js']);

test.each(programs.map((program) => [program.line, program.code]))(
  'line %d runs',
  async (line, code) => {
    const file = writeProgram(dir, String(code));
    const env = {
      ...process.env,
      HF_ENDPOINT: server.url,
      HF_HUB_CACHE: join(dir, `cache-${line}`),
      HF_HUB_OFFLINE: '',
      HF_HOME: dir,
      HF_HUB_DISABLE_PROGRESS_BARS: '1',
    };
    const child = spawn(process.execPath, [file], { env, cwd: dir });
    const output = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const) {
      child[name].on('data', (part: Buffer) => {
        output[name] += part;
      });
    }
    const status = await new Promise((resolve, reject) => {
      child.on('error', reject);
      child.on('close', resolve);
    });
    expect([status, output.stderr]).toEqual([0, '']);
    expect(output.stdout).not.toBe('');
  },
);

test('the page has programs', () => expect(programs).toHaveLength(2));
