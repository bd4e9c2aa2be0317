// Tests elasticity: the batch size for most world sizes, DeepSpeed's own example, and errors.
import { elasticTriad } from '../../lib/config/elasticity.js';
import { checkConfig, type DsConfig, resolveConfig } from '../../lib/config/index.js';
import { random } from '../support/random.js';

type Section = Record<string, unknown>;

/** The example of DeepSpeed's documentation and tests. */
const EXAMPLE: Section = {
  enabled: true,
  max_train_batch_size: 10000,
  micro_batch_sizes: [8, 12, 16, 17],
  min_gpus: 32,
  max_gpus: 1500,
  version: 0.1,
};

const elastic = (section: Section, more: Section = {}): DsConfig =>
  ({ ...more, elasticity: { ...EXAMPLE, ...section } }) as DsConfig;

function sizes(config: DsConfig, worldSize: number): number[] {
  const resolved = resolveConfig(config, { worldSize });
  const { train_batch_size: total, train_micro_batch_size_per_gpu: micro } = resolved;
  return [total, micro, resolved.gradient_accumulation_steps];
}

const errorsOf = (config: DsConfig, worldSize = 64) =>
  checkConfig(config, { worldSize }).errors.map(({ message }) => message);

test('the example of DeepSpeed: 9792 samples for 23 numbers of ranks', () => {
  expect(sizes(elastic({}), 64)).toEqual([9792, 17, 9]);
  const [message] = errorsOf(elastic({}), 128);
  expect(message).toMatch(/elasticity: expected a number of data ranks that divides 9792/);
  const counts = message?.match(/divides 9792 samples: ([\d, ]+), got 128/)?.[1]?.split(', ');
  expect(counts).toHaveLength(23);
  for (const count of counts ?? []) {
    const [total, micro, steps] = sizes(elastic({}), Number(count)) as [number, number, number];
    expect([total, micro * steps * Number(count)]).toEqual([9792, 9792]);
    expect(EXAMPLE.micro_batch_sizes).toContain(micro);
  }
});

test('without a choice, each key has the origin of the key it follows', () => {
  const { origins } = checkConfig(elastic({}), { worldSize: 64 });
  const origin = { from: 'derived', of: 'elasticity, world size 64' };
  expect(origins).toMatchObject({ train_batch_size: origin, gradient_accumulation_steps: origin });
});

/** Highly composite numbers below a million: each has more divisors than any smaller number. */
function recordsOfDivisors(): number[] {
  const counts = new Uint16Array(1e6);
  for (let divisor = 1; divisor < counts.length; ++divisor) {
    for (let n = divisor; n < counts.length; n += divisor) counts[n] = (counts[n] as number) + 1;
  }
  let mostDivisors = 0;
  const records: number[] = [];
  counts.forEach((count, n) => {
    if (count > mostDivisors) records.push(n);
    mostDivisors = Math.max(mostDivisors, count);
  });
  return records;
}

const records = recordsOfDivisors();

/** Brute force over every batch size and every number of ranks. */
function tryBatch({
  micro_batch_sizes: micros,
  max_train_batch_size: maxGpus,
  min_gpus: least,
  max_gpus: largest,
  prefer_larger_batch: isLarger,
}: Draw) {
  let multiple = 1;
  while (micros.some((micro) => multiple % micro !== 0)) ++multiple;
  let best = { batch: 0, ranks: [] as number[] };
  for (const base of [...micros, multiple].filter((value) => value <= maxGpus)) {
    const batch = base * Math.max(...records.filter((n) => n * base <= maxGpus));
    const ranks: number[] = [];
    for (let count = least; count <= largest; ++count) {
      if (micros.some((micro) => batch % (micro * count) === 0)) ranks.push(count);
    }
    const isPreferred = isLarger ? batch > best.batch : batch < best.batch;
    const isEqual = ranks.length === best.ranks.length;
    if (best.batch === 0 || ranks.length > best.ranks.length || (isEqual && isPreferred)) {
      best = { batch, ranks };
    }
  }
  return best;
}

interface Draw {
  micro_batch_sizes: number[];
  max_train_batch_size: number;
  min_gpus: number;
  max_gpus: number;
  prefer_larger_batch: boolean;
}

test('equals an exhaustive search', () => {
  const draw = (from: number, to: number) => from + Math.floor(random() * (to - from + 1));
  const { elasticity: defaults } = resolveConfig(elastic({}), { worldSize: 64 });
  for (let round = 0; round < 300; ++round) {
    const section: Draw = {
      micro_batch_sizes: Array.from({ length: draw(1, 3) }, () => draw(1, 9)),
      max_train_batch_size: draw(0, 1) ? draw(9, 400) : draw(9, 999_999),
      min_gpus: draw(1, 4),
      max_gpus: draw(4, 60),
      prefer_larger_batch: draw(0, 1) === 1,
    };
    const best = tryBatch(section);
    const batches = Array.from({ length: 64 }, (_, i) => {
      const triad = elasticTriad({ ...defaults, ...section }, i + 1);
      return 'path' in triad ? null : triad.train_batch_size;
    });
    const expected = batches.map((_, i) => (best.ranks.includes(i + 1) ? best.batch : null));
    expect({ section, batches }).toEqual({ section, batches: expected });
  }
});

describe('version 0.2', () => {
  const nodes = (section: Section): DsConfig =>
    elastic({ version: 0.2, min_gpus: 1, num_gpus_per_node: 4, ...section });

  test('counts nodes; the ranks of a node share its batch', () => {
    // 2500 samples per node: among 8, 12, 16 and 17 the same choice as for nodes with one GPU,
    // times 4.
    const alone = elastic({ max_train_batch_size: 2500, min_gpus: 1, max_gpus: 375 });
    const [batch] = sizes(alone, 1) as [number];
    expect(sizes(nodes({}), 4)[0]).toBe(4 * batch);
  });

  test('ranks that do not divide the batch get a smaller one', () => {
    // 7 ranks: the largest multiple below 10000 of 8 x 7, 12 x 7, 16 x 7 and 17 x 7.
    expect(sizes(nodes({}), 7)).toEqual([9996, 17, 84]);
    expect(sizes(nodes({ prefer_larger_batch: false }), 7)).toEqual([9968, 16, 89]);
  });

  test('the ranks of one model count as one data rank', () => {
    expect(sizes(nodes({ model_parallel_size: 4 }), 4)).toEqual(sizes(elastic({ min_gpus: 1 }), 4));
  });

  test('more ranks than samples are refused, with the limit', () => {
    const few = nodes({ max_train_batch_size: 80, micro_batch_sizes: [8, 16] });
    expect(errorsOf(few, 11)).toEqual([
      'elasticity: expected at most 10 data ranks, with at least one micro-batch each, got 11. Start fewer ranks, raise max_train_batch_size, or allow a smaller micro-batch.',
    ]);
  });
});

test('micro-batches with a too large common multiple are refused', () => {
  const primes = { micro_batch_sizes: [7, 11, 13], max_train_batch_size: 100, min_gpus: 1 };
  expect(sizes(elastic(primes), 1)[0]).toBeLessThanOrEqual(100);
});

describe('batch sizes next to an elasticity section', () => {
  const beside = { train_batch_size: 32, gradient_accumulation_steps: 'auto' };

  test('are each refused', () => {
    const errors = checkConfig(elastic({}, beside), { worldSize: 64 }).errors;
    expect(errors.map(({ path }) => path)).toEqual(Object.keys(beside));
    expect(errors[0]?.message).toMatch(/ignore_non_elastic_batch_info to true/);
  });

  test('are overridden with a notice on request', () => {
    const config = elastic({ ignore_non_elastic_batch_info: 'true' }, beside);
    const { notices } = checkConfig(config, { worldSize: 64 });
    expect(sizes(config, 64)).toEqual([9792, 17, 9]);
    const noticePaths = notices.filter(({ kind }) => kind === 'no-effect').map(({ path }) => path);
    expect(noticePaths).toEqual(Object.keys(beside));
  });

  test('of a Trainer must be equal', () => {
    const training = { perDeviceBatchSize: 17, accumulationSteps: 9 };
    const auto = { training, mustMatch: true };
    expect(resolveConfig(elastic({}), { worldSize: 64, auto })).toMatchObject({
      train_batch_size: 9792,
    });
    const other = { training: { ...training, perDeviceBatchSize: 16 }, mustMatch: true };
    expect(() => resolveConfig(elastic({}), { worldSize: 64, auto: other })).toThrow(
      /elasticity: expected the train_micro_batch_size_per_gpu of the training, 16, got 17/,
    );
  });
});

test('a section that is off changes nothing', () => {
  const off = elastic({ enabled: false }, { train_batch_size: 6 });
  expect(sizes(off, 2)).toEqual([6, 3, 1]);
});

test.each<[Section, path: string, message: RegExp]>([
  [{ max_train_batch_size: undefined }, 'max_train_batch_size', /got none.*2000/],
  [{ micro_batch_sizes: [] }, 'micro_batch_sizes', /got none/],
  [{ micro_batch_sizes: [0] }, 'micro_batch_sizes.0', /got 0/],
  [{ micro_batch_sizes: [4, 10001] }, 'micro_batch_sizes', /at most 10000.*got 10001/],
  [{ min_gpus: 1501 }, 'min_gpus', /at most max_gpus, which is 1500, got 1501/],
  [{ min_gpus: 1400, max_gpus: 1401 }, 'min_gpus', /got 1400 to 1401/],
  [{ model_parallel_size: 2 }, 'model_parallel_size', /elasticity.version to 0.2/],
  [{ version: 0.2, model_parallel_size: 2 }, 'model_parallel_size', /divisor of num_gpus/],
  [{ version: 0.2, num_gpus_per_node: 1501 }, 'max_gpus', /at least num_gpus_per_node/],
  [{ version: 0.3 }, 'version', /0.1, 0.2/],
])('%j is refused', (section, path, message) => {
  const { errors } = checkConfig(elastic(section), { worldSize: 64 });
  expect(errors.map((error) => error.path)).toEqual([`elasticity.${path}`]);
  expect(errors[0]?.message).toMatch(message);
});
