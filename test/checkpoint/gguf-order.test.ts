// Orders of values in GGUF files: runs of any range give the places that the axes define.
import { runsOf, type ValueOrder } from '../../lib/checkpoint/index.js';
import { below } from '../support/random.js';

/** The index in the file of each value of the model, by definition. */
function places({ repeats = 1, boxes }: ValueOrder): number[] {
  const inBox = (axes: readonly (readonly [number, number])[]): number[] => {
    const [first, ...rest] = axes;
    if (!first) return [0];
    const inner = inBox(rest);
    return Array.from({ length: first[0] }, (_, i) => inner.map((at) => at + i * first[1])).flat();
  };
  return Array.from({ length: repeats }, (_, repeat) =>
    boxes.flatMap(({ first = 0, step = 0, axes }) =>
      inBox(axes).map((at) => first + repeat * step + at),
    ),
  ).flat();
}

const axis = (): readonly [number, number] => [1 + below(11), below(4)];

test('runs cover any range of random orders', () => {
  for (let i = 0; i < 300; ++i) {
    const order: ValueOrder = {
      repeats: 1 + below(3),
      boxes: Array.from({ length: 1 + below(3) }, () => ({
        first: below(50),
        step: below(50),
        axes: Array.from({ length: 1 + below(4) }, axis),
      })),
    };
    const all = places(order);
    const from = below(all.length);
    const count = 1 + below(all.length - from);
    const found: number[] = [];
    for (const run of runsOf(order, from, count)) {
      expect(run.at).toBe(found.length);
      for (let k = 0; k < run.count * run.lanes; ++k) {
        const [step, lane] = [Math.floor(k / run.lanes), k % run.lanes];
        found.push(run.from + step * run.distance + lane * run.apart);
      }
    }
    expect(found).toEqual(all.slice(from, from + count));
  }
});
