// Tests that a pipelined model trains like the same model on one rank, bit for bit, with every
// schedule.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Device } from '../../lib/runtime/device.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { Leg, LegReport, PipelineJob } from './pipeline-process.js';

async function run(device: Device, ranks: number, job: Omit<PipelineJob, 'device'>) {
  const fullPipelineJob: PipelineJob = { device: device.kind, ...job };
  const results = await runRanks('../pipe/pipeline-process', ranks, { job: fullPipelineJob });
  return reportsOf<LegReport[]>(results);
}

const legs: Leg[] = [
  ...[1, 3, 4, 8].flatMap((micros): Leg[] => [
    { schedule: '1f1b', micros, stage: 0, precision: 'fp32' },
    { schedule: 'gpipe', micros, stage: 0, precision: 'bf16' },
    { schedule: 'interleaved', micros, stage: 1, precision: 'fp32' },
    { schedule: 'zero-bubble', micros, stage: 1, precision: 'fp32' },
  ]),
  { schedule: 'zero-bubble', micros: 4, stage: 0, precision: 'bf16' },
  { schedule: 'zero-bubble', micros: 3, stage: 0, precision: 'bf16', checkpoint: 1 },
  { schedule: 'zero-bubble', micros: 3, stage: 1, precision: 'fp16', offload: true },
  { schedule: 'zero-bubble', micros: 3, stage: 0, precision: 'fp32', frozen: true },
  { schedule: '1f1b', micros: 3, stage: 1, precision: 'fp16' },
  { schedule: '1f1b', micros: 3, stage: 1, precision: 'bf16', offload: true },
  { schedule: '1f1b', micros: 4, stage: 0, precision: 'fp32', checkpoint: 2 },
  { schedule: '1f1b', micros: 3, stage: 0, precision: 'fp16', frozen: true },
];

/** `pp` stages times `dp` data ranks, each with `copies` replicas, equal `dp` data ranks. */
async function equal(
  device: Device,
  { pp, dp, copies = 1 }: { pp: number; dp: number; copies?: number },
  expectedLegs: Leg[],
): Promise<void> {
  const alone = await run(device, dp, { pp: 1, legs: expectedLegs });
  const all = await run(device, pp * dp * copies, { pp, tp: copies, legs: expectedLegs });
  all.forEach((report, rank) => {
    assert.deepEqual(report, all[rank - (rank % copies)], `rank ${rank}`);
  });
  const staged = all.filter((_, rank) => rank % copies === 0);
  for (const [i, leg] of expectedLegs.entries()) {
    const place = JSON.stringify(leg);
    for (let d = 0; d < dp; ++d) {
      const expected = alone[d]?.[i] as LegReport;
      const parts = Array.from({ length: pp }, (_, s) => staged[s * dp + d]?.[i] as LegReport);
      const weights = Object.assign({}, ...parts.map((part) => part.weights));
      assert.deepEqual(weights, expected.weights, place);
      const count = parts.reduce((sum, part) => sum + Object.keys(part.weights).length, 0);
      assert.equal(count, Object.keys(expected.weights).length, `${place}: each on one stage`);
      for (const part of parts) {
        assert.deepEqual(part.losses, expected.losses, place);
        assert.deepEqual(part.norms, expected.norms, place);
        assert.equal(part.evaluated, expected.evaluated, place);
        assert.equal(part.samples, expected.samples, place);
      }
    }
  }
}

const requireNear = (a: number | null, b: number | null, place: string, by = 1e-5): void =>
  assert.ok(Math.abs((a ?? 0) - (b ?? 0)) <= by * Math.abs(b ?? 0), `${place}: ${a} for ${b}`);

/**
 * A bias of keys does not change the softmax: its gradient is only rounding, but Adam makes full
 * steps.
 */
const toleranceOf = (name: string): number => (name.endsWith('c_attn.bias') ? 1e-4 : 1e-5);

/**
 * Like equal(), to rounding. Gradients of shared layers, and squares of the norm, are summed in
 * another order than on one rank.
 */
async function near(
  device: Device,
  { pp, dp, shared }: { pp: number; dp: number; shared?: string },
  expectedLegs: Leg[] = [
    { schedule: '1f1b', micros: 3, stage: 0, precision: 'fp32', tied: true },
    { schedule: 'interleaved', micros: 4, stage: 1, precision: 'fp32', tied: true },
    { schedule: '1f1b', micros: 2, stage: 1, precision: 'fp32', tied: true, offload: true },
  ],
): Promise<void> {
  const alone = await run(device, dp, { pp: 1, legs: expectedLegs });
  const staged = await run(device, pp * dp, { pp, legs: expectedLegs });
  for (const [i, leg] of expectedLegs.entries()) {
    const expected = alone[0]?.[i] as LegReport;
    const first = staged[0]?.[i] as LegReport;
    const last = staged[(pp - 1) * dp]?.[i] as LegReport;
    const place = JSON.stringify(leg);
    if (shared) assert.equal(first.weights[shared], last.weights[shared], place);
    for (const { [i]: report } of staged) {
      const { losses, norms, sums } = report as LegReport;
      losses.forEach(
        (loss, step) => void requireNear(loss, expected.losses[step] as number, place),
      );
      norms.forEach((norm, step) => void requireNear(norm, expected.norms[step] as number, place));
      for (const [name, sum] of Object.entries(sums))
        requireNear(sum, expected.sums[name] as number, name, toleranceOf(name));
    }
  }
}

/**
 * Some stages keep the state of shared parameters on the device, others do not; their exchanges
 * have one order.
 */
async function placedApart(device: Device): Promise<void> {
  const offload = { stage: 1, offload: true, tied: 'twice' } as const;
  const leg: Leg = { schedule: '1f1b', micros: 2, precision: 'fp32', ...offload };
  const reports = await run(device, 3, { pp: 3, legs: [leg, { ...leg, ratio: 0.78 }] });
  for (const [all, some] of reports) assert.deepEqual(some, all);
}

/** Stages with shared layers in different orders train, save and resume them as one rank does. */
async function checkCrossed(device: Device): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-pipeline-'));
  const leg: Leg = { schedule: '1f1b', micros: 2, stage: 1, precision: 'fp32', tied: 'crossed' };
  try {
    await near(device, { pp: 2, dp: 1 }, [leg]);
    const legs = [
      { ...leg, save: root },
      { ...leg, from: root },
    ];
    for (const [saved, resumed] of await run(device, 2, { pp: 2, legs })) {
      assert.deepEqual(resumed?.losses, saved?.losses.slice(2));
      assert.deepEqual(resumed?.weights, saved?.weights);
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/**
 * A checkpoint from any number of stages resumes on any other, and training continues as without a
 * stop.
 */
async function checkResumed(device: Device): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-pipeline-'));
  const leg = (tie: boolean): Leg => ({
    ...({ schedule: '1f1b', micros: 3, stage: 1, precision: 'bf16', tied: tie } as const),
  });
  const savingLegs = (pp: number): Leg[] =>
    [false, true].map((tie) => ({ ...leg(tie), save: join(root, `${pp} ${tie}`) }));
  const resumingLegs = (pp: number): Leg[] =>
    [false, true].map((tie) => ({ ...leg(tie), from: join(root, `${pp} ${tie}`) }));
  try {
    const one = await run(device, 1, { pp: 1, legs: savingLegs(1) });
    const two = await run(device, 2, { pp: 2, legs: [...savingLegs(2), ...resumingLegs(1)] });
    const four = await run(device, 4, { pp: 4, legs: resumingLegs(2) });
    const back = await run(device, 1, { pp: 1, legs: resumingLegs(2) });
    const untied = one[0]?.[0] as LegReport;
    const mergeReports = (reports: LegReport[][], i: number) =>
      Object.assign({}, ...reports.map((each) => each[i]?.weights));
    for (const [reports, i] of [
      [two, 0],
      [two, 2],
      [four, 0],
      [back, 0],
    ] as const) {
      assert.deepEqual(mergeReports(reports, i), untied.weights);
    }
    assert.deepEqual(back[0]?.[0]?.losses, untied.losses.slice(2));
    const expected = one[0]?.[1] as LegReport;
    for (const [reports, i] of [
      [two, 1],
      [two, 3],
      [four, 1],
      [back, 1],
    ] as const) {
      requireNear(
        reports[0]?.[i]?.losses.at(-1) as number,
        expected.losses.at(-1) as number,
        `${i}`,
      );
    }
    const exportedBytes = (pp: number) =>
      readFileSync(join(root, `${pp} false`, 'weights.safetensors'));
    assert.ok(exportedBytes(1).equals(exportedBytes(2)));
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  {
    name: 'two stages equal one rank: weights, losses, norms and evaluation',
    run: (device) => equal(device, { pp: 2, dp: 1 }, legs),
    gpus: 2,
  },
  {
    name: 'four stages equal one rank',
    run: (device) =>
      equal(
        device,
        { pp: 4, dp: 1 },
        legs.filter(({ schedule }) => schedule !== 'interleaved'),
      ),
    gpus: 4,
  },
  {
    name: 'two stages of two data ranks equal two data ranks',
    run: (device) =>
      equal(
        device,
        { pp: 2, dp: 2 },
        legs.filter(({ micros }) => micros === 3),
      ),
    gpus: 4,
  },
  {
    name: 'two stages, each of them on two ranks, equal one rank',
    run: (device) =>
      equal(device, { pp: 2, dp: 1, copies: 2 }, [
        { schedule: '1f1b', micros: 2, stage: 1, precision: 'fp32' },
      ]),
    gpus: 4,
  },
  {
    name: 'an embedding that is the head of the last stage',
    run: (device) => near(device, { pp: 2, dp: 1, shared: 'layers.0.weight' }),
    gpus: 2,
  },
  {
    name: 'the same with data ranks',
    run: (device) => near(device, { pp: 2, dp: 2, shared: 'layers.0.weight' }),
    gpus: 4,
  },
  {
    name: 'Llama, Phi-3 and Qwen3 in stages, with and without checkpointing',
    run: (device) =>
      near(
        device,
        { pp: 2, dp: 1 },
        (['llama', 'phi3', 'qwen3'] as const).flatMap((model): Leg[] => [
          { schedule: '1f1b', micros: 2, stage: 0, precision: 'fp32', model },
          {
            schedule: 'interleaved',
            micros: 2,
            stage: 0,
            precision: 'fp32',
            model,
            inputsOnly: true,
          },
        ]),
      ),
    gpus: 2,
  },
  {
    name: 'GPT-2 in stages, with the embedding as its head',
    run: (device) =>
      near(device, { pp: 2, dp: 1, shared: 'transformer.wte.weight' }, [
        { schedule: '1f1b', micros: 2, stage: 0, precision: 'fp32', model: 'gpt2' },
        {
          schedule: '1f1b',
          micros: 2,
          stage: 1,
          precision: 'fp32',
          model: 'gpt2',
          inputsOnly: true,
        },
      ]),
    gpus: 2,
  },
  {
    name: 'stages with growing sample lengths',
    run: (device) =>
      near(
        device,
        { pp: 2, dp: 1 },
        (['1f1b', 'interleaved', 'zero-bubble'] as const).map((schedule) => ({
          ...({ schedule, micros: 2, stage: 1, precision: 'fp32', model: 'llama' } as const),
          grows: true,
        })),
      ),
    gpus: 2,
  },
  {
    name: 'two weights that two stages share, in another order on each',
    run: checkCrossed,
    gpus: 2,
  },
  { name: 'two weights that three stages share, in two places', run: placedApart, gpus: 3 },
  { name: 'saved by stages, resumed by others', run: checkResumed, gpus: 4 },
];
