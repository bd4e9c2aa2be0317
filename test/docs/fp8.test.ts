// The program of docs/fp8.md trains.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeProgram } from './page-program.js';
import { readPage, snippetsOf } from './snippets.js';

const PAGE = 'docs/fp8.md';
const dir = mkdtempSync(join(tmpdir(), 'ds-fp8-page-'));

afterAll(() => rmSync(dir, { recursive: true }));

const programs = snippetsOf(PAGE, readPage(PAGE), ['js']);

test.each(programs.map((program) => [program.line, program.code]))('line %d runs', (_, code) => {
  const file = writeProgram(dir, String(code));
  const { status, stdout, stderr } = spawnSync(process.execPath, [file], {
    cwd: dir,
    encoding: 'utf8',
    env: { ...process.env, DS_DEVICE: 'cpu' },
  });
  expect([status, stderr]).toEqual([0, '']);
  const losses = stdout.trim().split('\n').map(Number);
  expect(losses).toHaveLength(5);
  expect(losses[4]).toBeLessThan(losses[0] as number);
});

test('the page has a program', () => expect(programs).toHaveLength(1));
