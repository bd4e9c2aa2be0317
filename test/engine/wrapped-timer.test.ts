// A timer around another one forwards every call, and engine.trace() writes complete phases.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type Phase,
  type PhaseTimer,
  type PhaseTimes,
  type TimedStep,
  WrappedTimer,
} from '../../lib/engine/watch/phase-timer.js';
import { ProfiledStep } from '../../lib/engine/watch/profiled-step.js';
import { readTraceOptions, TracedSteps } from '../../lib/engine/watch/traced-steps.js';
import { Trace } from '../../lib/profiler/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { thrownBy } from '../support/refusal.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-wrapped-timer-'));
afterAll(() => rmSync(dir, { recursive: true }));

const times: PhaseTimes = { forward: 1, backward: 2, reduce: 3, step: 4 };
const timed: TimedStep = { step: 7, samples: 28, times };

/** Records its calls. */
class Inner implements PhaseTimer {
  readonly calls: unknown[][] = [];
  constructor(readonly other: PhaseTimer | null = null) {}

  time<T>(phase: Phase, body: () => T): T {
    this.calls.push(['time', phase]);
    return body();
  }
  finishStep(step: number, samples: number): void {
    this.calls.push(['finishStep', step, samples]);
  }
  takePassed(): TimedStep[] {
    return [timed];
  }
  all(): TimedStep[] {
    return [timed, timed];
  }
  last(): PhaseTimes {
    return times;
  }
  recordOn(): PhaseTimer {
    return this.other ?? this;
  }
  dispose(): void {
    this.calls.push(['dispose']);
  }
}

test('every call reaches the inner timer', () => {
  class Plain extends WrappedTimer {}
  const recorded = new Inner();
  const inner = new Inner(recorded);
  const timer = new Plain(inner);
  expect(timer.time('step', () => 5)).toBe(5);
  timer.finishStep(3, 12);
  expect(inner.calls).toEqual([
    ['time', 'step'],
    ['finishStep', 3, 12],
  ]);
  expect([timer.takePassed(), timer.all(), timer.last()]).toEqual([[timed], [timed, timed], times]);
  expect(timer.recordOn(cpu())).toBe(timer);
  timer.time('forward', () => {});
  timer.dispose();
  expect(recorded.calls).toEqual([['time', 'forward'], ['dispose']]);
});

function traceTimer(name: string, after = 0) {
  const path = join(dir, name);
  const inner = new Inner();
  const ended: PhaseTimer[] = [];
  const options = { path, steps: 1, after, trace: new Trace(cpu(), { rank: 0 }) };
  const timer = new TracedSteps(inner, options, (one) => ended.push(one));
  const names = (): string[] => {
    const { traceEvents } = JSON.parse(readFileSync(path, 'utf8'));
    const spans = traceEvents.filter(({ ph }: { ph: string }) => ph === 'X');
    return spans.map(({ name }: { name: string }) => name);
  };
  return { timer, inner, ended, names };
}

test('a traced step has its phases', () => {
  const { timer, inner, ended, names } = traceTimer('whole.json', 1);
  timer.time('forward', () => {});
  timer.finishStep(1, 4);
  expect(ended).toEqual([]);
  timer.time('forward', () => {});
  timer.time('backward', () => {});
  timer.finishStep(2, 8);
  expect(ended).toEqual([inner]);
  expect(inner.calls.filter(([name]) => name === 'finishStep')).toEqual([
    ['finishStep', 1, 4],
    ['finishStep', 2, 8],
  ]);
  // Rows of the host and of the device.
  expect(new Set(names())).toEqual(new Set(['backward', 'forward', 'step 2']));
});

test('a trace that is disposed early writes its unfinished step and disposes the inner timer', () => {
  const { timer, inner, ended, names } = traceTimer('early.json');
  timer.time('forward', () => {});
  timer.dispose();
  expect(ended).toEqual([inner]);
  expect(inner.calls.at(-1)).toEqual(['dispose']);
  expect(names()).toContain('unfinished step');
});

describe('the step that the profiler counts', () => {
  afterEach(() => jest.restoreAllMocks());

  function profileTimer(profileStep: number, fails = false) {
    const calls: string[] = [];
    const printed: Record<string, unknown>[] = [];
    const profiler = {
      device: cpu(),
      startProfile: () => void calls.push('start'),
      stopProfile: () => void calls.push('stop'),
      endProfile: () => void calls.push('end'),
      printModelProfile: (options: object, facts: Record<string, unknown>) => {
        if (fails) throw new Error('no space');
        printed.push({ options, ...facts });
      },
    };
    const inner = new Inner();
    const options = { profileStep, detailed: true };
    const timer = new ProfiledStep(inner, profiler as never, options as never);
    const step = (number: number, samples: number): void => {
      for (const phase of ['forward', 'backward', 'forward', 'backward', 'step'] as const) {
        expect(timer.time(phase, () => phase)).toBe(phase);
      }
      timer.finishStep(number, samples);
    };
    return { timer, inner, calls, printed, step };
  }

  test('times only the chosen step, with its samples and micro-batches', () => {
    const { timer, inner, calls, printed, step } = profileTimer(2);
    step(1, 4);
    expect(calls).toEqual([]);
    step(2, 12);
    step(3, 16);
    expect(calls).toEqual(['start', 'stop', 'end']);
    expect(printed).toMatchObject([
      { options: { detailed: true }, step: 2, samples: 8, microBatches: 2 },
    ]);
    const [{ latencyMs } = {}] = printed;
    const { forward, total } = latencyMs as Record<string, number>;
    expect(forward).toBeGreaterThanOrEqual(0);
    expect(total).toBeGreaterThanOrEqual(forward as number);
    expect(inner.calls.filter(([name]) => name === 'time')).toHaveLength(15);
    timer.dispose();
    expect(calls).toHaveLength(3);
  });

  test('is not printed for a run that resumes later', () => {
    const { calls, printed, step } = profileTimer(1);
    step(7, 28);
    step(8, 32);
    expect([calls, printed]).toEqual([['start', 'stop', 'end'], []]);
  });

  test('is dropped if the engine ends during the step', () => {
    const { timer, inner, calls, printed } = profileTimer(1);
    timer.time('forward', () => {});
    timer.dispose();
    expect([calls, printed, inner.calls.at(-1)]).toEqual([['start', 'end'], [], ['dispose']]);
  });

  test('is a warning if it cannot be written', () => {
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const { step } = profileTimer(1, true);
    step(1, 4);
    expect(warn.mock.calls).toEqual([
      [
        'flops_profiler could not write its profile: no space',
        { type: 'DsWarning', code: 'DS_MONITOR' },
      ],
    ]);
  });
});

describe('the file of a trace', () => {
  const optionsOf = (path: unknown, given: object = {}, rank = 0) =>
    readTraceOptions(path as string, given as never, { device: cpu(), rank });

  test('exists before its steps; ranks have files of their own', () => {
    const inside = join(dir, 'new', 'trace.json');
    expect(optionsOf(inside)).toMatchObject({ path: inside, steps: 1, after: 0 });
    expect(JSON.parse(readFileSync(inside, 'utf8'))).toEqual({ traceEvents: [] });
    const fileNameOf = (name: string) =>
      optionsOf(join(dir, name), {}, 2).path.slice(dir.length + 1);
    expect(['a.json', 'a.txt', 'a', 'a.json.gz'].map(fileNameOf)).toEqual([
      'a.rank2.json',
      'a.rank2.txt',
      'a.rank2',
      'a.json.gz.rank2',
    ]);
    expect(readFileSync(join(dir, 'a.rank2.txt'), 'utf8')).toBe('');
    expect(optionsOf(inside, { steps: 3, after: 2 })).toMatchObject({ steps: 3, after: 2 });
  });

  test.each<[path: unknown, given: object, code: string]>([
    ['', {}, 'DS_ARGUMENT'],
    [5, {}, 'DS_ARGUMENT'],
    ['x.json', { steps: 0 }, 'DS_ARGUMENT'],
    ['x.json', { steps: 1.5 }, 'DS_ARGUMENT'],
    ['x.json', { after: -1 }, 'DS_ARGUMENT'],
    ['x.json', { every: 1 }, 'DS_ARGUMENT'],
    ['/proc/none/x.json', {}, 'DS_IO'],
  ])('%j with %j is refused', (path, given, code) => {
    const error = thrownBy(() => optionsOf(path, given));
    expect(error.code).toBe(code);
    expect(error.op).toMatch(/^engine\.trace/);
  });

  test('has its steps after those of earlier traces, and a table of roles next to it', () => {
    const path = join(dir, 'roles.txt');
    const ended: PhaseTimer[] = [];
    const options = { path, steps: 2, after: 1, trace: new Trace(cpu(), { rank: 0 }) };
    const inner = new Inner();
    const timer = new TracedSteps(inner, options, (one) => ended.push(one));
    const step = (number: number): void => {
      timer.time('forward', () => {});
      timer.finishStep(number, number);
    };
    for (const number of [1, 2]) step(number);
    expect(ended).toEqual([]);
    step(3);
    expect(ended).toEqual([inner]);
    expect(readFileSync(path, 'utf8')).toMatch(/\n$/);
    expect(timer.refuseAnother()).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'engine.trace',
      got: `a second trace before the steps of ${path}`,
    });
  });

  test('that cannot be written is a warning', () => {
    const path = join(dir, 'gone', 'trace.json');
    const warn = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const options = { path, steps: 1, after: 0, trace: new Trace(cpu(), { rank: 0 }) };
    const timer = new TracedSteps(new Inner(), options, () => {});
    timer.time('forward', () => {});
    timer.finishStep(1, 1);
    expect(warn.mock.calls).toEqual([
      [
        expect.stringContaining(`engine.trace could not write ${path}: `),
        { type: 'DsWarning', code: 'DS_MONITOR' },
      ],
    ]);
    warn.mockRestore();
  });
});
