// Tests which part of a state belongs to a fragment, and when weights are made equal or awaited
// before a read.
import { statePart } from '../../lib/engine/saving/engine-shards.js';
import { resync } from '../../lib/engine/step/resync.js';
import { perBlock, perElement, perParameter } from '../../lib/optim/declared-state.js';
import { wholeRegion } from '../../lib/runtime/box.js';

/** Rows 2 and 3 of [4, 8], on one of two tensor ranks. */
const region = { whole: [4, 8], boxes: [{ offset: [2, 0], shape: [2, 8] }] };
const entry = { region, shape: [2, 8], numel: 16 };

test('a state per element has the region of its parameter, another one its own', () => {
  const fragment = { entry, from: 4, offset: 100, numel: 8 } as never;
  expect(statePart(perElement([4, 8]), fragment)).toEqual({ region, from: 4, numel: 8 });
  expect(statePart(perBlock([4, 8], 4), fragment)).toEqual({
    ...{ region: wholeRegion([8]), from: 1, numel: 2 },
  });
  expect(statePart(perParameter([3]), fragment)).toEqual({
    ...{ region: wholeRegion([3]), from: 0, numel: 3 },
  });
});

test('weights that differ between ranks are made equal, after the last decision', () => {
  const calls = (isAdrift: boolean): unknown[] => {
    const found: unknown[] = [];
    const stage = { dispatch: () => void found.push('dispatch') };
    resync({
      state: { isAdrift, resync: (...given: unknown[]) => void found.push(given) },
      ...{ stage, stepDecisions: { take: () => void found.push('take') } },
      progress: { appliedSteps: 7 },
    } as never);
    return found.map((one) => (Array.isArray(one) ? [one[0], one[1] === stage] : one));
  };
  expect(calls(true)).toEqual(['take', [7, true], 'dispatch']);
  expect(calls(false)).toEqual([]);
});
