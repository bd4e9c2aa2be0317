// Tests traces of steps: the format of viewers, nested spans, and a run with unchanged results.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DsError, type Engine, type profiler } from '../../lib/index.js';
import { addon } from '../../lib/runtime/addon.js';
import type { Device } from '../../lib/runtime/device.js';
import {
  type TinyOptions,
  tinyBatch,
  tinyEngine,
  trainTiny,
  weightBits,
} from '../e2e/tiny-training.js';
import type { Case } from '../support/case.js';
import { laneNamed, readTrace, spansIn } from './trace-form.js';

const offloaded: TinyOptions = { precision: 'bf16', offload: true, accumulation: 2 };

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-trace-'));
  try {
    await body(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Steps 2 and 3 of 4, of an engine with `options`. */
async function traceStep(device: Device, file: string, options = offloaded) {
  const engine = await tinyEngine(options, device);
  assert.equal(engine.trace(file, { steps: 2, after: 1 }), file);
  const losses = trainTiny(engine, 0, 4);
  const bits = weightBits(engine);
  engine.destroy();
  return { events: readTrace(file), losses, bits };
}

const inside = (inner: profiler.TraceEvent, outer: profiler.TraceEvent): boolean =>
  inner.ts >= outer.ts && inner.ts + inner.dur <= outer.ts + outer.dur;

/** Both lanes have steps 2 and 3, each with two micro-batches and an update. */
async function phases(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const { events } = await traceStep(device, join(folder, 'deep', 'trace.json'));
    for (const lane of ['training thread', 'phases']) {
      const spans = spansIn(events, lane);
      const steps = spans.filter(({ cat }) => cat === 'step');
      assert.deepEqual(
        steps.map(({ name }) => name),
        ['step 2', 'step 3'],
      );
      for (const step of steps) {
        const localTraceEvents = spans.filter((span) => span.cat === 'phase' && inside(span, step));
        assert.deepEqual(
          localTraceEvents.map(({ name }) => name),
          ['forward', 'backward', 'forward', 'backward', 'step'],
        );
      }
    }
    const ops = spansIn(events, 'compute');
    const [first, last] = spansIn(events, 'phases').filter(({ cat }) => cat === 'step');
    assert.ok(ops.length > 100);
    assert.ok(ops.every((op) => op.ts >= (first?.ts ?? 0)));
    assert.ok(ops.some(({ name }) => name === 'Matmul'));
    assert.ok((last?.dur ?? 0) > 0);
  });
}

/**
 * The host's update comes after the last backward and, on the CPU, inside the phase called step.
 */
async function hostUpdates(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const { events } = await traceStep(device, join(folder, 'trace.json'));
    const updates = spansIn(events, 'updates on the host').filter(({ name }) => /adam/i.test(name));
    assert.ok(updates.every(({ args }) => Number(args?.threads) > 0));
    const spans = spansIn(events, 'phases');
    const decided = spans.filter(({ name, cat }) => cat === 'phase' && name === 'step');
    assert.equal(updates.length, 2 * 3, 'three units in two steps');
    updates.forEach((update, i) => {
      const phase = decided[Math.floor(i / 3)] as profiler.TraceEvent;
      assert.ok(update.ts >= phase.ts, 'before its step');
      if (device.kind === 'cpu') assert.ok(inside(update, phase), 'after its step');
    });
    const copies = spansIn(events, 'gradients to the host');
    assert.ok(copies.length >= 3 && copies.every(({ args }) => Number(args?.bytes) > 0));
    assert.ok(spansIn(events, 'weights to the device').length >= 3);
  });
}

async function sameBits(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const calls = { ...addon };
    const { losses, bits } = await traceStep(device, join(folder, 'trace.json'));
    assert.ok(Object.entries(calls).every(([name, call]) => addon[name as 'run'] === call));
    const plain = await tinyEngine(offloaded, device);
    assert.deepEqual(trainTiny(plain, 0, 4), losses);
    assert.deepEqual(weightBits(plain), bits);
    plain.destroy();
  });
}

async function disk(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const swap = mkdtempSync(join(tmpdir(), 'ds-trace-disk-'));
    const { events } = await traceStep(device, join(folder, 'trace.json'), {
      ...offloaded,
      nvme: swap,
    });
    rmSync(swap, { recursive: true });
    const lane = laneNamed(events, 'writes');
    const writes = events.filter(
      ({ ph, pid, tid }) => ph === 'X' && pid === lane.pid && tid === lane.tid,
    );
    assert.ok(writes.length > 0 && writes.every(({ args }) => Number(args?.bytes) >= 4096));
  });
}

/** Training that ends before the traced steps do, and before they begin. */
async function checkUnfinished(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const engine = await tinyEngine(offloaded, device);
    const file = join(folder, 'trace.json');
    engine.trace(file, { steps: 5 });
    trainTiny(engine, 0, 1);
    const { tokens, targets } = tinyBatch(1, device);
    engine.forward(tokens, targets);
    engine.destroy();
    for (const tensor of [tokens, targets]) tensor.dispose();
    const steps = spansIn(readTrace(file), 'phases').filter(({ cat }) => cat === 'step');
    assert.deepEqual(
      steps.map(({ name }) => name),
      ['step 1', 'unfinished step'],
    );
    const early = await tinyEngine(offloaded, device);
    early.trace(file, { after: 5 });
    trainTiny(early, 0, 1);
    early.destroy();
    assert.deepEqual(readTrace(file), []);
  });
}

function refusal(engine: Engine, ...items: unknown[]): DsError {
  try {
    (engine.trace as (...words: unknown[]) => string).apply(engine, items);
  } catch (error) {
    if (error instanceof DsError) return error;
    throw error;
  }
  throw new assert.AssertionError({ message: `accepted ${JSON.stringify(items)}` });
}

async function refusals(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const engine = await tinyEngine({ precision: 'fp32', offload: false }, device);
    const file = join(folder, 'trace.json');
    writeFileSync(join(folder, 'taken'), '');
    const below = refusal(engine, join(folder, 'taken', 'trace.json'));
    assert.deepEqual([below.code, below.op.includes('taken')], ['DS_IO', true]);
    assert.equal(refusal(engine).code, 'DS_ARGUMENT');
    assert.match(refusal(engine, file, { steps: 0 }).message, /engine\.trace steps.*at least 1/);
    assert.match(refusal(engine, file, { stpes: 1 }).message, /stpes/);
    assert.equal(readdirSync(folder).join(), 'taken');
    engine.trace(file);
    assert.match(
      refusal(engine, join(folder, 'b.json')).message,
      /a second trace before the steps of .*trace\.json/,
    );
    trainTiny(engine, 0, 1);
    engine.trace(join(folder, 'b.json'));
    const other = await tinyEngine({ precision: 'fp32', offload: false }, device);
    other.trace(join(folder, 'c.json'));
    trainTiny(engine, 1, 2);
    trainTiny(other, 0, 1);
    for (const one of [engine, other]) one.destroy();
    assert.equal(readdirSync(folder).sort().join(), 'b.json,c.json,taken,trace.json');
    assert.ok(readFileSync(join(folder, 'c.json'), 'utf8').includes('step 1'));
  });
}

/** A second engine's trace begins with its first whole step after the other trace. */
async function takingTurns(device: Device): Promise<void> {
  await inFolder(async (folder) => {
    const engines = [
      await tinyEngine({ precision: 'fp32', offload: false }, device),
      await tinyEngine({ precision: 'fp32', offload: false }, device),
    ] as const;
    const [first, second] = engines;
    for (const [i, engine] of engines.entries())
      engine.trace(join(folder, `${i}.json`), { steps: 2 });
    for (let step = 0; step < 5; ++step)
      for (const engine of engines) trainTiny(engine, step, step + 1);
    const stepsOf = (file: string): string[] => {
      const { traceEvents } = JSON.parse(readFileSync(join(folder, file), 'utf8'));
      const all = traceEvents as { name: string; cat?: string; pid: number }[];
      const steps = all.filter(({ cat }) => cat === 'step').map(({ name }) => name);
      return [...new Set(steps)];
    };
    assert.deepEqual(stepsOf('0.json'), ['step 1', 'step 2']);
    assert.deepEqual(stepsOf('1.json'), ['step 2', 'step 3']);
    for (const engine of [first, second]) engine.destroy();
  });
}

export const cases: Case[] = [
  { name: 'trace: steps, and in them forward, backward and step', run: phases },
  { name: 'trace: updates on the host, and copies to and from it', run: hostUpdates },
  {
    name: 'trace: results are equal to an untraced run, and no call stays wrapped',
    run: sameBits,
  },
  { name: 'trace: transfers with a disk', run: disk },
  { name: 'trace: training that ends before the steps do', run: checkUnfinished },
  { name: 'trace: two engines in turn', run: takingTurns },
  { name: 'trace: files that cannot be written, wrong options, two at once', run: refusals },
];
