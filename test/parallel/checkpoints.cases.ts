// Tests that a checkpoint of any mesh resumes on any other mesh, bit for bit.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { consolidate, WeightFiles } from '../../lib/checkpoint/index.js';
import { type MeshOptions, MeshShape } from '../../lib/comm/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { valuesOf } from '../checkpoint/content.js';
import type { Case } from '../support/case.js';
import { requireNear, run } from './engine.cases.js';
import type { Leg, LegReport } from './engine-process.js';

interface Place {
  name: string;
  ranks: number;
  mesh: MeshOptions;
  stage: Leg['stage'];
  /** Settings of zero_optimization in addition. */
  zero?: Leg['zero'];
}

const PLACES: readonly Place[] = [
  { name: 'alone', ranks: 1, mesh: {}, stage: 0 },
  { name: 'tp2dp2', ranks: 4, mesh: { tp: 2 }, stage: 3 },
  { name: 'tp4', ranks: 4, mesh: { tp: 4 }, stage: 1 },
  { name: 'pp2tp2', ranks: 4, mesh: { pp: 2, tp: 2 }, stage: 1 },
];

/** Half of the steps are done. No steps follow, so the resumed state is saved unchanged. */
const RESUMED = { steps: 2 };

/**
 * Each place saves every other place's checkpoint again: every tensor is equal, and so are the next
 * losses.
 */
export async function everywhere(
  device: Device,
  places: readonly Place[],
  model?: Leg['model'],
): Promise<void> {
  const root = mkdtempSync(join(tmpdir(), 'ds-cut-meshes-'));
  const dir = (by: Place, of?: Place): string => join(root, of ? `${of.name}-${by.name}` : by.name);
  const micros = 2;
  try {
    const saved: LegReport[][] = [];
    for (const place of places) {
      const { ranks, mesh, stage, zero } = place;
      const legs: Leg[] = [{ model, stage, zero, micros, steps: 4, save: dir(place) }];
      const reports = await run(device, ranks, { mesh, legs });
      saved.push(reports.map((report) => report[0] as LegReport));
    }
    const values = await Promise.all(places.map((place) => valuesOf(dir(place))));
    // A save with an element in two files, or in no file, is refused.
    for (const one of values) assert.deepEqual(namesOf(one), namesOf(values[0] ?? {}));
    // Language models are exported in the format of Hugging Face, with some tensors transposed.
    if (!model)
      for (const [i, place] of places.entries()) await requireExports(dir(place), values[i] ?? {});
    for (const place of places) {
      const { ranks, mesh, stage, zero } = place;
      const legs = places.flatMap((of): Leg[] => [
        { model, stage, zero, micros, ...RESUMED, from: dir(of), save: dir(place, of) },
        { model, stage, zero, micros, steps: 3, from: dir(of) },
      ]);
      const reports = await run(device, ranks, { mesh, legs });
      const shape = MeshShape.over(ranks, mesh);
      for (const [i, of] of places.entries()) {
        const from = `${of.name} on ${place.name}`;
        assert.deepEqual(await valuesOf(dir(place, of)), values[i], from);
        for (const [rank, report] of reports.entries()) {
          const next = (report[2 * i + 1] as LegReport).losses;
          assert.equal(next.length, 1, from);
          if (
            shape.sizes.dp > 1 ||
            of.ranks / MeshShape.over(of.ranks, of.mesh).size('pp', 'sp', 'tp') > 1
          )
            continue;
          requireNear(
            next[0] as number,
            saved[i]?.[0]?.losses[2] as number,
            1e-6,
            `${from} ${rank}`,
          );
        }
      }
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

/** One file of whole weights: exported by all ranks after the last step, and from a checkpoint. */
async function requireExports(dir: string, values: Record<string, number[]>): Promise<void> {
  const last = join(dir, 'weights.safetensors');
  const saved = join(dir, 'consolidated');
  await consolidate(dir, saved);
  for (const [path, isSame] of [
    [last, false],
    [saved, true],
  ] as const) {
    const files = await WeightFiles.open(path);
    const names = namesOf(values).filter((name) => !/\.(fp32|exp_avg|exp_avg_sq)$/.test(name));
    assert.deepEqual([...files.tensors.keys()].sort(), names);
    for (const name of names) {
      const read = await files.read(name);
      const flat = read.toArray().flat();
      assert.equal(flat.length, values[name]?.length);
      if (isSame) assert.deepEqual(flat, values[name]);
      else assert.notDeepEqual(flat, values[name]);
      read.release();
    }
    await files.close();
  }
}

const namesOf = (values: Record<string, unknown>): string[] => Object.keys(values).sort();

export const cases: Case[] = [
  {
    name: 'saved on 1, tp 4, tp 2 x dp 2 and pp 2 x tp 2, resumed on each of them',
    run: (device) => everywhere(device, PLACES),
    gpus: 4,
  },
];
