// Tests the prediction of this step's units from the order of the last step.

import { UnitTrace } from '../../lib/zero/gathered-weights.js';
import type { WeightUnit } from '../../lib/zero/unit.js';

const unit = (name: string, numel: number) => ({ name, layout: { numel } }) as WeightUnit;
const [A, B, C, D] = [unit('a', 1), unit('b', 10), unit('c', 100), unit('d', 1000)];

const names = (units: readonly WeightUnit[]): string => units.map(({ name }) => name).join('');

/** A trace after a step that used `units`. */
function after<Trace extends UnitTrace>(trace: Trace, units: readonly WeightUnit[]): Trace {
  for (const weightUnit of units) trace.visit(weightUnit);
  trace.restart();
  return trace;
}

/** The predicted unit after each of these uses. */
function foreseen(trace: UnitTrace, units: readonly WeightUnit[]): string[] {
  return units.map((unit) => {
    trace.visit(unit);
    return names(trace.nextUnits());
  });
}

test('the first step has no prediction', () => {
  const trace = new UnitTrace();
  expect(names(trace.firstUnits())).toBe('');
  expect(foreseen(trace, [A, B])).toEqual(['', '']);
  expect(trace.reuseDistance(A)).toBe(Number.POSITIVE_INFINITY);
});

test('the prediction is the order of the last step, with consecutive uses counted once', () => {
  const trace = after(new UnitTrace(), [A, B, B, C, B, A]);
  expect(names(trace.firstUnits())).toBe('abcba');
  expect(foreseen(trace, [A, A, B, C])).toEqual(['bcba', 'bcba', 'cba', 'ba']);
  expect(names(trace.firstUnits())).toBe('');
});

test('the distance of a unit is the size of the units used before it', () => {
  const trace = after(new UnitTrace(), [A, B, C, B, A]);
  trace.visit(A);
  expect([B, C, A].map((weightUnit) => trace.reuseDistance(weightUnit))).toEqual([
    0,
    10,
    10 + 100 + 10,
  ]);
  expect(trace.reuseDistance(D)).toBe(Number.POSITIVE_INFINITY);
});

test('in another order, skipped units are passed over, and the position is found again after new ones', () => {
  expect(foreseen(after(new UnitTrace(), [A, B, C, D]), [A, C, D])).toEqual(['bcd', 'd', '']);
  expect(foreseen(after(new UnitTrace(), [A, B, C]), [A, D, B, C])).toEqual(['bc', '', 'c', '']);
  expect(foreseen(after(new UnitTrace(), [A, B, C]), [C, A])).toEqual(['', '']);
});

test('a step without uses is ignored', () => {
  const trace = after(new UnitTrace(), [A, B]);
  trace.restart();
  expect(names(trace.firstUnits())).toBe('ab');
});

test('without updates, a repeated unit starts the next forward', () => {
  const trace = new UnitTrace(true);
  expect(foreseen(trace, [A, B, B, C])).toEqual(['', '', '', '']);
  expect(foreseen(trace, [A, B, C, A])).toEqual(['bca', 'cab', 'abc', 'bca']);
});

test('without a step, the trace starts again after 10,000 uses', () => {
  const trace = new UnitTrace();
  for (let use = 0; use < 5_000; ++use) for (const one of [A, B]) trace.visit(one);
  expect([...trace.nextUnits()]).toEqual([]);
  trace.visit(A);
  expect([...trace.nextUnits()].slice(0, 3)).toEqual([B, A, B]);
  trace.restart();
  expect([...trace.firstUnits()]).toEqual([A]);
});
