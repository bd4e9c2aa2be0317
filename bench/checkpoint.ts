// Measures bytes per second of saving a checkpoint, verifying it, and loading it on the same and on
// other numbers of ranks.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Checkpoint, type Shard, saveCheckpoint, soloWorld } from '../lib/checkpoint/index.js';
import { cpu } from '../lib/runtime/device.js';
import { Tensor } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { median } from './report.js';

const SIDE = 1024;
const STATES = ['', '.fp32', '.exp_avg', '.exp_avg_sq'];

/**
 * --mb (of tensors, default 200), --rounds (default 5), --dir (default a temporary folder). One
 * rank on the CPU, in f32.
 */
export async function checkpointBench(options: Options): Promise<object> {
  const rounds = Number(options.rounds ?? 5);
  const bytes = Number(options.mb ?? 200) * 1e6;
  const count = Math.ceil(bytes / (STATES.length * SIDE * SIDE * 4));
  const tensor = Tensor.from(Float32Array.from({ length: SIDE * SIDE }, (_, i) => i)).keep();
  const shards = Array.from({ length: count }, (_, i) =>
    STATES.map((state): Shard => ({ name: `w${i}${state}`, shape: [SIDE, SIDE], tensor })),
  ).flat();
  const isModel = ({ name }: Shard) => !name.includes('.');
  const dir = mkdtempSync(join(options.dir ?? tmpdir(), 'ds-checkpoint-bench-'));
  const times: Record<string, number[]> = {};
  const time = async (label: string, body: () => Promise<unknown>) => {
    const begin = performance.now();
    await body();
    times[label] ??= [];
    times[label].push(performance.now() - begin);
  };
  try {
    const model = shards.filter(isModel);
    const optimizer = shards.filter((shard) => !isModel(shard));
    for (let round = 0; round < rounds; ++round) {
      await time('save', () => save(dir, model, optimizer));
      let checkpoint!: Checkpoint;
      await time('verify', async () => {
        checkpoint = await Checkpoint.open(dir);
      });
      await time('read', () => readAll(checkpoint, [SIDE, SIDE], 0));
      await time('read halves', async () => {
        for (const half of [0, 1]) await readAll(checkpoint, [(SIDE * SIDE) / 2], half);
      });
      await checkpoint.close();
    }
    const total = shards.length * tensor.bytes;
    const rates = Object.entries(times).map(([what, all]) => [
      `${what.replace(' ', '_')}_gb_per_s`,
      Number((total / 1e6 / median(all)).toFixed(2)),
    ]);
    return { mb: Math.round(total / 1e6), rounds, ...Object.fromEntries(rates) };
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function save(dir: string, model: readonly Shard[], optimizer: readonly Shard[]): Promise<string> {
  const infos = (all: readonly Shard[]) =>
    new Map(all.map(({ name, shape }) => [name, { dtype: 'f32' as const, shape }]));
  const content = {
    part: { data: 0, model: 0 },
    model,
    optimizer,
    modelIsSharded: false,
    catalog: { model: infos(model), optimizer: infos(optimizer) },
    state: {},
    rankState: {},
    description: null,
  };
  return saveCheckpoint({ dir, tag: 't', saveLatest: true }, content, soloWorld);
}

/** Part number `part` of every tensor into memory of `shape`. */
async function readAll(
  checkpoint: Checkpoint,
  shape: readonly number[],
  part: number,
): Promise<void> {
  const into = Tensor.empty(shape, 'f32', cpu()).keep();
  for (const section of ['model', 'optimizer'] as const) {
    for (const name of checkpoint.tensors(section).keys()) {
      await checkpoint.read(section, name, { from: part * into.numel }, into);
    }
  }
  into.dispose();
}
