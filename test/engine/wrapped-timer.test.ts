// A timer around another one forwards every call, and engine.trace() writes complete phases.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type {
  Phase,
  PhaseTimer,
  PhaseTimes,
  TimedStep,
} from '../../lib/engine/watch/phase-timer.js';
import { TracedSteps } from '../../lib/engine/watch/traced-steps.js';
import { WrappedTimer } from '../../lib/engine/watch/wrapped-timer.js';
import { Trace } from '../../lib/profiler/index.js';
import { cpu } from '../../lib/runtime/device.js';

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
  passed(): TimedStep[] {
    return [timed];
  }
  all(): TimedStep[] {
    return [timed, timed];
  }
  last(): PhaseTimes {
    return times;
  }
  recording(): PhaseTimer {
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
  expect([timer.passed(), timer.all(), timer.last()]).toEqual([[timed], [timed, timed], times]);
  expect(timer.recording(cpu())).toBe(timer);
  timer.time('forward', () => {});
  timer.dispose();
  expect(recorded.calls).toEqual([['time', 'forward'], ['dispose']]);
});

function traced(name: string, after = 0) {
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
  const { timer, inner, ended, names } = traced('whole.json', 1);
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
  const { timer, inner, ended, names } = traced('early.json');
  timer.time('forward', () => {});
  timer.dispose();
  expect(ended).toEqual([inner]);
  expect(inner.calls.at(-1)).toEqual(['dispose']);
  expect(names()).toContain('unfinished step');
});
