// Stop signals on several threads at once, by a C++ program with threads of its own.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const root = join(__dirname, '../..');

test('arrivals at the same time count as one request, and a later one ends the process', () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-signals-'));
  try {
    const program = join(folder, 'signals');
    const sources = ['test/native/signals/main.cc', 'csrc/core/stop_signals.cc'];
    const words = ['-std=c++20', '-O2', '-pthread', '-o', program, ...sources];
    const built = spawnSync('g++', words, { cwd: root, encoding: 'utf8' });
    expect([built.status, built.stderr]).toEqual([0, '']);
    const { status, signal, stdout, stderr } = spawnSync(program, { encoding: 'utf8' });
    expect([status, signal, stderr]).toEqual([0, null, '']);
    expect(stdout).toMatch(/^\d+ trials\n$/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
