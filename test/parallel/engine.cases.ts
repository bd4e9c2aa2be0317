// Tests that an engine with layers split over tp trains like one with whole layers.
import assert from 'node:assert/strict';
import { type MeshOptions, MeshShape } from '../../lib/comm/index.js';
import { coordinatesIn, positionIn, wholeBox } from '../../lib/runtime/box.js';
import type { Device } from '../../lib/runtime/device.js';
import { numel } from '../../lib/runtime/view.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import type { EngineJob, Held, Leg, LegReport } from './engine-process.js';

export async function run(
  device: Device,
  ranks: number,
  job: Omit<EngineJob, 'device'>,
): Promise<LegReport[][]> {
  const fullEngineJob: EngineJob = { device: device.kind, ...job };
  // If only one rank throws, the others must not wait for ten minutes.
  const environment = { DEEPSPEED_TIMEOUT: '2' };
  const results = await runRanks('../parallel/engine-process', ranks, {
    job: fullEngineJob,
    environment,
  });
  return reportsOf<LegReport[]>(results);
}

/** Joins the ranks' parts to whole parameters; ranks with the same part must have the same bits. */
export function wholeOf(held: readonly Record<string, Held>[]): Map<string, Float64Array> {
  const found = new Map<string, Float64Array>();
  for (const [name, { region, values }] of held.flatMap((item) => Object.entries(item))) {
    const all = found.get(name) ?? new Float64Array(numel(region.whole)).fill(Number.NaN);
    found.set(name, all);
    let from = 0;
    for (const box of region.boxes) {
      for (let i = 0; i < numel(box.shape); ++i) {
        const at = positionIn(wholeBox(region.whole), coordinatesIn(box, i));
        const value = values[from++] as number;
        assert.ok(Number.isNaN(all[at]) || all[at] === value, `${name}: ranks differ`);
        all[at] = value;
      }
    }
  }
  for (const [name, values] of found) assert.ok(!values.includes(Number.NaN), `${name}: gaps`);
  return found;
}

const distance = (a: Float64Array, b: Float64Array): number => {
  const norm = (x: Float64Array): number => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));
  return norm(a.map((v, i) => v - (b[i] as number))) / Math.max(norm(b), 1e-6);
};

export const requireNear = (a: number, b: number, tolerance: number, place: string): void =>
  assert.ok(Math.abs(a - b) <= tolerance * Math.max(1e-3, Math.abs(b)), `${place}: ${a} for ${b}`);

/** Relative tolerances. */
interface Bounds {
  /** Losses. */
  tolerance: number;
  /** Gradient norms. Default: as losses. */
  norms?: number;
  weights: number;
}

/**
 * Compares the reports of a mesh for one leg with the reports of its data ranks with whole layers.
 */
export function requireEqual(
  shape: MeshShape,
  localReports: readonly LegReport[],
  alone: readonly LegReport[],
  { place, tolerance, norms: ofNorms = tolerance, weights: drift }: Bounds & { place: string },
): void {
  const same = <K extends keyof LegReport>(key: K): LegReport[K][] =>
    localReports.map((report) => report[key]);
  for (const norms of same('norms'))
    assert.deepEqual(norms, localReports[0]?.norms, `${place}: norms`);
  const initial = wholeOf(same('initial'));
  const before = wholeOf(alone.slice(0, 1).map((report) => report.initial));
  assert.deepEqual([...initial.keys()].sort(), [...before.keys()].sort(), place);
  for (const [name, values] of before) assert.deepEqual(initial.get(name), values, name);
  for (const [rank, { losses, norms, skipped }] of localReports.entries()) {
    const expected = alone[shape.coordinates(rank).dp] as LegReport;
    // A pipeline reports the mean over the data ranks.
    const reporters = shape.sizes.pp > 1 ? alone : [expected];
    losses.forEach((loss, i) => {
      const sum = reporters.reduce((total, report) => total + (report.losses[i] as number), 0);
      requireNear(loss, sum / reporters.length, tolerance, `${place}, loss ${i} of ${rank}`);
    });
    norms.forEach((norm, i) => {
      requireNear(norm ?? -1, expected.norms[i] ?? -1, ofNorms, `${place}, norm ${i}`);
    });
    assert.equal(skipped, expected.skipped, place);
    assert.equal(losses.length, expected.losses.length, place);
  }
  const weights = wholeOf(same('weights'));
  const expected = wholeOf(alone.slice(0, 1).map((report) => report.weights));
  const together = distance(joinValues(weights), joinValues(expected));
  assert.ok(together <= drift, `${place}, all weights: ${together}`);
  for (const [name, values] of expected) {
    const apart = distance(weights.get(name) as Float64Array, values);
    // AdamW makes full steps for gradients that are only rounding, like the gradient of the key
    // bias.
    assert.ok(apart <= 100 * drift, `${place}, ${name}: ${apart}`);
  }
}

const joinValues = (values: ReadonlyMap<string, Float64Array>): Float64Array =>
  Float64Array.from([...values.keys()].sort().flatMap((name) => [...(values.get(name) ?? [])]));

export interface Comparison {
  mesh: MeshOptions;
  ranks: number;
  legs: Leg[];
  tolerance?: number;
}

export async function equal(device: Device, expected: Comparison): Promise<void> {
  const { mesh, ranks, legs, tolerance = 1e-5 } = expected;
  const shape = MeshShape.over(ranks, mesh);
  const alone = await run(device, shape.sizes.dp, { mesh: {}, legs });
  const localRows = await run(device, ranks, { mesh, legs });
  for (const [i, leg] of legs.entries()) {
    const place = JSON.stringify(leg);
    const of = (reports: LegReport[][]) => reports.map((report) => report[i] as LegReport);
    for (const { error } of [...of(localRows), ...of(alone)]) assert.equal(error, undefined, place);
    const isNarrow = leg.precision === 'bf16' || leg.precision === 'fp16';
    // Each rank rounds its part of a sum to 16 bits: norms of so few elements differ by a few
    // percent.
    const narrow: Bounds = { tolerance: 1e-2, norms: 0.1, weights: 0.2 };
    const within = isNarrow ? narrow : { tolerance, weights: tolerance };
    requireEqual(shape, of(localRows), of(alone), { place, ...within });
  }
}

/** If a split gradient overflows on one rank, all ranks skip the step. */
async function checkSkipped(device: Device): Promise<void> {
  const culprit = 3;
  const legs = ([0, 1, 3] as const).map(
    (stage): Leg => ({ stage, precision: 'fp16', micros: 1, overflow: culprit }),
  );
  const reports = await run(device, 4, { mesh: { tp: 2 }, legs });
  for (const [i, leg] of legs.entries()) {
    const localReports = reports.map((report) => report[i] as LegReport);
    for (const report of localReports) {
      assert.equal(report.skipped, 1, JSON.stringify(leg));
      assert.deepEqual(report.norms, localReports[0]?.norms, JSON.stringify(leg));
    }
    wholeOf(localReports.map(({ weights }) => weights));
  }
}

const STAGES = [0, 1, 2, 3] as const;

export const cases: Case[] = [
  {
    name: 'tp 2 x dp 2 at ZeRO 0 to 3, offloaded, frozen, in 16 bits, equals dp 2',
    run: (device) =>
      equal(device, {
        mesh: { tp: 2 },
        ranks: 4,
        legs: [
          ...STAGES.map((stage): Leg => ({ stage })),
          { stage: 1, offload: true },
          { stage: 3, offload: true, frozen: 'norm' },
          { stage: 3, frozen: 'up' },
          { stage: 0, frozen: 'down' },
          { stage: 2, precision: 'bf16', wide: true },
          { stage: 1, precision: 'fp16' },
          { stage: 1, optimizer: { type: 'Lion', params: { lr: 1e-4 } } },
        ],
      }),
    gpus: 4,
  },
  {
    name: 'an overflow on one rank of tp 2 x dp 2 is skipped by all',
    run: checkSkipped,
    gpus: 4,
  },
  {
    name: 'tp 3 with 2, 1 and 1 heads equals one rank',
    run: (device) =>
      equal(device, { mesh: { tp: 3 }, ranks: 3, legs: [{ stage: 0 }, { stage: 3 }] }),
    gpus: 3,
  },
];
