// Tests checkSearch(): lists of values beside an "autotuning" section, and errors of any value.
import { checkSearch, type DsConfig } from '../../lib/config/index.js';

const search = (config: object) =>
  checkSearch({ autotuning: { enabled: true }, ...config } as DsConfig, { worldSize: 1 });

test('each list is a choice, and the report uses the first values', () => {
  const { config, choices } = search({
    train_micro_batch_size_per_gpu: [2, 4],
    zero_optimization: { stage: [1, 2], reduce_bucket_size: 500 },
  });
  expect(choices).toEqual([
    { path: ['train_micro_batch_size_per_gpu'], values: [2, 4] },
    { path: ['zero_optimization', 'stage'], values: [1, 2] },
  ]);
  expect(config?.train_micro_batch_size_per_gpu).toBe(2);
  expect(config?.zero_optimization.stage).toBe(1);
});

test('without a list there is no choice', () => {
  const { config, choices } = search({ train_micro_batch_size_per_gpu: 2 });
  expect(choices).toEqual([]);
  expect(config?.train_micro_batch_size_per_gpu).toBe(2);
});

test('an empty list gives one error', () => {
  const { choices, errors } = search({ train_micro_batch_size_per_gpu: [] });
  expect(choices).toEqual([]);
  expect(errors[0]?.message).toMatch(
    /train_micro_batch_size_per_gpu: expected an integer.*got \[\]/,
  );
});

test('every value is checked; an error of several files is listed once, in the order of the file', () => {
  const text = JSON.stringify(
    {
      autotuning: { enabled: true },
      train_micro_batch_size_per_gpu: [2, -1, 4],
      zero_optimization: { stage: [1, 9] },
      gradient_clipping: -5,
    },
    null,
    1,
  );
  const source = Buffer.from(text).toString('base64');
  const { config, choices, errors } = checkSearch(source, { worldSize: 1 });
  expect(config).toBeNull();
  expect(choices).toHaveLength(2);
  expect(errors.map(({ path }) => path)).toEqual([
    'train_micro_batch_size_per_gpu',
    'zero_optimization.stage',
    'gradient_clipping',
  ]);
});

test('without an "autotuning" section a list is a wrong value', () => {
  const config = { train_micro_batch_size_per_gpu: [2, 4] } as unknown as DsConfig;
  const { choices, errors } = checkSearch(config, { worldSize: 1 });
  expect(choices).toEqual([]);
  expect(errors.map(({ path }) => path)).toEqual(['train_micro_batch_size_per_gpu']);
});
