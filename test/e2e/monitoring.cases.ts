// Tests that monitors, files and console lines show the values of the engine, at most one step
// late.
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type DsConfig,
  type Engine,
  initialize,
  type monitor,
  type Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { seed } from '../../lib/tensor/index.js';
import { readEvents } from '../monitor/event-reader.js';
import type { Case } from '../support/case.js';
import { captureOutput } from '../support/printed.js';
import {
  type TinyOptions,
  tinyBatch,
  tinyConfig,
  tinyModel,
  tinyShape,
  trainTiny,
} from './tiny-training.js';

const LOSS = 'Train/Samples/train_loss';
const LR = 'Train/Samples/lr';
const SCALE = 'Train/Samples/loss_scale';
const time = (phase: string): string => `Train/Samples/elapsed_time_ms_${phase}`;
const TIMES = ['forward', 'backward', 'step'].map(time);

/** Records all events. */
class Recorder implements monitor.Monitor {
  readonly events: monitor.MonitorEvent[] = [];
  flushed = 0;
  closed = 0;

  write(events: readonly monitor.MonitorEvent[]): void {
    this.events.push(...events);
  }

  async flush(): Promise<void> {
    this.flushed++;
  }

  close(): void {
    this.closed++;
  }

  of(name: string): { step: number; value: number }[] {
    const found = this.events.filter((event) => event.name === name);
    return found.map(({ step, value }) => ({ step, value }));
  }
}

const tiny: TinyOptions = { precision: 'fp16', offload: false, accumulation: 2 };

async function watchedEngine(
  device: Device,
  extra: DsConfig,
  monitors: monitor.Monitor[] = [],
  options = tiny,
): Promise<Engine> {
  seed(1234);
  const config = { ...tinyConfig(options), ...extra };
  const { engine } = await initialize({ model: tinyModel(), config, device, monitors });
  return engine;
}

/** The values that the engine reports after each of `steps` steps. */
async function expectation(device: Device, steps: number): Promise<Record<string, object[]>> {
  const engine = await watchedEngine(device, {});
  const events: Record<string, object[]> = { [LOSS]: [], [LR]: [], [SCALE]: [] };
  for (let index = 0; index < steps; ++index) {
    const losses = trainTiny(engine, index, index + 1) as [number, number];
    const step = engine.globalSamples;
    events[LOSS]?.push({ step, value: Math.fround(losses[0] + losses[1]) / 2 });
    events[LR]?.push({ step, value: engine.getLr()[0] });
    events[SCALE]?.push({ step, value: engine.lossScale });
  }
  assert.ok(engine.skippedSteps > 0, 'no overflow: the loss scale was not tried');
  engine.destroy();
  return events;
}

async function equalsEngine(device: Device): Promise<void> {
  const recorder = new Recorder();
  const engine = await watchedEngine(device, {}, [recorder]);
  trainTiny(engine, 0, 12);
  engine.destroy();
  const expectedEvents = await expectation(device, 12);
  for (const name of [LOSS, LR, SCALE])
    assert.deepEqual(recorder.of(name), expectedEvents[name], name);
  assert.equal(recorder.events.length, 3 * 12);
  assert.equal(recorder.closed, 1);
}

/** The x values of all events of `name` so far, in steps. */
function stepsOf(recorder: Recorder, name: string): number[] {
  return recorder.of(name).map(({ step }) => step / tinyShape.batch);
}

async function oneStepLate(device: Device): Promise<void> {
  const recorder = new Recorder();
  const options: TinyOptions = { precision: 'fp32', offload: false };
  const engine = await watchedEngine(device, { wall_clock_breakdown: true }, [recorder], options);
  const recordedSteps = (): number[][] => [
    stepsOf(recorder, LOSS),
    stepsOf(recorder, TIMES[0] as string),
  ];
  const { tokens, targets } = tinyBatch(0, device);
  for (let step = 1; step <= 3; ++step) {
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
  }
  assert.deepEqual(recordedSteps(), [[1, 2], [1]]);
  engine.synchronize();
  assert.deepEqual(recordedSteps(), [
    [1, 2, 3],
    [1, 2, 3],
  ]);
  for (const name of TIMES) {
    for (const { value } of recorder.of(name)) assert.ok(value > 0 && value < 60_000, name);
  }
  const last = (phase: string): number | undefined => recorder.of(time(phase)).at(-1)?.value;
  const phases = ['forward', 'backward', 'backward_allreduce', 'step'];
  const [forward, backward, reduce, step] = phases.map(last);
  assert.deepEqual(engine.phaseTimes(), { forward, backward, reduce, step });
  assert.equal(reduce, 0, 'one rank reduces nothing');
  assert.equal(last('backward_inner'), backward);
  engine.destroy();
  for (const tensor of [tokens, targets]) tensor.dispose();
}

async function checkAsked(device: Device): Promise<void> {
  const recorder = new Recorder();
  const engine = await watchedEngine(device, {}, [recorder]);
  trainTiny(engine, 0, 1);
  assert.equal(engine.phaseTimes(), null);
  engine.recordPhases();
  trainTiny(engine, 1, 4);
  assert.ok(recorder.of(time('forward')).length > 0, 'told while it trains');
  const times = engine.phaseTimes();
  assert.ok(times && times.forward > 0 && times.backward > 0, JSON.stringify(times));
  assert.deepEqual(engine.phaseTimes(), times, 'asked twice');
  engine.synchronize();
  const reported = ['forward', 'backward', 'step'].map(
    (name) => recorder.of(time(name)).at(-1)?.value,
  );
  assert.deepEqual(reported, [times.forward, times.backward, times.step]);
  engine.destroy();
}

async function files(device: Device, folder: string): Promise<void> {
  const section = { enabled: true, output_path: folder };
  const recorder = new Recorder();
  const engine = await watchedEngine(
    device,
    { tensorboard: { ...section, job_name: 'tb' }, csv_monitor: section },
    [recorder],
  );
  trainTiny(engine, 0, 3);
  await engine.saveCheckpoint(join(folder, 'checkpoints'));
  assert.equal(recorder.flushed, 1);
  const [name, ...others] = readdirSync(join(folder, 'tb'));
  assert.deepEqual(others, []);
  const [version, ...events] = readEvents(readFileSync(join(folder, 'tb', name as string)));
  assert.equal(version?.version, 'brain.Event:2');
  assert.deepEqual(
    events.map(({ step, values }) => ({ step, values })),
    recorder.events.map(({ name: tag, value, step }) => ({
      step,
      values: [{ tag, value: Math.fround(value) }],
    })),
  );
  for (const metric of [LOSS, LR, SCALE]) {
    const file = join(folder, 'DeepSpeedJobName', `${metric.replaceAll('/', '_')}.csv`);
    const [header, ...rows] = readFileSync(file, 'utf8').trimEnd().split('\r\n');
    assert.equal(header, `step,${metric.split('/')[2]}`);
    assert.deepEqual(
      rows.map((row) => row.split(',').map(Number)),
      recorder.of(metric).map(({ step, value }) => [step, value]),
    );
  }
  engine.destroy();
}

async function consoleLines(device: Device): Promise<void> {
  const extra = { steps_per_print: 2, wall_clock_breakdown: true };
  const options: TinyOptions = { precision: 'fp32', offload: false };
  let [rate, loss] = [0, 0];
  const text = await captureOutput(async () => {
    const engine = await watchedEngine(device, extra, [], options);
    loss = trainTiny(engine, 0, 2).at(-1) as number;
    rate = engine.getLr()[0] as number;
    trainTiny(engine, 2, 5);
    engine.destroy();
  });
  const lines = text.split('\n').slice(0, -1);
  assert.equal(lines.length, 4, lines.join('\n'));
  const [first, second] = lines.filter((line) => line.includes('lr='));
  const start = `step=2, skipped=0, lr=[${rate}], mom=[[0.9, 0.95]], loss=${loss.toPrecision(5)}, samples/s=`;
  assert.ok(first?.startsWith(start), `${first}, expected ${start}`);
  assert.match(second ?? '', /^step=4, .*samples\/s=\d+\.\d$/);
  const times = lines.filter((line) => line.includes('time (ms)'));
  const numbers =
    / \| forward: \d+\.\d\d \| backward: \d+\.\d\d \| reduce: 0\.00 \| step: \d+\.\d\d$/;
  for (const line of times) assert.match(line, numbers);
}

async function lastWords(device: Device): Promise<void> {
  const recorder = new Recorder();
  const options: TinyOptions = { precision: 'fp32', offload: false };
  const engine = await watchedEngine(device, {}, [recorder], options);
  const { tokens, targets } = tinyBatch(0, device);
  engine.backward(engine.forward<Tensor>(tokens, targets).mul(Number.NaN));
  engine.step();
  assert.throws(() => engine.synchronize(), /DS_NONFINITE|finite loss/);
  assert.deepEqual(recorder.of(LOSS), [{ step: tinyShape.batch, value: Number.NaN }]);
  engine.destroy();
  for (const tensor of [tokens, targets]) tensor.dispose();
}

async function notices(device: Device): Promise<void> {
  const { emitWarning } = process;
  const warnings: unknown[][] = [];
  process.emitWarning = (...words: unknown[]) => void warnings.push(words);
  try {
    const extra = { zero_optimization: { stage: 1, overlap_comm: true } } as const;
    (await watchedEngine(device, extra)).destroy();
  } finally {
    process.emitWarning = emitWarning;
  }
  assert.equal(warnings.length, 1);
  const [text, options] = warnings[0] as [string, { code: string }];
  assert.match(text, /^zero_optimization.overlap_comm has no effect/);
  assert.equal(options.code, 'DS_NOTICE');
}

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'ds-monitoring-'));
  try {
    await body(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export const cases: Case[] = [
  { name: "a monitor receives the engine's values, with overflows", run: equalsEngine },
  {
    name: 'a step is reported during the next, its times one later, all by the end',
    run: async (device) => void (await captureOutput(() => oneStepLate(device))),
  },
  { name: 'phases are timed from when they are asked for', run: checkAsked },
  {
    name: 'event file and CSV hold the values that a custom monitor receives',
    run: (device) => inFolder((folder) => files(device, folder)),
  },
  { name: 'lines of steps_per_print and wall_clock_breakdown', run: consoleLines },
  { name: 'the loss that ends training is reported before the error', run: lastWords },
  { name: 'keys without effect are warned of once, at initialize', run: notices },
];
