// Tests when buckets of gradients are sent, finished and freed, and the units that they come from.
import { Linear } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';
import type { Stream } from '../../lib/runtime/stream.js';
import { Buckets, type CommTimer } from '../../lib/zero/gradients.js';
import { Unit, UnitGradient } from '../../lib/zero/unit.js';

/** Buckets of 10 elements, and the log of their calls. */
function bucketsOf(overlap: boolean) {
  const log: string[] = [];
  const timer: CommTimer = {
    beginCollective: () => () => void log.push('timed'),
    beginStall: () => () => void log.push('stalled'),
  };
  const buckets = new Buckets(cpu(), { bucketElements: 10, overlap, timer });
  const streams = new Set<Stream>();
  const add = (name: string, numel: number, frees = false): string[] => {
    buckets.add({
      numel,
      start: (stream) => {
        streams.add(stream);
        log.push(`start ${name}`);
        return { wait: () => void log.push(`wait ${name}`) };
      },
      complete: () => void log.push(`done ${name}`),
      ...(frees ? { free: () => void log.push(`free ${name}`) } : {}),
    });
    return log.splice(0);
  };
  return { buckets, log, add, streams };
}

test('a bucket is sent when it is full, and finished at once without overlap', () => {
  const { buckets, log, add, streams } = bucketsOf(false);
  expect(add('a', 4)).toEqual([]);
  expect(add('b', 6)).toEqual([
    'start a',
    'timed',
    'start b',
    'timed',
    'wait a',
    'done a',
    'wait b',
    'done b',
  ]);
  expect(add('c', 9)).toEqual([]);
  buckets.dispatch();
  buckets.dispatch();
  expect(log.splice(0)).toEqual(['start c', 'timed', 'wait c', 'done c']);
  // Compute has seen the results: no wait is left.
  buckets.flush();
  expect(log).toEqual([]);
  expect([...streams]).toEqual([cpu().compute]);
  buckets.dispose();
});

test('with overlap a bucket ends when the next one is sent, or by flush()', () => {
  const { buckets, log, add, streams } = bucketsOf(true);
  expect(add('a', 10)).toEqual(['start a', 'timed']);
  expect(add('b', 12)).toEqual(['start b', 'timed', 'wait a', 'done a']);
  expect(add('c', 1)).toEqual([]);
  buckets.flush();
  expect(log.splice(0)).toEqual([
    'start c',
    'timed',
    'wait b',
    'done b',
    'wait c',
    'done c',
    'stalled',
  ]);
  buckets.flush();
  expect(log).toEqual([]);
  expect(streams.has(cpu().compute)).toBe(false);
  expect(streams.size).toBe(1);
  add('d', 3);
  buckets.dispose();
  expect(log).toEqual(['start d', 'timed', 'wait d', 'done d', 'stalled']);
});

test('operands are freed after compute has waited for the bucket', () => {
  const { buckets, log, add } = bucketsOf(true);
  add('a', 10, true);
  expect(add('b', 10)).toEqual(['start b', 'timed', 'wait a', 'done a', 'stalled', 'free a']);
  buckets.flush();
  expect(log).toEqual(['wait b', 'done b', 'stalled']);
  buckets.dispose();
});

describe('a unit', () => {
  function unitOf(dtype: 'f32' | 'bf16' = 'f32', sum: 'f32' | 'bf16' = dtype) {
    const module = new Linear(3, 2);
    const parameters = [...module.namedParameters()].map(([name, parameter]) => {
      parameter.moveTo(cpu(), dtype);
      return { name, parameter, group: 0 };
    });
    const options = { dtype, device: cpu() };
    const unit = new Unit(
      'u',
      module,
      parameters,
      options,
      (weightUnit) => new UnitGradient(weightUnit, sum),
    );
    return { unit, parameters };
  }

  test('has weights while they are gathered, with zeros between its parameters', () => {
    const { unit, parameters } = unitOf();
    expect(unit.memory).toBeNull();
    expect(() => unit.weights).toThrow(/unit u: expected its weights on this rank/);
    expect(unit.bytes).toEqual({ weights: 0, gradients: 0 });
    const flat = unit.allocate();
    expect([unit.memory, unit.weights]).toEqual([flat, flat]);
    expect(unit.bytes.weights).toBe(4 * unit.layout.numel);
    const values = flat.toArray() as number[];
    for (const { offset, numel } of unit.layout.gaps) {
      expect(values.slice(offset, offset + numel)).toEqual(new Array(numel).fill(0));
    }
    const [first] = unit.layout.entries;
    expect(unit.parameterOf(first as never)).toBe(parameters[0]?.parameter);
    const other = unitOf().unit.allocate();
    expect([unit.holds(flat), unit.holds(other)]).toEqual([true, false]);
    other.release();
    unit.dispose();
    expect(unit.memory).toBeNull();
  });

  test('without a backward has a gradient of zeros, until it is dropped', () => {
    for (const [dtype, sum] of [
      ['f32', 'f32'],
      ['bf16', 'f32'],
      ['bf16', 'bf16'],
    ] as const) {
      const { unit } = unitOf(dtype, sum);
      const { gradient } = unit;
      expect([gradient.bytes, gradient.memory]).toEqual([0, { backwardGrad: null, sum: null }]);
      const taken = gradient.take();
      expect(taken.dtype).toBe(sum);
      expect(new Set(taken.to('f32').toArray() as number[])).toEqual(new Set([0]));
      expect(gradient.holds(taken.buffer)).toBe(true);
      expect(gradient.bytes).toBeGreaterThan(0);
      expect(unit.holds(taken)).toBe(true);
      taken.release();
      gradient.drop();
      expect([gradient.bytes, gradient.memory.sum]).toEqual([0, null]);
      unit.dispose();
    }
  });

  test('refuses a gradient after it was complete, unless a backward starts', () => {
    const { unit } = unitOf();
    const { gradient } = unit;
    unit.allocate();
    const [entry] = unit.layout.entries;
    const own = gradient as unknown as { memoryFor(of: unknown): { release(): void } };
    expect(() => own.memoryFor(entry)).toThrow(
      expect.objectContaining({
        code: 'DS_AUTOGRAD',
        op: 'unit u',
        got: 'a gradient after the unit was complete',
        expected: `all gradients of ${entry?.name} before the unit's last one`,
      }),
    );
    gradient.expect({ streaming: true });
    own.memoryFor(entry).release();
    gradient.forget();
    gradient.reportTo({
      onGradient() {},
      onComplete() {},
      onUnexpected: () => gradient.expect({ streaming: false }),
    });
    own.memoryFor(entry).release();
    expect(gradient.bytes).toBeGreaterThan(0);
    gradient.drop();
    unit.dispose();
  });

  test('is complete once in a backward, when the last gradient has arrived', () => {
    const { unit, parameters } = unitOf();
    const log: string[] = [];
    const { gradient } = unit;
    unit.allocate();
    for (const entry of unit.layout.entries) unit.adoptParameter(entry);
    gradient.reportTo({
      onGradient: () => void log.push('reached'),
      onComplete: () => void log.push('completed'),
      onUnexpected: () => {
        log.push('unexpected');
        gradient.expect({ streaming: true });
      },
    });
    const arrive = (i: number): string[] => {
      const parameter = parameters[i]?.parameter;
      if (parameter) parameter.onGradReady?.(parameter);
      return log.splice(0);
    };
    gradient.expect({ streaming: true });
    expect(arrive(0)).toEqual(['reached']);
    expect(arrive(1)).toEqual(['reached', 'completed']);
    gradient.finish();
    expect(log).toEqual([]);
    expect(arrive(0)).toEqual(expect.arrayContaining(['unexpected', 'reached']));
    gradient.finish();
    expect(log.splice(0)).toEqual(['completed']);
    gradient.expect({ streaming: false });
    arrive(0);
    expect(arrive(1)).not.toContain('completed');
    gradient.forget();
    gradient.finish();
    expect(log).toEqual([]);
    unit.dispose();
    expect(parameters[0]?.parameter.onGradReady).toBeNull();
  });
});
