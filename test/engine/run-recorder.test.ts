// Tests the rows that the page of a run shows: times of steps, means of phases, memory and ranks.
import * as breakdown from '../../lib/engine/watch/memory-breakdown.js';
import { EventTimer, type FinishedStep } from '../../lib/engine/watch/phase-timer.js';
import { RunRecorder } from '../../lib/engine/watch/run-recorder.js';
import { cpu } from '../../lib/runtime/device.js';
import { Event } from '../../lib/runtime/stream.js';

jest.mock('../../lib/engine/watch/memory-breakdown.js', () => ({ measureMemory: jest.fn() }));
afterEach(() => jest.restoreAllMocks());

/** A recorder at a clock that the test sets, and its rows by track. */
function recordRun(hasScale = false) {
  let now = 0;
  jest.spyOn(performance, 'now').mockImplementation(() => now);
  jest.mocked(breakdown.measureMemory).mockReturnValue({
    device: { inUse: 9, peak: 8, weights: 1, gradients: 2, optimizer: 3, other: -4 },
    host: { pinned: 5, resident: 6 },
  });
  const rows: { e: string; track?: string; step: number; values: Record<string, number> }[] = [];
  const log = { write: (row: never) => void rows.push(row) };
  const owners = { state: { bytes: { disk: 7 } } };
  const recorder = new RunRecorder(log as never, owners as never, hasScale);
  const at = (time: number): RunRecorder => {
    now = time;
    return recorder;
  };
  return { at, of: (track: string) => rows.filter((row) => (row.track ?? row.e) === track) };
}

const step = (more: Partial<FinishedStep> = {}): FinishedStep => ({
  step: 1,
  samples: 4,
  skipped: 0,
  applied: true,
  loss: 2,
  norm: 3,
  lr: [0.5, 0.1],
  betas: [],
  lossScale: 8,
  busy: null,
  ...more,
});

test('a row of a step has its time and its speed, unless the run paused', () => {
  const { at, of } = recordRun();
  at(100).stepFinished(step());
  at(150).stepFinished(step({ step: 2, samples: 10, loss: null }));
  at(200).pause();
  at(900).stepFinished(step({ step: 3, samples: 12, skipped: 1, lr: [] }));
  at(900).stepFinished(step({ step: 4, samples: 14 }));
  expect(of('train').map(({ values }) => values)).toEqual([
    { grad_norm: 3, loss: 2, lr: 0.5 },
    { grad_norm: 3, lr: 0.5, step_ms: 50, samples_per_second: 120 },
    { grad_norm: 3, loss: 2, skipped: 1 },
    // The clock has not moved.
    { grad_norm: 3, loss: 2, lr: 0.5 },
  ]);
});

test('the loss scale is recorded only with loss scaling', () => {
  const { at, of } = recordRun(true);
  at(0).stepFinished(step());
  expect(of('train')[0]?.values).toMatchObject({ loss_scale: 8, skipped: 0 });
});

test('memory is recorded once a second', () => {
  const { at, of } = recordRun();
  for (const time of [0, 999, 1000, 1500, 2500]) at(time).stepFinished(step({ step: time }));
  expect(of('memory').map((row) => row.step)).toEqual([0, 1000, 2500]);
  expect(of('memory')[0]?.values).toEqual({
    device_peak: 8,
    device_weights: 1,
    device_gradients: 2,
    device_optimizer: 3,
    device_other: 0,
    host_pinned: 5,
    host_resident: 6,
    disk: 7,
  });
});

test('times of several ranks are recorded once a second', () => {
  const { at, of } = recordRun();
  const busy = [[1, 2], [1, 3], null, [5], [0, 0], [4, 0]];
  const times = [0, 500, 1000, 1200, 1300, 1400];
  times.forEach((time, i) => void at(time).stepFinished(step({ step: i, busy: busy[i] ?? null })));
  expect(of('ranks')).toEqual([
    { e: 'ranks', step: 0, busy: [1, 2] },
    { e: 'ranks', step: 5, busy: [4, 0] },
  ]);
});

test('a row of phases is the mean of the steps since the last one', () => {
  const { at, of } = recordRun();
  const times = (n: number) => ({ forward: n, backward: 2 * n, reduce: 3 * n, step: 4 * n });
  const phases = [1000, 1010, 1099, 1100, 1120];
  phases.forEach((time, i) => void at(time).stepTimed({ step: i, samples: 0, times: times(i) }));
  at(1130).finish();
  at(1140).finish();
  expect(of('phases').map((row) => [row.step, row.values])).toEqual([
    [0, times(0)],
    [3, times(2)],
    [4, times(4)],
  ]);
});

test('an observer of the end is called once per close', () => {
  const { at } = recordRun();
  at(0).close();
  const closed = jest.fn();
  at(0).onClose = closed;
  at(0).close();
  expect(closed).toHaveBeenCalledTimes(1);
});

describe('the timer of phases', () => {
  /** A timer on a device that takes a millisecond per event, and the live events. */
  function fakeClock() {
    let clock = 0;
    const at = new Map<Event, number>();
    const live = new Set<Event>();
    jest.spyOn(Event.prototype, 'record').mockImplementation(function (this: Event) {
      live.add(this);
      at.set(this, ++clock);
      return this;
    });
    jest.spyOn(Event.prototype, 'synchronize').mockImplementation(() => {});
    jest.spyOn(Event.prototype, 'since').mockImplementation(function (this: Event, start: Event) {
      return (at.get(this) as number) - (at.get(start) as number);
    });
    const { dispose } = Event.prototype;
    jest.spyOn(Event.prototype, 'dispose').mockImplementation(function (this: Event) {
      live.delete(this);
      dispose.call(this);
    });
    return { timer: new EventTimer(cpu()), live };
  }

  const span = (timer: EventTimer): void => {
    timer.time('forward', () => {});
    // The spans inside count for their phases as well.
    timer.time('backward', () => timer.time('reduce', () => {}));
  };

  test('sums the spans of a step by phase', () => {
    const { timer } = fakeClock();
    expect(timer.last()).toBeNull();
    span(timer);
    span(timer);
    timer.finishStep(3, 12);
    const times = { forward: 2, backward: 6, reduce: 2, step: 0 };
    expect(timer.last()).toEqual(times);
    expect(timer.takePassed()).toEqual([]);
    timer.time('step', () => {});
    timer.finishStep(4, 16);
    expect(timer.takePassed()).toEqual([{ step: 3, samples: 12, times }]);
    expect(timer.all()).toEqual([
      { step: 4, samples: 16, times: { forward: 0, backward: 0, reduce: 0, step: 1 } },
    ]);
    expect(timer.all()).toEqual([]);
    timer.dispose();
  });

  test('a body that throws is measured, and its events are used again', () => {
    const { timer, live } = fakeClock();
    const failBody = () => {
      throw new Error('a body');
    };
    for (let i = 0; i < 3; ++i) {
      expect(() => timer.time('step', failBody)).toThrow('a body');
      timer.finishStep(i, i);
      expect(timer.all()[0]?.times.step).toBe(1);
    }
    expect(live.size).toBe(2);
    timer.dispose();
    expect(live.size).toBe(0);
  });

  test('dispose() frees the events of closed and of open steps', () => {
    const { timer, live } = fakeClock();
    span(timer);
    timer.finishStep(1, 4);
    span(timer);
    expect(live.size).toBe(12);
    timer.dispose();
    expect(live.size).toBe(0);
  });
});
