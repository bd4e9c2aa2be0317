// Tests which ranks must agree: a difference counts unless it lies on given axes only.
import { AXES, type Axis, MeshShape } from '../../lib/comm/mesh-shape.js';
import { firstDifference } from '../../lib/engine/setup/agreement.js';

/** Two pipeline stages with two data ranks each, and tp 2: 0 1 | 2 3 || 4 5 | 6 7. */
const shape = MeshShape.over(8, { pp: 2, tp: 2 });
const OF_STAGE: Axis[] = ['dp', 'sp', 'tp'];

test.each<[digests: string, axes: readonly Axis[], pair: [number, number] | null]>([
  ['aaaaaaaa', AXES, null],
  ['aaaaaaba', AXES, [0, 6]],
  ['baaaaaaa', AXES, [0, 1]],
  // Compared only among ranks with one pipeline coordinate.
  ['aaaabbbb', OF_STAGE, null],
  ['aaaabbbb', AXES, [0, 4]],
  ['aaaabbcb', OF_STAGE, [4, 6]],
  ['abaabbcb', OF_STAGE, [0, 1]],
  // Compared among the replicas of a data rank.
  ['aabbaabb', ['pp', 'sp', 'tp'], null],
  ['aabbaabc', ['pp', 'sp', 'tp'], [2, 7]],
  ['abcdefgh', [], null],
])('%s along %j: %j', (digests, axes, pair) => {
  expect(firstDifference(shape, [...digests], axes)).toEqual(pair);
});
