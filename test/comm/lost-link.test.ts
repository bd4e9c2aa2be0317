// Tests that two nodes (network namespaces) that lose their link both end with an error that names
// the missing rank.
import { spawnSync } from 'node:child_process';
import type { FaultJob, FaultReport } from './fault-process.js';
import { reportsOf, runRanks } from './ranks.js';

const nodes = [`ds-${process.pid}-0`, `ds-${process.pid}-1`] as const;
const addresses = ['10.213.7.1', '10.213.7.2'] as const;

function ip(...words: string[]): string {
  const { status, stderr, error } = spawnSync('ip', words, { encoding: 'utf8' });
  return status === 0 ? '' : `ip ${words.join(' ')}: ${error?.message ?? stderr.trim()}`;
}

/**
 * Connects two namespaces with a cable; returns the reason if this machine cannot do that, or ''.
 */
function connectNodes(): string {
  const steps = [
    ...nodes.map((node) => ['netns', 'add', node]),
    ['-n', nodes[0], 'link', 'add', 'cable0', 'type', 'veth', 'peer', 'cable1', 'netns', nodes[1]],
    ...nodes.flatMap((node, i) => [
      ['-n', node, 'link', 'set', 'lo', 'up'],
      ['-n', node, 'address', 'add', `${addresses[i]}/24`, 'dev', `cable${i}`],
      ['-n', node, 'link', 'set', `cable${i}`, 'up'],
    ]),
  ];
  for (const step of steps) {
    const problem = ip(...step);
    if (problem) return problem;
  }
  return '';
}

const problem = connectNodes();
afterAll(() => {
  for (const node of nodes) ip('netns', 'delete', node);
});

const where = problem ? `(skipped: ${problem})` : '';
(problem ? test.skip : test)(`two nodes that lose their link ${where}`, async () => {
  const job: FaultJob = { kind: 'cpu', fault: 'killed-busy', culprit: -1, timeout: 0.3 };
  let busy = 0;
  const results = await runRanks('fault-process', 3, {
    job,
    environment: { MASTER_ADDR: addresses[0] },
    wrapper: (rank) => ['ip', 'netns', 'exec', nodes[rank < 2 ? 0 : 1]],
    line: (_rank, text) => {
      if (text === '"busy"' && ++busy === 3) ip('-n', nodes[0], 'link', 'set', 'cable0', 'down');
    },
  });
  const reports = reportsOf<FaultReport>(results);
  for (const { code, same } of reports)
    expect({ code, same }).toEqual({ code: 'DS_COMM', same: true });
  // The timeouts of the collective and of the store with a silent rank end at about the same
  // moment.
  const missing = /got rank 2 did not arrive|got rank 2: it sent nothing/;
  for (const { message } of reports.slice(0, 2)) expect(message).toMatch(missing);
  expect(reports[2]?.message).toMatch(/store \(rank 0 or the launcher\) sent nothing/);
});
