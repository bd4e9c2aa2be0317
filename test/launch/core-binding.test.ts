// Tests the notices of ranks that stay unbound, and the command that binds a rank.
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { bindRanks } from '../../lib/launch/core-binding.js';
import { listAllowedCpus } from '../../lib/launch/topology.js';

const folder = mkdtempSync(join(tmpdir(), 'ds-binding-'));
afterAll(() => rmSync(folder, { recursive: true }));

const allowed = listAllowedCpus();
const first = String(allowed[0]);
/** A core list that is no restriction needs no tool. */
const isPart = allowed.length > 1;

function bind(request: { bind?: boolean; coreList?: string }, ranks: number, tools: string[]) {
  const path = mkdtempSync(join(folder, 'bin-'));
  for (const tool of tools) {
    writeFileSync(join(path, tool), '');
    chmodSync(join(path, tool), 0o755);
  }
  const notices: string[] = [];
  const asked = { bind: true, ...request, coreList: request.coreList ?? null };
  const gpus = Array<null>(ranks).fill(null);
  const bindings = bindRanks(asked, gpus, { PATH: path }, (text) => void notices.push(text));
  return { bindings, notices, path };
}

test('without a tool ranks stay unbound, with one notice', () => {
  const { bindings, notices } = bind({ coreList: first }, 1, []);
  expect(bindings).toEqual([{ prefix: [], threads: 1 }]);
  const text = 'Ranks are not bound to cores: neither taskset nor numactl is installed.';
  expect(notices).toEqual(isPart ? [text] : []);
});

test.each([
  [['taskset', 'numactl'], 'taskset', '-c'],
  [['numactl'], 'numactl', '-C'],
])('of the tools %j the launcher uses %s', (tools, tool, option) => {
  const { bindings, notices, path } = bind({ coreList: first }, 1, tools);
  expect(notices).toEqual([]);
  const prefix = isPart ? [join(path, tool), option, first] : [];
  expect(bindings).toEqual([{ prefix, threads: 1 }]);
});

test('more ranks than cores stay unbound with one thread each, and a notice', () => {
  const { bindings, notices } = bind({ coreList: first }, 2, ['taskset']);
  expect(bindings).toEqual(Array(2).fill({ prefix: [], threads: 1 }));
  expect(notices).toEqual(['2 ranks on 1 cores: ranks are not bound to cores.']);
});

test('without core binding there is no notice', () => {
  expect(bind({ bind: false, coreList: first }, 2, [])).toMatchObject({
    bindings: null,
    notices: [],
  });
});

test('a list with other CPUs is refused', () => {
  const other = String(Math.max(...allowed) + 1);
  expect(() => bind({ coreList: other }, 1, [])).toThrow(/--bind_core_list: expected CPUs among/);
  expect(() => bind({ coreList: '' }, 1, [])).toThrow(/--bind_core_list: expected CPUs among/);
});
