// Tests that a failed initialize() leaves nothing open or allocated, and that another engine can
// take its model.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DsConfig,
  type InitializeOptions,
  initialize,
  liveTensors,
  type monitor,
  nn,
  optim,
  type Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import { reportsOf, runRanks } from '../comm/ranks.js';
import type { Case } from '../support/case.js';
import { quiet } from '../support/quiet.js';
import type { FailedJob, FailedReport } from './failed-ranks-process.js';

import { Fragile } from './fragile-model.js';

type Options = InitializeOptions<unknown, unknown>;

/** A folder of the run. A file at `blocked` prevents a folder of that name. */
interface Place {
  folder: string;
  blocked: string;
}

interface Failure {
  name: string;
  /** Matches the message. */
  message: RegExp;
  config?: DsConfig;
  options?: (model: Fragile) => Partial<Options>;
  /** How the model fails during the attempt. */
  breaks?: Fragile['breaks'];
}

const BASE: DsConfig = {
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
};

const offloadConfig = (super_offload: boolean): DsConfig => ({
  zero_optimization: { stage: 1, offload_optimizer: { device: 'cpu', super_offload } },
});

/** Counters that a failed attempt must not change. */
function heldResources(device: Device): Record<string, unknown> {
  const { inUse, liveBuffers } = device.memory;
  return { inUse, liveBuffers, tensors: liveTensors() };
}

/** Files below `folder` that this process has open, one per line. */
function openBelow(folder: string): string {
  const paths = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return ''; // closed by now, like the descriptor that lists the folder
    }
  });
  return paths.filter((path) => path.startsWith(folder)).join('\n');
}

/** Monitors that are open when initialize() fails. */
const watchConfig = ({ folder }: Place): DsConfig => ({
  tensorboard: { enabled: true, output_path: folder, job_name: 'events' },
  csv_monitor: { enabled: true, output_path: folder, job_name: 'csv' },
});

class Closing implements monitor.Monitor {
  closed = 0;
  write(): void {}
  async flush(): Promise<void> {}
  close(): void {
    this.closed++;
  }
}

/** An optimizer of the caller that fails to create the state of the last parameters. */
class Stateless extends optim.AdamW {
  private asked = 0;

  override declareState(group: number, shape: readonly number[]): optim.DeclaredState {
    // The layout calls this twice per parameter before the first state exists.
    const laidOut = 2 * this.groups.flatMap(({ params }) => params).length;
    if (this.asked++ > laidOut + 1) throw new Error('no state');
    return super.declareState(group, shape);
  }
}

const stranger = new nn.Parameter([3], () => {});

const failures: Failure[] = [
  {
    name: 'optimizer parameters',
    message: /betas/,
    config: { optimizer: { type: 'AdamW', params: { betas: [2, 0.9] } } },
  },
  {
    name: 'a parameter in two groups',
    message: /group 1/,
    options: (model) => {
      const params = model.parameters();
      return { modelParameters: [{ params }, { params: params.slice(0, 1) }] };
    },
  },
  {
    name: 'a parameter of another model',
    message: /parameters of the model/,
    options: (model) => ({ modelParameters: [...model.parameters(), stranger] }),
  },
  {
    name: 'one schedule too many',
    message: /2 schedules/,
    options: () => {
      const schedule = new optim.ConstantLr({ baseLr: 1, factor: 1, steps: 1 });
      return { lrScheduler: () => [schedule, schedule] };
    },
  },
  {
    name: 'a list of rates that is not as long as the groups',
    message: /one for each parameter group/,
    config: { scheduler: { type: 'LRRangeTest', params: { lr_range_test_min_lr: [1, 2, 3] } } },
  },
  {
    name: 'speculation with an optimizer that cannot',
    message: /speculative updates/,
    config: { ...offloadConfig(true), optimizer: { type: 'SGD', params: { lr: 1e-2 } } },
  },
  {
    name: 'training data that fill no batch',
    message: /DataLoader/,
    options: () => ({ trainingData: { length: 0, get: () => 0 } }),
  },
  {
    name: 'training data that no worker can build',
    message: /worker thread can build/,
    options: () => ({ trainingData: { length: 8, get: () => 0 }, numWorkers: 1 }),
  },
  { name: 'initial values', message: /initial values/, breaks: 'values' },
  {
    name: 'initial values, offloaded',
    message: /initial values/,
    breaks: 'values',
    config: offloadConfig(false),
  },
  {
    name: 'initial values, offloaded speculatively',
    message: /initial values/,
    breaks: 'values',
    config: offloadConfig(true),
  },
  {
    name: 'optimizer state',
    message: /no state/,
    options: (model) => ({ optimizer: new Stateless(model.parameters(), { lr: 1e-2 }) }),
  },
  {
    name: 'optimizer state, offloaded',
    message: /no state/,
    config: offloadConfig(false),
    options: (model) => ({ optimizer: new Stateless(model.parameters(), { lr: 1e-2 }) }),
  },
  { name: 'the last hook', message: /units at the end/, breaks: 'hooks' },
  {
    name: 'the last hook, offloaded',
    message: /units at the end/,
    breaks: 'hooks',
    config: offloadConfig(true),
  },
];

/** Trains `model` from its initial values, then frees everything. */
async function train(model: Fragile, device: Device): Promise<number[][]> {
  const x = Fragile.input(device);
  const { engine } = await initialize({ model, config: BASE, device });
  for (let step = 0; step < 3; ++step) {
    engine.backward(engine.forward<Tensor>(x));
    engine.step();
  }
  engine.synchronize();
  const values = model.parameters().map((parameter) => parameter.toArray());
  engine.destroy();
  x.dispose();
  model.dispose();
  return values;
}

function freshModel(): Fragile {
  seed(5);
  return new Fragile();
}

async function inFolder(body: (place: Place) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-failed-'));
  const blocked = join(folder, 'blocked');
  writeFileSync(blocked, '');
  try {
    await body({ folder, blocked });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Fails with open monitors, compares the counters, and then trains the same model. */
async function releases(
  { message, config, options, breaks }: Failure,
  device: Device,
): Promise<void> {
  const expected = await train(freshModel(), device);
  await inFolder(async (place) => {
    await quiet();
    const before = heldResources(device);
    const localClosing = new Closing();
    const model = freshModel();
    model.breaks = breaks ?? null;
    const attempt = initialize({
      model,
      device,
      monitors: [localClosing],
      config: { ...BASE, ...watchConfig(place), ...config },
      ...options?.(model),
    });
    await assert.rejects(attempt, message);
    assert.equal(openBelow(place.folder), '');
    assert.equal(localClosing.closed, 0, "the caller's monitor stays open");
    model.breaks = null;
    assert.deepEqual(await train(model, device), expected);
    assert.deepEqual(heldResources(device), before);
  });
}

/** The second of two monitors cannot be opened. */
async function closesTheFirstMonitor(device: Device): Promise<void> {
  await inFolder(async ({ folder, blocked }) => {
    await quiet();
    const before = heldResources(device);
    const model = freshModel();
    const tensorboard = { enabled: true, output_path: folder, job_name: 'events' };
    for (const bad of [
      { tensorboard, csv_monitor: { enabled: true, output_path: blocked, job_name: 'csv' } },
      { tensorboard: { ...tensorboard, output_path: blocked } },
    ]) {
      await assert.rejects(initialize({ model, device, config: { ...BASE, ...bad } }), {
        code: 'DS_IO',
      });
      assert.equal(openBelow(folder), '');
    }
    model.dispose();
    assert.deepEqual(heldResources(device), before);
  });
}

/** Memory runs out, a little later at each attempt. */
async function runsOutOfMemory(device: Device, config: DsConfig): Promise<void> {
  await quiet();
  device.trim();
  const before = heldResources(device);
  const { reserved } = device.memory;
  let failed = 0;
  try {
    for (let room = 4096, fits = false; !fits; room += 4096) {
      const model = freshModel();
      device.setMemoryCap(reserved + room);
      try {
        const { engine } = await initialize({ model, device, config: { ...BASE, ...config } });
        engine.destroy();
        fits = true;
      } catch (error) {
        assert.equal((error as { code: string }).code, 'DS_OUT_OF_MEMORY');
        failed++;
      }
      model.dispose();
      assert.deepEqual(heldResources(device), before, `with ${room} bytes`);
      device.trim();
    }
  } finally {
    device.setMemoryCap(0);
  }
  assert.ok(failed > 3, `${failed} attempts failed`);
}

/**
 * Both ranks fail while the first unit is filled; the next attempt trains as a first one. Weights
 * that were freed with an engine's shards raise an error and are not drawn again.
 */
async function retriesOnRanks(device: Device, config: DsConfig): Promise<void> {
  const run = async (fails: boolean): Promise<FailedReport[]> => {
    const job: FailedJob = { device: device.kind, config: { ...BASE, ...config }, fails };
    return reportsOf(await runRanks('../e2e/failed-ranks-process', 2, { job }));
  };
  const [plain, retried] = [await run(false), await run(true)];
  const sharded = JSON.stringify(config).includes('"stage":3');
  for (const [rank, { message, sameLogger, buffers, values, afterwards }] of retried.entries()) {
    assert.equal(afterwards, sharded ? 'DS_RELEASED' : '');
    assert.match(message, /initial values/);
    assert.ok(sameLogger);
    assert.equal(buffers, plain[rank]?.buffers);
    assert.deepEqual(values, plain[rank]?.values);
  }
}

/**
 * Only the first rank opens monitors. If that fails, the other ranks do not wait for the job's
 * timeout.
 */
async function tellsTheOtherRank(): Promise<void> {
  await inFolder(async ({ blocked }) => {
    const csv_monitor = { enabled: true, output_path: blocked, job_name: 'csv' };
    const job = { ...BASE, csv_monitor };
    const results = await runRanks('../e2e/unwritable-log-process', 2, { job });
    const [first, second] = reportsOf<{ code: string; message: string }>(results);
    assert.equal(first?.code, 'DS_IO');
    assert.equal(second?.code, 'DS_COMM');
    assert.match(second?.message ?? '', /rank 0 failed: DS_IO .*a writable path/);
  });
}

export const cases: Case[] = [
  ...failures.map((failure) => ({
    name: `a failed initialize() leaves nothing behind: ${failure.name}`,
    run: (device: Device) => releases(failure, device),
  })),
  { name: 'a monitor that cannot be opened closes the others', run: closesTheFirstMonitor },
  {
    name: 'a monitor that the first of two ranks cannot open',
    run: tellsTheOtherRank,
    gpus: 2,
  },
  ...[1, 3].map((stage) => ({
    name: `two ranks initialize again after a failure, stage ${stage}`,
    run: (device: Device) =>
      retriesOnRanks(device, { zero_optimization: { stage: stage as 1 | 3 } }),
    gpus: 2,
  })),
  ...[{}, offloadConfig(false), offloadConfig(true)].map((config) => ({
    name: `an initialize() that runs out of memory gives all of it back: ${JSON.stringify(config)}`,
    run: (device: Device) => runsOutOfMemory(device, config),
    skip: ({ kind }: Device) =>
      kind === 'cpu' ? null : 'the driver reserves 32 MiB at a time: so small a model always fits',
  })),
];
