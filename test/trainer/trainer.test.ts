// Tests the Trainer on one rank: equality with a loop over the engine, its events, and how it ends.
import {
  type BatchSource,
  data,
  type EvaluateEvent,
  initialize,
  type LogEvent,
  type LossInput,
  nn,
  noGrad,
  optim,
  seed,
  Tensor,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
  type text,
} from '../../lib/index.js';
import {
  destroyTrainers,
  noteTrainer,
  SEQ,
  samples,
  tinyModel,
  VOCABULARY,
  type Window,
  weightsOf,
} from './tiny.js';

interface Batch {
  tokens: Tensor;
  targets: Tensor;
}
type Options = Partial<TrainerOptions<Window>>;

afterEach(destroyTrainers);

function trainer(options: Options = {}): Trainer<Window> {
  return new Trainer<Window>({
    model: tinyModel(),
    train: samples(10),
    device: 'cpu',
    progress: false,
    lr: 3e-3,
    batchSize: 2,
    epochs: 1,
    log: { every: 1 },
    stopSignals: [],
    ...options,
  });
}

/** Destroyed after the test. */
const once = (options: Options = {}): Trainer<Window> => noteTrainer(trainer(options));

const logs = (events: readonly TrainerEvent[]): LogEvent[] =>
  events.filter((event): event is LogEvent => event.type === 'log');

async function eventsOf(run: AsyncIterable<TrainerEvent>): Promise<TrainerEvent[]> {
  const events: TrainerEvent[] = [];
  for await (const event of run) events.push(event);
  return events;
}

/** The same training with the engine only. */
async function byHand(accumulation: number): Promise<Record<string, number[]>> {
  const model = tinyModel();
  const groups = [
    { params: model.parameters().filter(({ ndim }) => ndim >= 2), weightDecay: 0.1 },
    { params: model.parameters().filter(({ ndim }) => ndim < 2), weightDecay: 0 },
  ];
  seed(42);
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: accumulation,
      gradient_clipping: 1,
    },
    optimizer: () => new optim.AdamW(groups, { lr: 3e-3 }),
    lrScheduler: () =>
      new optim.LambdaLr({ baseLr: 3e-3, factor: (n) => 1 - n / Math.ceil(10 / accumulation) }),
  });
  const sampler = new data.DistributedSampler(20, { rank: 0, worldSize: 1, seed: 42 });
  const loader = new data.DataLoader(samples(20), { batchSize: 2, sampler });
  let left = 10;
  let micros: { tokens: Tensor; targets: Tensor }[] = [];
  for (const batch of loader) {
    micros.push(batch);
    left--;
    if (micros.length < accumulation && left > 0) continue;
    const counts = micros.map(({ targets }) => targets.toArray().filter((id) => id >= 0).length);
    const all = counts.reduce((sum, count) => sum + count);
    if (micros.length < accumulation) engine.setTrainBatchSize(2 * micros.length);
    for (const { tokens, targets } of micros) {
      const loss = { divisor: all / micros.length };
      engine.backward(engine.forward<Tensor>(tokens, targets, accumulation > 1 ? { loss } : {}));
    }
    engine.step();
    micros = [];
  }
  engine.synchronize();
  const weights = weightsOf(model);
  engine.destroy();
  return weights;
}

test.each([1, 3])(
  'an epoch, %i micro-batches an update, is a loop by hand bit for bit',
  async (accumulation) => {
    const model = tinyModel();
    const ours = trainer({ model, train: samples(20), accumulation, weightDecay: 0.1 });
    const end = await ours.train();
    // 10 micro-batches: with 3 an update, the last one has 1.
    expect(end).toMatchObject({ type: 'end', reason: 'done', step: Math.ceil(10 / accumulation) });
    expect(weightsOf(model)).toEqual(await byHand(accumulation));
    await ours.destroy();
  },
);

test('events come in order, first to listeners, with the numbers of the engine', async () => {
  const heard: string[] = [];
  const one = trainer({ epochs: 2, batchSize: 5, callbacks: [{ end: () => heard.push('end') }] });
  one.on('log', ({ step, loss, gradNorm, lr }) => {
    heard.push(`log ${step}`);
    expect([loss, gradNorm, lr].every((value) => Number.isFinite(value))).toBe(true);
  });
  const events = await eventsOf(one.train());
  expect(events.map(({ type, step }) => `${type} ${step}`)).toEqual([
    'begin 0',
    'step 1',
    'log 1',
    'step 2',
    'epoch 2',
    'log 2',
    'step 3',
    'log 3',
    'step 4',
    'log 4',
    'epoch 4',
    'end 4',
  ]);
  expect(heard).toEqual(['log 1', 'log 2', 'log 3', 'log 4', 'end']);
  await one.destroy();
});

test('logs are means over their updates, with tokens, epochs and the rate', async () => {
  const each = logs(await eventsOf(once({ train: samples(12) }).train()));
  const pairs = logs(await eventsOf(once({ train: samples(12), log: { every: 4 } }).train()));
  expect(pairs.map(({ step }) => step)).toEqual([4, 6]);
  const mean = (from: number, to: number): number =>
    each.slice(from, to).reduce((sum, { loss }) => sum + loss, 0) / (to - from);
  expect(pairs[0]?.loss).toBeCloseTo(mean(0, 4), 12);
  expect(pairs[1]?.loss).toBeCloseTo(mean(4, 6), 12);
  expect(pairs.map(({ tokens }) => tokens)).toEqual([4 * 2 * SEQ, 6 * 2 * SEQ]);
  expect(pairs[0]?.epoch).toBeCloseTo(4 / 6, 12);
  expect(pairs[0]?.lr).toBeCloseTo(3e-3 * (1 - 3 / 6), 12);
  expect(pairs[0]).toMatchObject({ mfu: null, skipped: 0 });
});

test('a run may last a part of an epoch, a number of updates, or a stream', async () => {
  const half = await once({ train: samples(12), epochs: 1.5 }).train();
  expect(half).toMatchObject({ step: 9, reason: 'done' });
  expect(half.epoch).toBeCloseTo(1.5, 12);
  const repeated = await once({ train: samples(4), maxSteps: 5 }).train();
  expect(repeated).toMatchObject({ step: 5, epoch: 2.5 });
  const loader = new data.DataLoader(samples(6), { batchSize: 2 });
  const stream = { [Symbol.asyncIterator]: () => loader[Symbol.asyncIterator]() };
  const source = stream as unknown as BatchSource<Batch>;
  const streamed = await eventsOf(once({ train: () => source, maxSteps: 4 }).train());
  expect(streamed.filter(({ type }) => type === 'epoch')).toMatchObject([{ step: 3, epoch: 1 }]);
  await expect(once({ train: source }).train()).rejects.toThrow('Trainer maxSteps');
  const empty = { async *[Symbol.asyncIterator]() {} };
  await expect(once({ train: empty, maxSteps: 1 }).train()).rejects.toThrow(
    'expected data with a batch for every epoch',
  );
});

test('the evaluation loss is the mean over targets, for any batches', async () => {
  const judged = samples(7, 100);
  const metrics = ({ batch }: LossInput<Batch>) => ({
    rows: { sum: batch.tokens.size(0), count: 1 },
  });
  const means: number[] = [];
  for (const batchSize of [1, 3, 7]) {
    const trainer = once({ eval: { data: judged, batchSize, metrics } });
    const { loss, rows } = await trainer.evaluate();
    expect(rows).toBeCloseTo(7 / Math.ceil(7 / batchSize), 12);
    // The evaluation starts at the first sample again.
    expect(await trainer.evaluate()).toEqual({ loss, rows });
    means.push(loss);
  }
  expect(means[1]).toBeCloseTo(means[0] as number, 6);
  expect(means[2]).toBeCloseTo(means[0] as number, 6);
  const none: data.Dataset<Window> = {
    length: 1,
    get: () => ({ tokens: new Int32Array(SEQ), targets: new Int32Array(SEQ).fill(-100) }),
  };
  await expect(once().evaluate(none)).rejects.toThrow('expected data with a target');
});

test('accuracy is the share of counted targets that are the first choice', async () => {
  const model = tinyModel();
  let [right, counted] = [0, 0];
  // The model's choice is right for one of every two counted targets.
  const judged = Array.from({ length: 7 }, (_, i) => {
    const { tokens, targets } = samples(7, 100).get(i) as Window;
    const logits = noGrad(() => model.call(Tensor.from(tokens).reshape([1, SEQ])));
    const choices = logits.argmax(-1).toArray();
    const answers = targets.map((target, at) => {
      if (target === -100) return target;
      right += Number(++counted % 2 === 0);
      return ((choices[at] as number) + (counted % 2)) % VOCABULARY;
    });
    return { tokens, targets: answers };
  });
  const data = { length: 7, get: (i: number) => judged[i] as Window };
  const metrics = () => ({ ones: { sum: 1, count: 1 } });
  const one = once({ model, eval: { data, batchSize: 3, accuracy: true, metrics } });
  for (let again = 0; again < 2; ++again) {
    expect(await one.evaluate()).toMatchObject({ accuracy: right / counted, ones: 1 });
  }
  expect(await one.evaluate(data)).toMatchObject({ accuracy: right / counted });
  const accuracyOf = () => ({ accuracy: { sum: 1, count: 1 } });
  const both = once({ eval: { data, accuracy: true, metrics: accuracyOf } });
  await expect(both.evaluate()).rejects.toThrow('another name: the accuracy has it');
});

test('evaluation leaves training as it was, to the bit', async () => {
  const model = tinyModel(0.1);
  const judged = tinyModel(0.1);
  await once({ model, epochs: 2 }).train();
  const evaluation = { data: samples(3, 50), every: 2, atStart: true };
  const events = await eventsOf(once({ model: judged, epochs: 2, eval: evaluation }).train());
  expect(events.filter(({ type }) => type === 'evaluate').map(({ step }) => step)).toEqual([
    0, 2, 4, 6, 8, 10,
  ]);
  expect(weightsOf(judged)).toEqual(weightsOf(model));
});

test('another kind of model uses its own loss, with batches weighted by samples', async () => {
  const layer = new nn.Linear(2, 1);
  const train = {
    length: 5,
    get: (i: number) => ({ x: Float32Array.of(i, 1), y: Float32Array.of(2 * i + 1) }),
  };
  const line = new Trainer({
    model: layer,
    train,
    device: 'cpu',
    progress: false,
    epochs: 60,
    batchSize: 2,
    accumulation: 3,
    lr: 0.1,
    schedule: 'constant',
    log: { every: 1 },
    stopSignals: [],
    loss: ({ forward, batch }) => forward(batch.x).sub(batch.y).square().mean(),
    eval: { data: train, every: 'epoch' },
  });
  const events = await eventsOf(line.train());
  const { metrics } = events.findLast(({ type }) => type === 'evaluate') as EvaluateEvent;
  expect(logs(events)[0]?.loss).toBeGreaterThan(10 * metrics.loss);
  const rows = await line.predict(train, ({ forward, batch }) => forward(batch.x));
  expect(rows).toHaveLength(5);
  for (const [i, row] of rows.entries()) expect(Number(row[0])).toBeCloseTo(2 * i + 1, 0);
  await expect(line.predict(train)).rejects.toThrow('Trainer predict output');
  await line.destroy();
});

test('predictions of a language model are its next tokens, a row for each sample in order', async () => {
  const trainer = once();
  const judged = samples(5, 20);
  const rows = await trainer.predict(judged);
  const { module } = await trainer.engine();
  const by = rows.map((row) => [...row].map(Number));
  const alone = Array.from({ length: 5 }, (_, i) => {
    const { tokens } = judged.get(i) as Window;
    const input = Tensor.from(tokens, { shape: [1, SEQ], dtype: 'i32' });
    return noGrad(() => (module as nn.models.GPT2).call(input).argmax(-1).toArray());
  });
  expect(by).toEqual(alone);
});

test('rows of text: packed with their documents, or padded each for itself', async () => {
  const rows: text.TextSample[] = [3, 7, 5, 4, 6, 2].map((length, row) => ({
    ids: Int32Array.from({ length }, (_, i) => (row * 9 + i * 4) % 61),
    labels: Int32Array.from({ length }, (_, i) => (i === 0 ? -100 : (row * 9 + i * 4) % 61)),
    positions: Int32Array.from({ length }, (_, i) => i),
    documents: new Int32Array(length),
  }));
  const joinSamples = (parts: readonly text.TextSample[]): text.TextSample => ({
    ids: Int32Array.from(parts.flatMap(({ ids }) => [...ids])),
    labels: Int32Array.from(parts.flatMap(({ labels }) => [...labels])),
    positions: Int32Array.from(parts.flatMap(({ positions }) => [...positions])),
    documents: Int32Array.from(parts.flatMap(({ ids }, i) => Array(ids.length).fill(i))),
  });
  const packed = [
    joinSamples(rows.slice(0, 2)),
    joinSamples(rows.slice(2, 4)),
    joinSamples(rows.slice(4)),
  ];
  const datasetOf = <T>(list: readonly T[]) => ({
    length: list.length,
    get: (i: number) => list[i] as T,
  });
  const weights: Record<string, number[]>[] = [];
  for (const [list, batchSize] of [
    [rows, 6],
    [packed, 3],
  ] as const) {
    const model = tinyModel();
    const trainer = new Trainer({
      model,
      train: datasetOf(list),
      batchSize,
      device: 'cpu',
      progress: false,
      epochs: 2,
      data: { sampling: 'group_by_length' },
      stopSignals: [],
    });
    await trainer.train();
    await trainer.destroy();
    weights.push(weightsOf(model));
  }
  const [apart, together] = weights as [Record<string, number[]>, Record<string, number[]>];
  for (const [name, values] of Object.entries(apart)) {
    values.forEach((value, i) => {
      expect(Math.abs(value - (together[name]?.[i] as number))).toBeLessThan(1e-6);
    });
  }
});

test('an iterable dataset trains like a dataset with indices', async () => {
  const model = tinyModel();
  const turn = tinyModel();
  const all = samples(8);
  await once({ model, train: all, data: { sampling: 'sequential' } }).train();
  const iterate = function* () {
    for (let i = 0; i < 8; ++i) yield all.get(i);
  };
  const judged = { data: { iterate } };
  const streamed = once({ model: turn, train: { iterate }, maxSteps: 4, eval: judged });
  await streamed.train();
  expect(weightsOf(turn)).toEqual(weightsOf(model));
  expect(await streamed.evaluate()).toEqual(await streamed.evaluate(all));
});

const misuses: readonly [
  string,
  Options,
  (trainer: Trainer<Window>) => PromiseLike<unknown>,
  string,
][] = [
  [
    'no data',
    { train: undefined },
    (trainer) => trainer.train(),
    'Trainer train: expected `train` data',
  ],
  ['nothing to judge', {}, (trainer) => trainer.evaluate(), 'Trainer evaluate: expected data'],
  [
    'another event',
    {},
    async (trainer) => trainer.on('lgo' as never, () => {}),
    'begin, step, log',
  ],
  [
    'a wrong signal',
    {},
    async (trainer) => trainer.train({ signal: {} as never }),
    'an AbortSignal',
  ],
  ['a wrong option', {}, async (trainer) => trainer.train({ resme: true } as never), '"resume"'],
  [
    'no loss',
    { model: new nn.Linear(1, 1) as never },
    (trainer) => trainer.train(),
    'another model with a `loss`',
  ],
  [
    'samples of another kind',
    { train: { length: 1, get: () => ({ x: Int32Array.of(1) }) } as never },
    (trainer) => trainer.train(),
    'Trainer batch: expected batches { ids, labels, ... } or { tokens, targets } of tensors',
  ],
  ...([{ sampling: 'sequential' }, { workers: 2 }] as const).map(
    (own): (typeof misuses)[number] => [
      `batches beside ${JSON.stringify(own)}`,
      { train: async () => (async function* () {})(), maxSteps: 1, data: own },
      (trainer) => trainer.train(),
      'expected a dataset with length and get(index), got batches. Pass such a dataset, or remove the option',
    ],
  ),
  ...['labels', 'targets'].map((name): (typeof misuses)[number] => [
    `samples of arrays, with ${name}`,
    { train: { length: 1, get: () => ({ tokens: [1, 2, 3], [name]: [2, 3, 4] }) } as never },
    (trainer) => trainer.train(),
    `got an object { tokens, ${name} }. Use Int32Array in samples`,
  ]),
  [
    'samples whose tokens alone are arrays',
    {
      train: { length: 1, get: () => ({ tokens: [1, 2], targets: Int32Array.of(2, 3) }) } as never,
    },
    (trainer) => trainer.train(),
    'got an object { tokens, targets }. Use Int32Array in samples',
  ],
  ...[
    [[5, 6, 7], 'Trainer data.lengths: expected 10 lengths, one for each sample, got 3'],
    [[...Array(9).fill(5), Number.NaN], 'Trainer data.lengths 9: expected'],
  ].map(([lengths, message]): (typeof misuses)[number] => [
    `lengths ${lengths}`,
    { data: { sampling: 'group_by_length', lengths: lengths as number[] } },
    (trainer) => trainer.train(),
    message as string,
  ]),
  ...[Promise.resolve({}), undefined, null, 3, []].map((metrics): (typeof misuses)[number] => [
    `metrics that are ${Object.prototype.toString.call(metrics)}`,
    { eval: { data: samples(2), metrics: () => metrics as never } },
    (trainer) => trainer.evaluate(),
    'Trainer eval.metrics: expected an object of sums, { name: { sum, count } }, got',
  ]),
  [
    'an error of a listener',
    { callbacks: [{ step: () => Promise.reject(new Error('heard')) }] },
    (trainer) => trainer.train(),
    'heard',
  ],
  [
    'a checkpoint that is none',
    {},
    (trainer) => trainer.train({ resume: '/nowhere' }),
    'expected a checkpoint-<step> folder of a Trainer, got nothing of this name',
  ],
];

test.each(misuses)('%s is refused with one line', async (_, options, use, message) => {
  const trainer = once(options);
  await expect((async () => use(trainer))()).rejects.toThrow(message);
});
