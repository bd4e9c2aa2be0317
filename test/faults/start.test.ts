// Jobs that cannot start: a port that is taken, a hostfile that is wrong. One clear error, and
// nothing is left.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { DS, type Finished, Run } from '../launch/jobs.js';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const SCRIPT = `
require(${JSON.stringify(HOOK)});
const { initDistributed } = require(${JSON.stringify(join(ROOT, 'lib', 'index.ts'))});
void initDistributed({ device: 'cpu' });`;

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-start-'));
  writeFileSync(join(folder, 'train.js'), SCRIPT);
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Ends with the launcher; nothing of the run is left then. */
async function ds(...args: string[]): Promise<Finished> {
  const run = new Run([...DS, ...args, 'train.js'], folder);
  const finished = await run.finished;
  expect(run.processes()).toEqual([]);
  return finished;
}

/** Listens and never answers, as another program would. */
async function occupyPort(): Promise<{ server: Server; port: string; sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => sockets.push(socket.on('error', () => {})));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { server, port: String((server.address() as { port: number }).port), sockets };
}

test('a master port that another program uses is an error', async () => {
  const { server, port, sockets } = await occupyPort();
  try {
    const args = ['--master_port', port, '--grace_period', '1', '--num_procs', '3'];
    const { code, stderr } = await ds(...args);
    expect(code).toBe(1);
    expect(stderr).toContain('ds: rank 0 failed first: exit code 1.');
    expect(stderr).toContain(`127.0.0.1:${port}`);
    expect(stderr).toMatch(/already in use/i);
  } finally {
    for (const socket of sockets) socket.destroy();
    server.close();
  }
});

test.each([
  ['without slots', 'worker-0\n'],
  ['with slots that are no number', 'worker-0 slots=many\n'],
  ['with a host twice', 'worker-0 slots=2\nworker-0 slots=2\n'],
  ['without a host', '# nobody\n\n'],
  ['with an option for a host', '-oProxyCommand=touch slots=1\n'],
])('a hostfile %s', async (_name, text) => {
  writeFileSync(join(folder, 'hosts'), text);
  const { code, stderr, stdout } = await ds('--hostfile', 'hosts');
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toMatch(/^ds: .*hosts.*expected .*, got /);
  expect(stderr).not.toContain('    at ');
});
