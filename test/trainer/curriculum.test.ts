// Tests Trainers with growing sequence lengths against data that was truncated before, with equal
// counts.
import {
  type BatchSource,
  type DsConfig,
  type LogEvent,
  type LossInput,
  Tensor,
  Trainer,
  type TrainerOptions,
} from '../../lib/index.js';
import { liveTensors } from '../../lib/tensor/index.js';
import { quiet } from '../support/quiet.js';
import { SEQ, tinyModel, VOCABULARY, weightsOf } from './tiny.js';

type Batch = Record<string, Tensor>;

const ROWS = 2;
const LENGTHS = [4, 4, 7, SEQ];
const section: DsConfig['curriculum_learning'] = {
  enabled: true,
  min_difficulty: 4,
  max_difficulty: SEQ,
  schedule_type: 'fixed_discrete',
  schedule_config: { difficulty: [4, 7, SEQ], max_step: [2, 3] },
};

const rows = (length: number, make: (row: number, at: number) => number): Tensor =>
  Tensor.from(
    Int32Array.from({ length: ROWS * length }, (_, i) => make(Math.floor(i / length), i % length)),
    { shape: [ROWS, length] },
  );

const token = (step: number) => (row: number, at: number) =>
  (5 * step + 3 * row + at * at) % VOCABULARY;

/** Micro-batches with the lengths of each step; the next token is mostly predictable. */
function windows(step: number, length: number): Batch {
  const of = token(step);
  const targets = rows(length, (row, at) => ((at + step) % 3 === row ? -100 : of(row, at + 1)));
  const documents = rows(length, (row, at) => Math.floor((at + row) / 3));
  return { tokens: rows(length, of), targets, documents };
}

/** The same as padded texts with unshifted labels. */
function labelledBatch(step: number, length: number): Batch {
  const of = token(step);
  const label = (row: number, at: number): number =>
    (at - 1 + step) % 3 === row ? -100 : of(row, at);
  return { ids: rows(length, of), labels: rows(length, label) };
}

const source = (make: (step: number) => Batch): BatchSource<Batch> => ({
  length: LENGTHS.length,
  async *[Symbol.asyncIterator]() {
    for (const step of LENGTHS.keys()) yield make(step);
  },
});

const open: Trainer<never, Batch>[] = [];
afterEach(async () => {
  for (const trainer of open.splice(0)) await trainer.destroy();
});

async function trainBatches(
  make: (step: number) => Batch,
  options: Partial<TrainerOptions<never, Batch>> = {},
) {
  const trainer = new Trainer<never, Batch>({
    model: tinyModel(),
    train: () => source(make),
    device: 'cpu',
    progress: false,
    batchSize: ROWS,
    epochs: 1,
    lr: 3e-3,
    log: { every: 1 },
    stopSignals: [],
    ...options,
  });
  open.push(trainer);
  const logs: LogEvent[] = [];
  for await (const event of trainer.train()) if (event.type === 'log') logs.push(event);
  const { module } = await trainer.engine();
  return {
    weights: weightsOf(module),
    losses: logs.map(({ loss }) => loss),
    tokens: logs.map(({ tokens }) => tokens),
    trainer,
  };
}

const growing: { deepspeed: DsConfig } = { deepspeed: { curriculum_learning: section } };
const whole = (make: typeof windows) => (step: number) => make(step, SEQ);
const cut = (make: typeof windows) => (step: number) => make(step, LENGTHS[step] as number);

test.each([
  ['windows', windows],
  ['an accumulated half', windows],
])('%s weigh by what is left of them', async (name, make) => {
  const halves = name === 'windows' ? {} : { accumulation: 2 };
  const lengths = name === 'windows' ? LENGTHS : [4, 4, 4, 4];
  const byHand = await trainBatches((step) => make(step, lengths[step] as number), halves);
  const { trainer, ...grown } = await trainBatches(whole(make), { ...growing, ...halves });
  expect(grown).toEqual({ ...grown, weights: byHand.weights, losses: byHand.losses });
  expect(grown.tokens).toEqual(byHand.tokens);
  const all = lengths.reduce((sum, length) => sum + ROWS * length, 0);
  expect(grown.tokens.at(-1)).toBe(all);
});

test('the last label of a text that was cut is the token after it', async () => {
  const shiftedBatch = (step: number): Batch => {
    const { tokens, targets } = cut(windows)(step) as { tokens: Tensor; targets: Tensor };
    // A text of all tokens has no label after its last one.
    if (tokens.size(1) < SEQ) return { tokens, targets };
    return labelledBatch(step, SEQ);
  };
  const [byHand, grown] = [
    await trainBatches(shiftedBatch),
    await trainBatches(whole(labelledBatch), growing),
  ];
  expect(grown.losses).toEqual(byHand.losses);
  expect(grown.weights).toEqual(byHand.weights);
});

test('evaluation sees whole samples', async () => {
  const judged = { data: () => source(whole(windows)), every: 'epoch' } as never;
  const byHand = await trainBatches(cut(windows), { eval: judged });
  const grown = await trainBatches(whole(windows), { ...growing, eval: judged });
  expect(await grown.trainer.evaluate()).toEqual(await byHand.trainer.evaluate());
});

test('a custom loss gets the shortened batch; batches without tokens are refused', async () => {
  const seen: (readonly number[])[] = [];
  const loss = ({ forward, batch }: LossInput<Batch>): Tensor => {
    seen.push((batch.tokens as Tensor).shape, (batch.weight as Tensor).shape);
    return forward(batch.tokens, batch.targets);
  };
  const weightedBatch = (step: number): Batch => ({
    ...windows(step, SEQ),
    weight: rows(SEQ, () => 1),
  });
  await trainBatches(weightedBatch, { ...growing, loss });
  const weight = [ROWS, SEQ];
  expect(seen).toEqual(LENGTHS.flatMap((length) => [[ROWS, length], weight]));
  const pictures = (): Batch => ({ pictures: rows(SEQ, () => 1) });
  await expect(trainBatches(pictures, { ...growing, loss })).rejects.toThrow(
    /Trainer batch: expected batches with a tensor \[B, T\] .* which curriculum_learning shortens/,
  );
});

test('truncated tokens are freed', async () => {
  await quiet();
  const before = liveTensors();
  const { trainer } = await trainBatches(whole(labelledBatch), growing);
  await trainer.destroy();
  open.splice(0);
  const left = liveTensors();
  const other = await trainBatches(whole(labelledBatch));
  await other.trainer.destroy();
  open.splice(0);
  expect(left - before).toBe(liveTensors() - left);
});
