// Traces of steps on the CPU, and the order of their lines.

import { profiler, Tensor } from '../../lib/index.js';
import {
  createTraceEvents,
  removeOverlaps,
  spreadOverLanes,
  type TraceSpan,
} from '../../lib/profiler/trace-events.js';
import { addon } from '../../lib/runtime/addon.js';
import { cpu, threads } from '../../lib/runtime/device.js';
import { fillOnHost } from '../../lib/runtime/kernels.generated.js';
import { watchWork } from '../../lib/runtime/watched-work.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './trace.cases.js';
import { requireForm } from './trace-form.js';

testOnCpu('trace', cases);

describe('a trace that ends otherwise', () => {
  afterEach(() => jest.restoreAllMocks());
  const throwLost = () => {
    throw new Error('lost');
  };

  test('a device that fails at the start or end stops all recording', () => {
    const calls = { ...addon };
    const trace = new profiler.Trace(cpu());
    jest.spyOn(cpu().compute, 'synchronize').mockImplementationOnce(throwLost);
    expect(() => trace.begin()).toThrow('lost');
    expect(addon).toEqual(calls);
    trace.begin();
    expect(addon).not.toEqual(calls);
    jest.spyOn(cpu(), 'synchronize').mockImplementationOnce(throwLost);
    expect(() => trace.end()).toThrow('lost');
    expect(addon).toEqual(calls);
    trace.begin();
    expect(trace.end().otherData.rank).toBe(0);
  });

  test('captured work is not reported', () => {
    const { beginCapture, endCapture } = addon;
    Object.assign(addon, { beginCapture: () => {}, endCapture: () => 1 });
    const reported: string[] = [];
    const enqueued: profiler.WorkWatcher['enqueued'] = ({ name }, enqueue) => {
      reported.push(name);
      enqueue();
    };
    const stop = watchWork({ enqueued, waited: (_, wait) => wait() });
    const tensor = Tensor.empty([4], 'f32', cpu());
    addon.beginCapture(0);
    tensor.fill_(1);
    expect(addon.endCapture(0, true)).toBe(1);
    expect(reported).toEqual([]);
    tensor.fill_(2);
    stop();
    Object.assign(addon, { beginCapture, endCapture });
    expect(reported).toEqual(['Fill']);
    tensor.dispose();
  });

  test('the number of host threads is not read while they work, because that would wait', () => {
    const trace = new profiler.Trace(cpu());
    trace.begin();
    const asked = jest.spyOn(addon, 'getThreads');
    const out = Tensor.empty([4], 'f32', cpu());
    fillOnHost({ out, value: 1 }, cpu().compute);
    expect(asked).not.toHaveBeenCalled();
    const [fill] = trace.end().traceEvents.filter(({ name }) => name === 'Fill');
    expect(fill?.args?.threads).toBe(threads());
    out.dispose();
  });

  test('ops and copies are distinct, and a copy has its bytes', () => {
    const trace = new profiler.Trace(cpu());
    trace.begin();
    const out = Tensor.empty([4], 'f32', cpu());
    out.fill_(1);
    const copy = out.to('cpu').clone();
    copy.buffer.copyFrom(out.buffer, { from: 0, to: 0, bytes: 16 }, cpu().compute);
    const works = trace.end().traceEvents.filter(({ ph }) => ph === 'X');
    expect(works.map(({ name, cat, args }) => ({ name, cat, args }))).toEqual([
      { name: 'Fill', cat: 'op' },
      { name: 'Copy', cat: 'op' },
      { name: 'copy', cat: 'copy', args: { bytes: 16 } },
    ]);
    for (const tensor of [out, copy]) tensor.dispose();
  });

  test('a span that begins or ends while a graph is recorded has no time of the device', () => {
    const { beginCapture, endCapture } = addon;
    Object.assign(addon, { beginCapture: () => {}, endCapture: () => 1 });
    const trace = new profiler.Trace(cpu());
    const record = jest.spyOn(addon, 'record');
    trace.begin();
    const across = trace.open('across', 'phase');
    addon.beginCapture(0);
    record.mockClear();
    trace.open('within', 'step')();
    const out = trace.open('out', 'step');
    across();
    expect(record).not.toHaveBeenCalled();
    addon.endCapture(0, true);
    out();
    trace.open('after', 'phase')();
    const { traceEvents } = trace.end();
    record.mockRestore();
    Object.assign(addon, { beginCapture, endCapture });
    const named = traceEvents.filter(({ cat }) => cat === 'step' || cat === 'phase');
    const names = named.map(({ name }) => name).sort();
    expect(names).toEqual(['across', 'after', 'after', 'out', 'within']);
  });

  test('open() and end() before begin() are refused', () => {
    const trace = new profiler.Trace(cpu());
    const refusal = expect.objectContaining({ code: 'DS_ARGUMENT' });
    for (const early of [() => trace.end(), () => trace.open('a', 'step')]) {
      expect(early).toThrow(refusal);
    }
  });
});

const span = (lane: string, start: number, end: number): TraceSpan => ({
  process: 'disk',
  lane,
  name: `${start} to ${end}`,
  category: 'disk',
  start: 1000 * start,
  end: 1000 * end,
});

describe('lines of a trace', () => {
  test('longer spans precede the spans inside them, and times start at 0', () => {
    const events = createTraceEvents([span('a', 12, 13), span('a', 10, 20), span('b', 11, 30)], 2);
    const spans = events.filter(({ ph }) => ph === 'X');
    expect(spans.map(({ name }) => name)).toEqual(['10 to 20', '11 to 30', '12 to 13']);
    expect(spans.map(({ ts, dur }) => [ts, dur])).toEqual([
      [0, 10],
      [1, 19],
      [2, 1],
    ]);
    expect(spans.map(({ pid, tid }) => [pid, tid])).toEqual([
      [25, 1],
      [25, 2],
      [25, 1],
    ]);
    requireForm(events);
  });

  test('overlapping spans get separate lanes', () => {
    const lanes = spreadOverLanes([
      span('a', 5, 9),
      span('a', 0, 10),
      span('a', 9, 12),
      span('b', 1, 2),
    ]);
    expect(lanes.map(({ name, lane }) => [name, lane])).toEqual([
      ['0 to 10', 'a'],
      ['1 to 2', 'b'],
      ['5 to 9', 'a 2'],
      ['9 to 12', 'a 2'],
    ]);
    requireForm(createTraceEvents(lanes, 0));
  });

  test('spans of a queue that overlap by rounding become sequential', () => {
    const queue = removeOverlaps([
      span('a', 0, 10),
      span('a', 9, 12),
      span('b', 9, 12),
      span('a', 11, 11.5),
    ]);
    expect(queue.map(({ start, end }) => [start / 1000, end / 1000])).toEqual([
      [0, 10],
      [10, 12],
      [9, 12],
      [12, 12],
    ]);
  });

  test('spans that overlap in one lane are no trace', () => {
    const bad = createTraceEvents([span('a', 0, 10), span('a', 5, 15)], 0);
    expect(() => requireForm(bad)).toThrow(/overlaps/);
    expect(() => requireForm([{ ...(bad[0] as object), dur: undefined } as never])).toThrow(/dur/);
  });
});
