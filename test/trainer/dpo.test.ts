// Preference optimization: sums of rows, references, data, and what a small model learns.
import { join } from 'node:path';
import {
  dpo,
  nn,
  peft,
  seed,
  Tensor,
  Trainer,
  type TrainerOptions,
  text,
} from '../../lib/index.js';
import { required } from '../../lib/runtime/required.js';
import { noGrad } from '../../lib/tensor/index.js';
import type { PairBatch, PairSample } from '../../lib/text/index.js';
import { refusal } from '../support/refusal.js';

const tokenizer = text.Tokenizer.fromPretrained(
  join('test', 'golden', 'transformers', 'tokenizers', 'llama2'),
);

const modelOf = (start = 3): nn.models.Llama => {
  seed(start);
  return new nn.models.Llama({
    vocabSize: tokenizer.vocabSize,
    maxSeq: 64,
    layers: 2,
    heads: 2,
    channels: 32,
    hidden: 64,
    padTokenId: tokenizer.padId,
  });
};

const WORDS = ['engine', 'rank', 'model', 'file', 'checkpoint', 'loss'];
/** Answers with one of the first three words are chosen. */
const rows = Array.from({ length: 64 }, (_, i) => {
  const [good, bad] = [WORDS[i % 3], WORDS[3 + (i % 4 === 0 ? 0 : i % 3)]] as [string, string];
  return { prompt: `The ${WORDS[(i * 5) % 6]} is`, chosen: ` ${good}`, rejected: ` ${bad}` };
});

const pairsOf = (items: readonly object[] = rows, length = 32) =>
  text.PairDataset.open({ tokenizer, rows: items as Record<string, unknown>[], length });

async function batchOf(count: number): Promise<PairBatch> {
  const pairs = await pairsOf();
  const samples = Array.from({ length: count }, (_, i) => pairs.get(i));
  return text.collatePairs(0)(samples, Tensor.from([0]).device);
}

test('sums by row equal log-softmax, gradients too', async () => {
  const { ids, targets } = await batchOf(3);
  const [one, other] = [modelOf(), modelOf()];
  const weights = Tensor.from([0.3, -1, 2, 0.5, -0.25, 1]);
  const sums = one.call(ids, targets, { loss: { rows: true } });
  const logits = other.call(ids).logSoftmax(-1);
  const known = targets.ne(-100);
  const safe = targets.mul(known.to('i32')).to('i64').unsqueeze(2);
  const picked = logits.gather(2, safe).squeeze(2).mul(known.to('f32'));
  const expected = picked.sum(1);
  for (const [i, value] of (sums.toArray() as number[]).entries()) {
    expect(value).toBeCloseTo(expected.toArray()[i] as number, 4);
  }
  sums.mul(weights).sum().backward();
  expected.mul(weights).sum().backward();
  const others = new Map(other.namedParameters());
  for (const [name, { grad }] of one.namedParameters()) {
    const expected = (required(others.get(name)).grad as Tensor).toArray() as number[];
    const largest = Math.max(...expected.map(Math.abs), 1e-3);
    for (const [i, value] of ((grad as Tensor).toArray() as number[]).entries()) {
      expect(Math.abs(value - (expected[i] as number)) / largest).toBeLessThan(1e-4);
    }
  }
});

async function trainModel(model: nn.models.Llama, options: Partial<TrainerOptions>) {
  const trainer = new Trainer({
    model,
    tokenizer,
    lr: 2e-3,
    batchSize: 8,
    maxSteps: 4,
    device: 'cpu',
    seed: 1,
    progress: false,
    ...options,
  } as TrainerOptions);
  const losses: number[] = [];
  let metrics: Readonly<Record<string, number>> = {};
  try {
    for await (const event of trainer.train()) {
      if (event.type === 'log') losses.push(event.loss as number);
      if (event.type === 'evaluate') metrics = event.metrics as typeof metrics;
    }
    return { losses, metrics };
  } finally {
    // An engine that is left behind keeps watching signals, also in the next file of this process.
    await trainer.destroy();
  }
}

test('adapters without a reference equal a second model, and recorded numbers', async () => {
  const train = await pairsOf();
  const common = { log: { every: 1 } };
  const makeAdapted = () => peft.addLora(modelOf(), { r: 4 });
  const own = await trainModel(makeAdapted(), {
    ...common,
    train,
    method: dpo(),
    eval: { data: train, every: 2 },
  });
  const second = await trainModel(makeAdapted(), {
    ...common,
    train,
    method: dpo({ reference: modelOf() }),
  });
  expect(own.losses[0]).toBeCloseTo(Math.LN2, 6);
  expect(own.losses.length).toBeGreaterThan(2);
  expect(own.losses.at(-1)).toBeLessThan(Math.LN2);
  expect(second.losses).toEqual(own.losses);

  const reference = modelOf().eval();
  const known = rows.map((row, i) => {
    const batch = text.collatePairs(0)([train.get(i)], Tensor.from([0]).device);
    const [chosen, rejected] = noGrad(() =>
      reference.call(batch.ids, batch.targets, { loss: { rows: true } }),
    ).toArray() as number[];
    return { ...row, ref_chosen_logps: chosen, ref_rejected_logps: rejected };
  });
  const recorded = await trainModel(modelOf(), {
    ...common,
    train: await pairsOf(known),
    method: dpo(),
  });
  expect(recorded.losses[0]).toBeCloseTo(Math.LN2, 5);
  expect((await pairsOf(known)).hasReference).toBe(true);
  expect(train.hasReference).toBe(false);
  const both = { train: await pairsOf(known), method: dpo({ reference: modelOf() }) };
  const error = await refusal(() => trainModel(modelOf(), both));
  expect(error.message).toMatch(/dpo reference: expected no log-probabilities of the reference/);
});

test('a small model learns preferences, and ranks held-out pairs', async () => {
  const train = await pairsOf();
  const held = await pairsOf(
    rows.slice(0, 24).map((row) => ({ ...row, prompt: `Now ${row.prompt}` })),
  );
  const { losses, metrics } = await trainModel(modelOf(), {
    train,
    eval: { data: held, every: 60 },
    maxSteps: 60,
    log: { every: 10 },
    method: dpo({ reference: modelOf() }),
  });
  expect(losses.at(-1)).toBeLessThan(0.4);
  expect(metrics['rewards/accuracies']).toBeGreaterThan(0.9);
  expect(metrics['rewards/margins']).toBeGreaterThan(1);
});

const idsOf = ({ chosen, rejected, prompt }: PairSample): unknown => [
  tokenizer.decode(chosen.subarray(0, prompt)),
  tokenizer.decode(chosen.subarray(prompt)),
  tokenizer.decode(rejected.subarray(prompt)),
];

test('rows with an implicit prompt, and rows that are dropped or cut', async () => {
  const implicit = await pairsOf([{ chosen: 'The rank reads', rejected: 'The rank waits' }]);
  const [prompt] = idsOf(implicit.get(0)) as string[];
  expect(prompt?.trim()).toBe('<s> The rank');
  const long = 'engine '.repeat(40);
  const some = await pairsOf(
    [
      ...rows.slice(0, 3),
      { prompt: long, chosen: 'a', rejected: 'b' },
      { prompt: 'a', chosen: long, rejected: 'b' },
    ],
    16,
  );
  expect(some.report).toEqual({ pairs: 4, dropped: 1, cut: 1 });
  const none = await refusal(() => pairsOf([{ prompt: long, chosen: 'a', rejected: 'b' }], 16));
  expect([none.code, none.got]).toEqual(['DS_DATA', '1 prompts of at least 16 tokens']);
  const wrong = await refusal(() => pairsOf([{ prompt: 'a', chosen: 1, rejected: 'b' }]));
  expect(wrong.message).toMatch(/row 0.*"chosen" and "rejected"/);
});

test.each([
  [() => dpo({ beta: 0 }), /dpo beta/],
  [() => dpo({ loss: 'sigmoidal' as 'sigmoid' }), /dpo loss.*sigmoid, hinge/],
  [() => dpo({ loss: 'hinge', labelSmoothing: 0.1 }), /labelSmoothing of hinge/],
  [() => dpo({ loss: 'exo_pair' }), /labelSmoothing of exo_pair/],
  [() => dpo({ loss: ['sigmoid', 'sft'], weights: [1] }), /2 numbers/],
  [() => dpo({ betta: 1 } as object), /betta/],
])('wrong options are refused: %#', (make, message) => {
  expect(make).toThrow(message);
});

test('accepts a tokenizer, or its folder', async () => {
  const folder = join('test', 'golden', 'transformers', 'tokenizers', 'llama2');
  const pairs = await text.PairDataset.open({ tokenizer: folder, rows });
  expect(pairs.get(3)).toEqual((await pairsOf(rows, 1024)).get(3));
  const wrong = { tokenizer: 1, rows: [] } as unknown as { tokenizer: string };
  for (const open of [text.PairDataset.open, text.LabelledDataset.open]) {
    const error = await refusal(() => open(wrong));
    expect(error.message).toMatch(
      /open tokenizer: expected a text.Tokenizer, or its folder, got 1/,
    );
  }
});

test('a model without a reference is refused with the fix', async () => {
  const train = await pairsOf();
  const error = await refusal(() => trainModel(modelOf(), { train, method: dpo() }));
  expect(error.message).toMatch(/a reference, a model with adapters.*fromPretrained/);
});
