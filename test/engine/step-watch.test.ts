// Tests the steps, times, lines and events that observers of an engine receive.
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { resolveConfig } from '../../lib/config/index.js';
import { ReleaseStack } from '../../lib/engine/release-stack.js';
import { kindOf } from '../../lib/engine/setup/observers.js';
import { EmptyBatches } from '../../lib/engine/watch/empty-batches.js';
import { buildObservers, SegmentLines } from '../../lib/engine/watch/monitoring.js';
import type {
  FinishedStep,
  PhaseTimer,
  StepObserver,
  TimedStep,
} from '../../lib/engine/watch/phase-timer.js';
import { StepWatch, untimed } from '../../lib/engine/watch/step-watch.js';
import type { DsConfig, monitor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { countEmptyMeans } from '../../lib/tensor/index.js';
import * as recompute from '../../lib/tensor/recompute/index.js';

jest.mock('../../lib/tensor/recompute/index.js', () => ({
  ...jest.requireActual('../../lib/tensor/recompute/index.js'),
  times: jest.fn(() => []),
}));

const dir = mkdtempSync(join(tmpdir(), 'ds-step-watch-'));
afterAll(() => rmSync(dir, { recursive: true }));

const step = (more: Partial<FinishedStep> = {}): FinishedStep => ({
  step: 1,
  samples: 4,
  skipped: 0,
  applied: true,
  loss: 2,
  norm: 3,
  lr: [0.5, 0.1],
  betas: [[0.9, 0.95]],
  lossScale: 8,
  busy: null,
  ...more,
});
const timedStep = (n: number): TimedStep => ({
  step: n,
  samples: 4 * n,
  times: { forward: 10, backward: 20, reduce: 5, step: 3 },
});

/** A timer with these closed steps, which records its calls. */
class Timer implements PhaseTimer {
  readonly calls: string[] = [];
  constructor(
    private readonly before: TimedStep[],
    private readonly rest: TimedStep[],
  ) {}

  time<T>(_: string, body: () => T): T {
    return body();
  }
  finishStep(number: number, samples: number): void {
    this.calls.push(`finish ${number} ${samples}`);
  }
  takePassed = (): TimedStep[] => this.before.splice(0);
  all = (): TimedStep[] => this.rest.splice(0);
  last = () => timedStep(1).times;
  recordOn = (): PhaseTimer => this;
  dispose(): void {
    this.calls.push('dispose');
  }
}

/** An observer, and the events that it got. */
function observer(name: string, log: string[]): StepObserver {
  return {
    stepFinished: (finishedStep) => void log.push(`${name} step ${finishedStep.step}`),
    stepTimed: (timedStep) => void log.push(`${name} times ${timedStep.step}`),
    flush: async () => void log.push(`${name} flush`),
    close: () => void log.push(`${name} close`),
  };
}

test('observers get earlier times, then the step; added ones until they are removed', async () => {
  const log: string[] = [];
  const timer = new Timer([timedStep(1)], [timedStep(2)]);
  const watch = new StepWatch(timer, [observer('own', log), {}]);
  const remove = watch.add(observer('added', log));
  watch.finishStep(2, 8);
  watch.report(step({ step: 2 }));
  const seen = ['own times 1', 'added times 1', 'own step 2', 'added step 2'];
  expect(log).toEqual(seen);
  remove();
  remove();
  await watch.flush();
  watch.close();
  expect(log.slice(4)).toEqual(['own flush', 'own times 2', 'own close']);
  expect(timer.calls).toEqual(['finish 2 8', 'dispose']);
  expect(watch.times()).toEqual(timedStep(1).times);
});

test('a shared watch measures busy time, and reports times only to added observers', () => {
  const log: string[] = [];
  const timer = new Timer([timedStep(1)], []);
  const plain = { ...untimed, recordOn: () => timer };
  const watch = new StepWatch(plain, [observer('own', log)]);
  // `untimed` itself is not timed.
  const bare = new StepWatch(untimed, [observer('bare', log)]);
  expect([watch.busy, bare.times()]).toEqual([null, null]);
  watch.share(cpu());
  expect(watch.busy).toBe(0);
  watch.report(step());
  // Forward, backward without the wait for other ranks, and the update.
  expect(watch.busy).toBe(10 + 20 - 5 + 3);
  watch.share(cpu());
  expect(watch.busy).toBe(28);
  expect(log).toEqual(['own times 1', 'own step 1']);
});

test('without a measurement, only added observers get times, until these are recorded', () => {
  const log: string[] = [];
  const timer = new Timer([timedStep(1)], [timedStep(2)]);
  const recording = jest.spyOn(untimed, 'recordOn').mockReturnValue(timer);
  const watch = new StepWatch(untimed, [observer('own', log)]);
  watch.add(observer('added', log));
  watch.share(cpu());
  watch.report(step());
  expect(log).toEqual(['added times 1', 'own step 1', 'added step 1']);
  watch.record(cpu());
  watch.reportTimes();
  expect(log.slice(3)).toEqual(['own times 2', 'added times 2']);
  recording.mockRestore();
});

/** The lines on stdout of `body`. */
function capturePrints(body: () => void): string[] {
  const lines: string[] = [];
  const write = jest.spyOn(process.stdout, 'write').mockImplementation((text) => {
    lines.push(String(text));
    return true;
  });
  try {
    body();
  } finally {
    write.mockRestore();
  }
  return lines;
}

test('times of checkpointed segments are printed at every N-th step, if there are some', () => {
  const lines = new SegmentLines(2);
  expect(capturePrints(() => lines.stepFinished(step({ step: 2 })))).toEqual([]);
  jest.mocked(recompute.times).mockReturnValue([
    { segment: 0, forwardMs: 1.234, recomputeMs: 1.2 },
    { segment: 1, forwardMs: 2, recomputeMs: 3 },
  ] as never);
  const all = [1, 2, 3, 4];
  const found = capturePrints(() => {
    for (const one of all) lines.stepFinished(step({ step: one }));
  });
  const text = 'checkpoints (ms), forward + recompute | 0: 1.23 + 1.20 | 1: 2.00 + 3.00\n';
  expect(found).toEqual([`step=2, ${text}`, `step=4, ${text}`]);
  jest.mocked(recompute.times).mockReturnValue([]);
});

const configOf = (more: DsConfig) =>
  resolveConfig({ train_batch_size: 1, ...more }, { worldSize: 1 });

/** The events that a monitor of the caller gets from a step and from its times. */
function eventsOf(more: DsConfig, report: FinishedStep) {
  const events: monitor.MonitorEvent[] = [];
  const calls: string[] = [];
  const settings = {
    enabled: true,
    write: (monitorEvents: readonly monitor.MonitorEvent[]) => void events.push(...monitorEvents),
    flush: async () => void calls.push('flush'),
    close: () => void calls.push('close'),
  };
  const observers = buildObservers(configOf(more), [settings as never], new ReleaseStack());
  capturePrints(() => {
    for (const stepObserver of observers) stepObserver.stepFinished?.(report);
    for (const stepObserver of observers) stepObserver.stepTimed?.(timedStep(1));
  });
  return { events, observers, calls };
}

test('monitors get the names of DeepSpeed over samples', async () => {
  const { events, observers, calls } = eventsOf({}, step());
  expect(events).toEqual([
    { name: 'Train/Samples/train_loss', value: 2, step: 4 },
    { name: 'Train/Samples/lr', value: 0.5, step: 4 },
    ...Object.entries({
      forward: 10,
      backward: 20,
      backward_inner: 15,
      backward_allreduce: 5,
      step: 3,
    }).map(([phase, value]) => ({
      name: `Train/Samples/elapsed_time_ms_${phase}`,
      value,
      step: 4,
    })),
  ]);
  for (const stepObserver of observers) await stepObserver.flush?.();
  for (const stepObserver of observers) stepObserver.close?.();
  expect(calls).toEqual(['flush', 'close']);
});

test('a step without a loss has no loss event; fp16 reports its loss scale', () => {
  const names = (more: DsConfig, report: FinishedStep) =>
    eventsOf(more, report)
      .events.filter(({ name }) => !name.includes('elapsed'))
      .map(({ name, value }) => [name.replace('Train/Samples/', ''), value]);
  expect(names({}, step({ loss: null, lr: [] }))).toEqual([['lr', 0]]);
  expect(names({ fp16: { enabled: true } }, step())).toEqual([
    ['train_loss', 2],
    ['lr', 0.5],
    ['loss_scale', 8],
  ]);
});

test('lines are printed as the configuration asks', () => {
  const lines = (more: DsConfig): string[] => {
    const observers = buildObservers(configOf(more), [], new ReleaseStack());
    return capturePrints(() => {
      for (const n of [1, 2, 3]) {
        for (const stepObserver of observers)
          stepObserver.stepFinished?.(step({ step: n, samples: 4 * n }));
        for (const stepObserver of observers) stepObserver.stepTimed?.(timedStep(n));
      }
    });
  };
  const kinds = (more: DsConfig) =>
    lines(more).map((line) => (/forward/.test(line) ? 'times' : 'progress'));
  expect(lines({ steps_per_print: null as never })).toEqual([]);
  const silent = configOf({ steps_per_print: null as never });
  expect(buildObservers(silent, [], new ReleaseStack())).toEqual([]);
  expect(kinds({ steps_per_print: 2 })).toEqual(['progress']);
  expect(kinds({ steps_per_print: 1 })).toEqual(['progress', 'progress', 'progress']);
  expect(kinds({ steps_per_print: 3, wall_clock_breakdown: true })).toEqual(['progress', 'times']);
});

test('monitors of the configuration write into their folder, and are closed with the engine', () => {
  const opened = new ReleaseStack();
  const csv = { enabled: true, output_path: dir, job_name: 'job' };
  const observers = buildObservers(configOf({ csv_monitor: csv }), [], opened);
  for (const stepObserver of observers) stepObserver.stepFinished?.(step());
  opened.release();
  const files = readdirSync(join(dir, 'job')).sort();
  expect(files.some((name) => /loss/.test(name))).toBe(true);
  const [loss = ''] = files.filter((name) => /loss/.test(name));
  expect(readFileSync(join(dir, 'job', loss), 'utf8')).toMatch(/4,2/);
});

test('empty micro-batches are noted once, and the counter ends with its engine', () => {
  const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const first = new EmptyBatches(cpu(), 3);
  const second = new EmptyBatches(cpu(), 0);
  // The counter of a later engine stays.
  first.report(1);
  first.report(2);
  expect(countEmptyMeans(second.count)).toBe(second.count);
  second.report(2);
  expect(countEmptyMeans(null)).toBeNull();
  expect(warn.mock.calls.map(([text]) => String(text).split(' counts')[0])).toEqual([
    'On rank 3 no label of a micro-batch',
    'On rank 0 no label of 2 micro-batches',
  ]);
  expect(warn.mock.calls[0]?.[1]).toEqual({ type: 'DsNotice', code: 'DS_NOTICE' });
  warn.mockRestore();
  first.dispose();
  second.dispose();
});

test.each([
  ['all_reduce', 'allReduce'],
  ['all_gather_into_tensor', 'allGather'],
  ['reduce_scatter_tensor', 'reduceScatter'],
  ['all_gather_base', 'allGather'],
  ['all_to_all_single', 'allToAll'],
  ['all_gather_coalesced', 'allGather'],
  ['isend', 'send'],
  ['irecv', 'recv'],
  ['inference_all_reduce', 'inferenceAllReduce'],
])('the collective %s of DeepSpeed is %s', (name, kind) => {
  expect(kindOf(name as never)).toBe(kind);
});
