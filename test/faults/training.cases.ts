// Tests ranks that die, throw, stall or diverge in training. Every other rank ends with one clear
// error, no process remains, and training resumes as without a fault.
import assert from 'node:assert/strict';

import type { Device } from '../../lib/runtime/device.js';
import { pause } from '../launch/jobs.js';
import type { Case } from '../support/case.js';
import { below as random } from '../support/random.js';
import { type Ended, type Setting, Trainings } from './launched-training.js';

type Kind = Omit<Setting, 'device'>;

const FOREVER = 100_000;
/**
 * For stalls, in minutes: longer than ranks take to start, and shorter than the 15 s after which a
 * stopped rank counts as gone.
 */
const TIMEOUT = { cpu: 0.1, cuda: 0.2 };

/** `wanted` on the CPU. On GPUs two ranks, because their sums do not depend on the order. */
const ranksOn = ({ kind }: Device, expected: number): number => (kind === 'cpu' ? expected : 2);

async function withTrainings<R>(
  device: Device,
  ranks: number,
  kind: Kind,
  body: (all: Trainings) => Promise<R>,
): Promise<R> {
  const all = new Trainings(ranksOn(device, ranks), { device: device.kind, ...kind });
  try {
    return await body(all);
  } finally {
    await all.dispose();
  }
}

/** Every rank except the culprit ended with DS_COMM and a message with `messages`. */
function requireTold(
  { outcomes, stderr }: Ended,
  culprit: number | null,
  messages: RegExp[],
): void {
  for (const [rank, outcome] of outcomes.entries()) {
    if (rank === culprit) continue;
    const { error } = outcome ?? {};
    assert.equal(error?.code, 'DS_COMM', `rank ${rank}: ${error?.message}\n${stderr}`);
    for (const pattern of messages) assert.match(error?.message ?? '', pattern);
  }
}

async function requireResumed(all: Trainings): Promise<void> {
  const { resumed, reference } = await all.resumeAndCompare();
  const [first] = resumed;
  assert.ok((first?.from ?? 0) >= 3, `resumed from ${first?.from}`);
  assert.equal(reference[0]?.from, 0);
  for (const { to, hash } of [...resumed, ...reference]) {
    assert.deepEqual({ to, hash }, { to: first?.to, hash: first?.hash });
  }
}

function checkKilled(device: Device, ranks: number, kind: Kind): Promise<void> {
  return withTrainings(device, ranks, kind, async (all) => {
    const launched = all.launch({ steps: FOREVER, save: 'synchronous' });
    await launched.run.whenPrinted('saved at 3\n');
    await pause(random(400));
    const culprit = random(all.ranks);
    launched.kill(culprit);
    const ended = await launched.ended();
    assert.equal(ended.code, 137, ended.stderr);
    assert.ok(ended.stderr.includes(`ds: rank ${culprit} failed first: signal SIGKILL`));
    requireTold(ended, culprit, [new RegExp(`rank ${culprit}`), /ended|did not arrive/]);
    await requireResumed(all);
  });
}

interface Dying {
  rank: number;
  /** Maximum, in milliseconds after the background save starts; 0: before its first write. */
  delay: number;
  stage: 1 | 2 | 3;
}

function killedSaving(device: Device, { rank, delay, stage }: Dying): Promise<void> {
  return withTrainings(device, 2, { stage, offload: false }, async (all) => {
    const fault = { kind: 'dies saving' as const, rank, step: 5, delay: random(delay) };
    const ended = await all.launch({ steps: FOREVER, save: 'asynchronous', fault }).ended();
    assert.equal(ended.code, 137, ended.stderr);
    requireTold(ended, rank, [new RegExp(`rank ${rank}`)]);
    const { saving } = ended.outcomes[1 - rank] ?? {};
    const known = delay === 0 ? new RegExp(`rank ${rank}`) : /rank 1|global_step6/;
    // Null: the error arrived before its own background save had started.
    if (saving !== null) assert.match(String(saving), known);
    await requireResumed(all);
  });
}

function raises(device: Device): Promise<void> {
  return withTrainings(device, 3, { stage: 2, offload: false }, async (all) => {
    const fault = { kind: 'raises' as const, rank: 1, step: 4 };
    const ended = await all.launch({ steps: FOREVER, save: 'synchronous', fault }).ended();
    assert.equal(ended.code, 1, ended.stderr);
    assert.ok(ended.stderr.includes('ds: rank 1 failed first: exit code 1.'));
    assert.ok(ended.stderr.includes('Error: a mistake of the program'));
    requireTold(ended, 1, [/rank 1/, /ended|left/]);
    await requireResumed(all);
  });
}

async function stallsAreNamed(device: Device): Promise<void> {
  const timeout = TIMEOUT[device.kind];
  const launch = (ranks: number, stage: 2 | 3, kind: 'stops' | 'loops') =>
    withTrainings(device, ranks, { stage, offload: false }, (all) =>
      all.launch({ steps: FOREVER, fault: { kind, rank: 1, step: 2 } }, timeout).ended(),
    );
  const [stopped, looping] = await Promise.all([launch(3, 3, 'stops'), launch(2, 2, 'loops')]);
  for (const { code, stderr, outcomes } of [stopped, looping]) {
    assert.equal(code, 1, stderr);
    assert.match(stderr, /ds: rank [02] failed first: exit code 1/);
    assert.equal(outcomes[1], null);
    // The call site.
    assert.match(outcomes[0]?.error?.stack ?? '', /at trainStep .*training-process\.[jt]s:\d+/);
  }
  const limit = new RegExp(`within ${timeout * 60} s`);
  const absent = [limit, /rank 1 did not arrive \(its last was collective \d+, \w+/];
  const place = (label: string) => new RegExp(`${label}, collective \\d+ of world`);
  requireTold(stopped, 1, [place('allGather f32 x \\d+ \\(weights of root\\)'), ...absent]);
  const gradient = 'reduceScatter sum f32 x \\d+ \\(gradient of transformer\\.h\\.1\\)';
  requireTold(looping, 1, [place(gradient), ...absent]);
}

function reorders(device: Device): Promise<void> {
  return withTrainings(device, 2, { stage: 3, offload: false }, async (all) => {
    const fault = { kind: 'reorders' as const, rank: 1, step: 2 };
    const ended = await all.launch({ steps: FOREVER, fault }).ended();
    assert.equal(ended.code, 1, ended.stderr);
    requireTold(ended, null, [
      /rank [01] issued allGather f32 x \d+ \(weights of transformer\.h\.0\)/,
      /rank [01] issued allGather f32 x \d+ \(weights of transformer\.h\.1\)/,
    ]);
  });
}

function skipsMicroBatch(device: Device): Promise<void> {
  return withTrainings(device, 2, { stage: 2, offload: false }, async (all) => {
    const fault = { kind: 'skips' as const, rank: 1, step: 1 };
    const settings = { steps: FOREVER, accumulation: 2, save: 'synchronous' as const, fault };
    const ended = await all.launch(settings, TIMEOUT[device.kind]).ended();
    assert.equal(ended.code, 1, ended.stderr);
    const where = /\(gradient of transformer\.h\.1\)/;
    requireTold(ended, 1, [where, /rank 1 did not arrive|rank 1 waits in saveCheckpoint/]);
    // It is ahead of the others: either side may time out first.
    const { error } = ended.outcomes[1] ?? {};
    assert.equal(error?.code, 'DS_COMM');
    const ahead = /no message from rank 0|rank 1 did not arrive|rank 1 waits in saveCheckpoint/;
    assert.match(error?.message ?? '', ahead);
  });
}

const bodies: [string, Case['run']][] = [
  ['kill -9 at a random time, stage 2', (d) => checkKilled(d, 2, { stage: 2, offload: false })],
  ['kill -9 at a random time, stage 3', (d) => checkKilled(d, 3, { stage: 3, offload: false })],
  [
    'kill -9 at a random time, stage 1 with offload',
    (d) => checkKilled(d, 2, { stage: 1, offload: true }),
  ],
  [
    'kill -9 of rank 1 during an asynchronous save, before it has written',
    (d) => killedSaving(d, { rank: 1, delay: 0, stage: 2 }),
  ],
  [
    'kill -9 of rank 0 during an asynchronous save, before it has written',
    (d) => killedSaving(d, { rank: 0, delay: 0, stage: 3 }),
  ],
  [
    'kill -9 of rank 1 during an asynchronous save, at a random moment',
    (d) => killedSaving(d, { rank: 1, delay: 20, stage: 1 }),
  ],
  ['a rank whose program raises within a step', raises],
  [
    'a rank that is stopped, or loops in JavaScript, is named with what the others wait for',
    stallsAreNamed,
  ],
  ['a rank that runs the modules in another order is told so, as are the others', reorders],
  ['a rank that leaves out a micro-batch is named where the others wait for it', skipsMicroBatch],
];

export const cases: readonly Case[] = bodies.map(([name, run]) => ({
  name: `training that breaks: ${name}`,
  run,
  gpus: 2,
}));
