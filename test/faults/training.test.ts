// Ranks that die, raise, stall or stray while they train: every other rank ends with one clear error, nothing is left,
// and training resumes as if nothing had happened.

import { pause } from '../launch/jobs.js';
import { type Ended, Trainings } from './launched-training.js';
import type { Training } from './training-job.js';

jest.setTimeout(120_000);
const random = (limit: number) => Math.floor(Math.random() * limit);
const FOREVER = 100_000;
/** Of stalls, in minutes: also longer than ranks take to start. */
const TIMEOUT = 0.1;

let begun: Trainings[] = [];
afterEach(async () => {
  for (const trainings of begun) await trainings.dispose();
  begun = [];
});

function begin(ranks: number, base: Pick<Training, 'stage' | 'offload'>): Trainings {
  const trainings = new Trainings(ranks, base);
  begun.push(trainings);
  return trainings;
}

/** Every rank but the culprit ended with DS_COMM and a message with `says`. */
function expectToldAll({ outcomes, stderr }: Ended, culprit: number | null, says: RegExp[]): void {
  outcomes.forEach((outcome, rank) => {
    if (rank === culprit) return;
    const { error } = outcome ?? {};
    expect({ rank, code: error?.code, stderr }).toMatchObject({ rank, code: 'DS_COMM' });
    for (const pattern of says) expect(error?.message).toMatch(pattern);
  });
}

async function expectResumed(trainings: Trainings): Promise<void> {
  const { resumed, reference } = await trainings.resumeAndCompare();
  const [first] = resumed;
  expect(first?.from).toBeGreaterThanOrEqual(3);
  expect(reference[0]?.from).toBe(0);
  for (const { to, hash } of [...resumed, ...reference]) {
    expect({ to, hash }).toEqual({ to: first?.to, hash: first?.hash });
  }
}

describe('kill -9 at a random time of training', () => {
  const settings: [string, number, Pick<Training, 'stage' | 'offload'>][] = [
    ['2 ranks, stage 2', 2, { stage: 2, offload: false }],
    ['3 ranks, stage 3', 3, { stage: 3, offload: false }],
    ['2 ranks, stage 1 with offload', 2, { stage: 1, offload: true }],
  ];
  test.each(settings)('%s', async (_name, ranks, base) => {
    const all = begin(ranks, base);
    const launched = all.launch({ steps: FOREVER, save: 'synchronous' });
    await launched.run.printed('saved at 3\n');
    await pause(random(400));
    const culprit = random(ranks);
    launched.kill(culprit);
    const ended = await launched.ended();
    expect(ended.code).toBe(137);
    expect(ended.stderr).toContain(`ds: rank ${culprit} failed first: signal SIGKILL`);
    expectToldAll(ended, culprit, [new RegExp(`rank ${culprit}`), /ended|did not arrive/]);
    await expectResumed(all);
  });
});

describe('kill -9 during an asynchronous save', () => {
  const settings: [string, number, number | null, Pick<Training, 'stage' | 'offload'>][] = [
    ['of rank 1, before it has written', 1, null, { stage: 2, offload: false }],
    ['of rank 0, before it has written', 0, null, { stage: 3, offload: false }],
    ['of rank 1, at a random moment', 1, 20, { stage: 1, offload: false }],
  ];
  test.each(settings)('%s', async (_name, rank, limit, base) => {
    const fault = { kind: 'dies saving' as const, rank, step: 5, delay: random(limit ?? 1) };
    const all = begin(2, base);
    const ended = await all.launch({ steps: FOREVER, save: 'asynchronous', fault }).ended();
    expect(ended.code).toBe(137);
    expectToldAll(ended, rank, [new RegExp(`rank ${rank}`)]);
    const { saving } = ended.outcomes[1 - rank] ?? {};
    if (limit === null) expect(saving).toMatch(new RegExp(`rank ${rank}`));
    else expect(saving).toMatch(/rank 1|global_step6/);
    await expectResumed(all);
  });
});

test('a rank whose program raises within a step', async () => {
  const fault = { kind: 'raises' as const, rank: 1, step: 4 };
  const all = begin(3, { stage: 2, offload: false });
  const ended = await all.launch({ steps: FOREVER, save: 'synchronous', fault }).ended();
  expect(ended.code).toBe(1);
  expect(ended.stderr).toContain('ds: rank 1 failed first: exit code 1.');
  expect(ended.stderr).toContain('Error: a mistake of the program');
  expectToldAll(ended, 1, [/rank 1/, /ended|left/]);
  await expectResumed(all);
});

test('a rank that is stopped, or loops in JavaScript, is named with what the others wait for', async () => {
  const launch = (ranks: number, stage: 2 | 3, kind: 'stops' | 'loops') =>
    begin(ranks, { stage, offload: false })
      .launch({ steps: FOREVER, fault: { kind, rank: 1, step: 2 } }, TIMEOUT)
      .ended();
  const [stopped, looping] = await Promise.all([launch(3, 3, 'stops'), launch(2, 2, 'loops')]);
  for (const { code, stderr, outcomes } of [stopped, looping]) {
    expect(code).toBe(1);
    expect(stderr).toMatch(/ds: rank [02] failed first: exit code 1/);
    expect(outcomes[1]).toBeNull();
    // The call site.
    expect(outcomes[0]?.error?.stack).toMatch(/at trainStep .*training-process\.ts:\d+/);
  }
  const absent = [/within 6 s/, /rank 1 did not arrive \(its last was collective \d+, \w+/];
  const place = (what: string) => new RegExp(`${what}, collective \\d+ of world`);
  expectToldAll(stopped, 1, [place('allGather f32 x \\d+ \\(weights of root\\)'), ...absent]);
  const gradient = 'reduceScatter sum f32 x \\d+ \\(gradient of transformer\\.h\\.1\\)';
  expectToldAll(looping, 1, [place(gradient), ...absent]);
});

test('a rank that runs the modules in another order is told so, as are the others', async () => {
  const fault = { kind: 'reorders' as const, rank: 1, step: 2 };
  const all = begin(2, { stage: 3, offload: false });
  const ended = await all.launch({ steps: FOREVER, fault }).ended();
  expect(ended.code).toBe(1);
  expectToldAll(ended, null, [
    /rank [01] issued allGather f32 x \d+ \(weights of transformer\.h\.0\)/,
    /rank [01] issued allGather f32 x \d+ \(weights of transformer\.h\.1\)/,
  ]);
});

test('a rank that leaves out a micro-batch is named where the others wait for it', async () => {
  const fault = { kind: 'skips' as const, rank: 1, step: 1 };
  const all = begin(2, { stage: 2, offload: false });
  const ended = await all
    .launch({ steps: FOREVER, accumulation: 2, save: 'synchronous', fault }, TIMEOUT)
    .ended();
  expect(ended.code).toBe(1);
  expectToldAll(ended, 1, [/\(gradient of transformer\.h\.1\)/, /rank 1 did not arrive/]);
  // It is ahead of the others: it waits for them, or they for it, which fails first.
  const { error } = ended.outcomes[1] ?? {};
  expect(error?.code).toBe('DS_COMM');
  expect(error?.message).toMatch(
    /saving a checkpoint: .* nothing from rank 0|rank 1 did not arrive/,
  );
});
