// Tests the order of speculative host updates: on arrival first, then in forward order, and how the
// share of both moves.
import { SpeculationOrder } from '../../lib/zero/schedule/speculation-policy.js';

const forward = ['root', 'h0', 'h1', 'h2', 'h3'];
const arrivals = ['h3', 'h2', 'h1', 'h0', 'root'];

function take(order: SpeculationOrder<string>): string[] {
  order.start(forward);
  return takenOf(order, forward, arrivals);
}

/** Units updated on arrival, followed by postponed units. */
function takenOf(
  order: SpeculationOrder<string>,
  units: readonly string[],
  arriving: readonly string[],
): string[] {
  const early = arriving.filter((unit) => order.arrive(unit));
  return [...early, ...units.filter((unit) => order.isPostponed(unit))];
}

test('half of the units as they arrive, the rest in forward order', () => {
  expect(take(new SpeculationOrder())).toEqual(['h3', 'h2', 'h1', 'root', 'h0']);
});

test.each([
  [0, forward],
  [1, ['h3', 'root', 'h0', 'h1', 'h2']],
  [4, arrivals],
  [5, arrivals],
  [99, arrivals],
])('an early share of %p', (early, expected) => {
  const order = new SpeculationOrder<string>();
  order.fix(early);
  expect(take(order)).toEqual(expected);
});

test('a unit that arrives late is not taken early', () => {
  const order = new SpeculationOrder<string>();
  order.fix(1);
  order.start(forward);
  expect(arrivals.map((unit) => order.arrive(unit))).toEqual([true, false, false, false, false]);
  expect(forward.map((unit) => order.isPostponed(unit))).toEqual([true, true, true, true, false]);
  order.start(forward);
  expect(forward.some((unit) => order.isPostponed(unit))).toBe(false);
});

test('the share moves by one, between none and all', () => {
  const order = new SpeculationOrder<string>();
  order.start(forward);
  expect(order.earlyCount).toBe(3);
  for (const expected of [4, 5, 5]) {
    order.adapt(true);
    expect(order.earlyCount).toBe(expected);
  }
  for (const expected of [4, 3, 2, 1, 0, 0]) {
    order.adapt(false);
    expect(order.earlyCount).toBe(expected);
  }
});

test('a fixed share does not move', () => {
  const order = new SpeculationOrder<string>();
  order.fix(2);
  order.start(forward);
  order.adapt(true);
  expect(order.earlyCount).toBe(2);
});

test('with many units, a few early arrivals are taken last, and each once', () => {
  const many = Array.from({ length: 16 }, (_, i) => `h${i}`);
  const order = new SpeculationOrder<string>();
  const takenBy = (early: number): string[] => {
    order.fix(early);
    order.start(many);
    return takenOf(order, many, [...many].reverse());
  };
  // h13 and h11 wait, two more are taken as they come.
  const early = ['h15', 'h14', 'h12', 'h10', 'h9', 'h8'];
  const rest = ['h0', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'h7', 'h11', 'h13'];
  expect(takenBy(6)).toEqual([...early, ...rest]);
  expect(takenBy(16)).toEqual([...many].reverse());
  expect(takenBy(0)).toEqual(many);
  for (let count = 0; count <= 16; ++count) {
    expect([...takenBy(count)].sort()).toEqual([...many].sort());
  }
});
