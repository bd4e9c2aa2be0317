// The batch triad: DeepSpeed's matrix of given and derived values, and the words of each refusal.
import { checkConfig } from '../../lib/config/index.js';
import { resolveTriad, type Triad } from '../../lib/config/triad.js';

type Given = [total: number | undefined, micro: number | undefined, steps: number | undefined];

function triad([total, micro, steps]: Given, worldSize: number): number[] {
  const out = resolveTriad(
    {
      train_batch_size: total,
      train_micro_batch_size_per_gpu: micro,
      gradient_accumulation_steps: steps,
    },
    worldSize,
  );
  return [
    out.train_batch_size,
    out.train_micro_batch_size_per_gpu,
    out.gradient_accumulation_steps,
  ];
}

const _ = undefined;

test.each<[Given, number, Required<Given>]>([
  [[32, 16, 1], 2, [32, 16, 1]],
  [[32, 16, _], 2, [32, 16, 1]],
  [[32, _, 1], 2, [32, 16, 1]],
  [[_, 16, 1], 2, [32, 16, 1]],
  [[32, _, _], 2, [32, 16, 1]],
  [[_, 16, _], 2, [32, 16, 1]],
  [[32, 8, 2], 2, [32, 8, 2]],
  [[32, 8, _], 2, [32, 8, 2]],
  [[32, _, 2], 2, [32, 8, 2]],
  [[_, 8, 2], 2, [32, 8, 2]],
  [[16, 2, 8], 1, [16, 2, 8]],
  [[7, _, _], 1, [7, 7, 1]],
])('%j on %d ranks', (values, worldSize, expected) => {
  expect(triad(values, worldSize)).toEqual(expected);
});

test.each<[Given, number, RegExp]>([
  [[33, 17, 2], 2, /33 != 17 x 2 x 2.*it is 68/],
  [[32, 18, 1], 2, /32 != 18 x 1 x 2.*it is 36/],
  [[32, 5, _], 2, /32 != 5 x 3 \(derived\) x 2.*multiple of 10: 30 would fit/],
  [[3, 4, _], 1, /3 != 4 x 0 \(derived\) x 1.*multiple of 4: 4 would fit/],
  [[5, _, _], 2, /5 != 2 \(derived\) x 1 \(derived\) x 2.*multiple of 2: 6 would fit/],
  [[1, _, 4], 2, /1 != 0 \(derived\) x 4 x 2.*multiple of 8: 8 would fit/],
  [[_, _, 4], 1, /got gradient_accumulation_steps alone/],
  [[_, _, _], 1, /got neither/],
])('%j on %d ranks is refused', (values, worldSize, message) => {
  expect(() => triad(values, worldSize)).toThrow(message);
});

test('a mismatch is an error at its key', () => {
  const config = '{\n "train_micro_batch_size_per_gpu": 2,\n "train_batch_size": 5\n}';
  const base64 = Buffer.from(config).toString('base64');
  const { errors } = checkConfig(base64, { worldSize: 1 });
  expect(errors.map(({ path, location: place, got }) => [path, place, got])).toEqual([
    ['train_batch_size', { line: 3, column: 2 }, expect.stringMatching(/^5 != 2 x 2/)],
  ]);
});

test('every pair that determines a triple gives it back, for many triples', () => {
  for (const worldSize of [1, 2, 3, 8]) {
    for (let micro = 1; micro < 9; ++micro) {
      for (let steps = 1; steps < 6; ++steps) {
        const full: Triad = {
          train_batch_size: micro * steps * worldSize,
          train_micro_batch_size_per_gpu: micro,
          gradient_accumulation_steps: steps,
        };
        for (const missing of Object.keys(full) as (keyof Triad)[]) {
          const options = { ...full, [missing]: undefined };
          expect(resolveTriad(options, worldSize)).toEqual(full);
        }
      }
    }
  }
});
