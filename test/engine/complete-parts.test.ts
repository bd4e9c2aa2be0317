// Tests that the parts of a parameter on the ranks of tp contain each element exactly once.
import { requireComplete } from '../../lib/engine/setup/agreement.js';

const rows = (from: number, to: number) => ({
  name: 'layer.weight',
  whole: [4, 2],
  offset: [from, 0],
  shape: [to - from, 2],
  boxes: [{ offset: [from, 0], shape: [to - from, 2] }],
});
const parts = (...ranges: [number, number][]) => ranges.map(([from, to]) => [rows(from, to)]);

test.each<[ranges: [number, number][], error: string | null]>([
  [
    [
      [0, 2],
      [2, 4],
    ],
    null,
  ],
  [
    [
      [0, 3],
      [2, 4],
    ],
    'element [2, 0] on two ranks',
  ],
  [
    [
      [0, 2],
      [3, 4],
    ],
    'no part with [2, 0]',
  ],
  [[[0, 2]], 'no part with [2, 0]'],
])('rows %j of 4: %s', (ranges, error) => {
  const check = (): void => requireComplete(parts(...ranges) as never);
  if (error === null) expect(check).not.toThrow();
  else {
    expect(check).toThrow(
      `initialize, layer.weight: expected parts of ${ranges.length} ranks on tp that together are ` +
        `[4, 2], got ${error}. Divide it with Parameter.partOf()`,
    );
  }
});
