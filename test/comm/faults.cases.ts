// Tests that every rank ends with one clear error if a rank issues a different collective, stalls,
// throws or dies.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { below as random } from '../support/random.js';
import type { EvenEnd, EvenEndJob, EvenEndReport } from './even-end-process.js';
import type { Fault, FaultJob, FaultReport } from './fault-process.js';
import { type RankResult, reportsOf, runRanks } from './ranks.js';

interface Expectation {
  fault: Fault;
  ranks: number;
  culprit: number;
  /** In minutes. */
  timeout?: number;
  /** The message of every surviving rank matches all of these. */
  message: readonly RegExp[];
  /** Whether the culprit reports the error too. */
  all?: boolean;
  /** Whether the culprit ends without an error of its own. */
  endsWell?: boolean;
  /** Ranks that cannot exit on their own are killed after the others have reported. */
  reap?: boolean;
}

/** Minutes that ranks wait for a stalled one: longer than a busy machine delays their start. */
const STALL = 0.2;

const CALL = /allReduce sum f32 x 100 \(gradients of unit h\.3\)/;

const LEFT = (rank: number) => [
  CALL,
  /collective 2 of world/,
  new RegExp(
    `rank ${rank} has left the job \\(job\\.destroy\\(\\)\\) after collective 1, .*warm-up 1`,
  ),
  /same number of batches/,
];

const expectations: readonly Expectation[] = [
  {
    fault: 'other-op',
    ranks: 2,
    culprit: 1,
    all: true,
    message: [
      CALL,
      /rank 1 issued broadcast f32 x 100, root 0 \(the wrong one\)|rank 1 issued/,
      /rank 0/,
    ],
  },
  {
    fault: 'other-size',
    ranks: 3,
    culprit: 2,
    all: true,
    message: [
      /rank 2 issued allReduce sum f32 x 50 \(half of unit h\.3\)/,
      /collective 2 of world/,
    ],
  },
  {
    fault: 'one-more',
    ranks: 2,
    culprit: 0,
    all: true,
    message: [/collective 3 of world/, /barrier/, /rank 0 issued|rank 1 issued/],
  },
  {
    fault: 'stall',
    ranks: 3,
    culprit: 1,
    timeout: STALL,
    reap: true,
    message: [
      CALL,
      /rank 1 did not arrive \(its last was collective 1/,
      /warm-up 1/,
      /collective 2/,
    ],
  },
  {
    fault: 'never-came',
    ranks: 2,
    culprit: 1,
    timeout: STALL,
    reap: true,
    message: [CALL, /collective 0 of world/, /rank 1 did not arrive/],
  },
  {
    fault: 'blocked',
    ranks: 2,
    culprit: 0,
    timeout: STALL,
    reap: true,
    message: [CALL, /rank 0 did not arrive/],
  },
  { fault: 'killed', ranks: 3, culprit: 2, message: [/rank 2/, /ended|did not arrive/] },
  { fault: 'killed', ranks: 3, culprit: 0, message: [/rank 0/, /ended/, /collective \d of world/] },
  { fault: 'killed-busy', ranks: 3, culprit: 1, message: [/rank 1/, /ended|did not arrive/] },
  {
    fault: 'killed-ahead',
    ranks: 2,
    culprit: 1,
    message: [CALL, /rank 1 did not arrive/, /ended/],
  },
  { fault: 'killed-computing', ranks: 2, culprit: 1, message: [CALL, /rank 1 did not arrive/] },
  { fault: 'killed-groups', ranks: 2, culprit: 1, message: [CALL, /rank 1 did not arrive/] },
  { fault: 'killed-opening', ranks: 2, culprit: 1, message: [/rank 1/, /ended/] },
  { fault: 'throws', ranks: 3, culprit: 1, message: [/rank 1/, /it has left the job|ended/] },
  { fault: 'leaves', ranks: 3, culprit: 1, timeout: 10, endsWell: true, message: LEFT(1) },
  { fault: 'leaves', ranks: 3, culprit: 0, timeout: 10, endsWell: true, message: LEFT(0) },
  { fault: 'leaves-ahead', ranks: 2, culprit: 1, timeout: 10, endsWell: true, message: LEFT(1) },
];

/** For one case: its slowest waits take half a minute, plus the exit; busy cores take longer. */
const LIMIT_MS = { cpu: 300_000, cuda: 60_000 };

async function provoke(device: Device, expected: Expectation): Promise<void> {
  const { fault, ranks, culprit, timeout = 0.5 } = expected;
  const job: FaultJob = { kind: device.kind, fault, culprit, timeout };
  const reported = new Set<number>();
  const results = await runRanks('fault-process', ranks, {
    job,
    limit: LIMIT_MS[device.kind],
    line: (rank, text, children) => {
      if (text === '"busy"') {
        // At a random moment in each run, between and inside collectives.
        if (rank === culprit) setTimeout(() => children[culprit]?.kill('SIGKILL'), random(200));
        return;
      }
      reported.add(rank);
      if (expected.reap && reported.size === ranks - 1) children[culprit]?.kill('SIGKILL');
    },
  });
  for (const result of results) {
    if (result.rank !== culprit || expected.all) examine(result, expected);
    else if (expected.endsWell) requireNoError(result);
  }
}

function requireNoError({ rank, code, signal, report, stderr }: RankResult): void {
  if (code === 0 && (report as FaultReport).code === '') return;
  throw new Error(`rank ${rank}: ${code ?? signal} ${JSON.stringify(report)} ${stderr}`);
}

function examine(result: RankResult, { fault, message }: Expectation): void {
  const { rank, code, signal, stderr } = result;
  const who = `${fault}, rank ${rank}`;
  if (code !== 0) throw new Error(`${who} ended with ${code ?? signal}:\n${stderr}`);
  const report = result.report as FaultReport;
  if (report.code !== 'DS_COMM') throw new Error(`${who}: ${JSON.stringify(report)}`);
  for (const pattern of message) {
    if (!pattern.test(report.message))
      throw new Error(`${who}: ${pattern} not in ${report.message}`);
  }
  if (!report.same) throw new Error(`${who}: a second call gave another error`);
}

const stalling = expectations.filter(({ timeout }) => timeout === STALL);

const faults: readonly Case[] = expectations.map((expected) => ({
  name: `rank ${expected.culprit} of ${expected.ranks}: ${expected.fault}`,
  run: (device) => provoke(device, expected),
  gpus: expected.ranks,
  skip: ({ kind }) =>
    kind === 'cpu' && expected.timeout === STALL ? 'waits beside the others that stall' : null,
}));

/** Stalled ranks use no core, so all cases run at the same time. */
const stalls: Case = {
  name: `a rank that stalls, in three jobs at a time: ${stalling.map(({ fault }) => fault)}`,
  run: async (device) => {
    const ends = await Promise.allSettled(stalling.map((expected) => provoke(device, expected)));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  },
  skip: ({ kind }) => (kind === 'cpu' ? null : 'on GPUs each is a case of its own'),
};

/** Final tensors of the ranks by kind of end. Each tensor starts as the rank number. */
const ends: Record<EvenEnd, readonly number[]> = {
  unread: [2, 2, 2],
  'sub-group': [1, 1, 2],
  undestroyed: [0, 1, 2],
};

const evenEnds: readonly Case[] = (Object.keys(ends) as EvenEnd[]).map((end) => ({
  name: `without a fault, ranks that end far apart: ${end}`,
  run: async (device) => {
    const job: EvenEndJob = { kind: device.kind, end };
    const reports = reportsOf<EvenEndReport>(await runRanks('even-end-process', 3, { job }));
    const expected = ends[end].map((value) => ({ message: '', value }));
    assert.equal(JSON.stringify(reports), JSON.stringify(expected));
  },
  gpus: 3,
}));

export const cases: readonly Case[] = [
  {
    name: 'without a fault',
    run: async (device) => {
      const job: FaultJob = { kind: device.kind, fault: 'none', culprit: 0, timeout: 0.5 };
      for (const result of await runRanks('fault-process', 2, { job })) requireNoError(result);
    },
    gpus: 2,
  },
  ...evenEnds,
  ...faults,
  stalls,
];
