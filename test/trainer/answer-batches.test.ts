// Losses of whole batches against formulas in f64: padding at either side, empty answers, rows that
// fill the batch, rows without targets, and several micro-batches.
import { cpo, dpo, kto, type nn, orpo, Tensor, type TrainingMethod } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { required } from '../../lib/runtime/required.js';
import { noGrad } from '../../lib/tensor/index.js';
import type { Forward, MicroBatch } from '../../lib/trainer/micro-batch.js';
import { modelOf } from './answers.js';

const IGNORED = -100;
const T = 8;

/** A row: tokens of padding on the left, of the prompt, of the answer, and on the right. */
type Row = readonly [left: number, prompt: number, answer: number, right: number];

/** Chosen rows, then rejected rows, of batches [2P, T]. */
const BATCHES: Readonly<Record<string, readonly Row[]>> = {
  'padding at the right': [
    [0, 3, 3, 2],
    [0, 2, 4, 2],
    [0, 3, 4, 1],
    [0, 2, 1, 5],
  ],
  'padding at the left': [
    [2, 3, 3, 0],
    [2, 2, 4, 0],
    [1, 3, 4, 0],
    [5, 2, 1, 0],
  ],
  'full rows': [
    [0, 3, 5, 0],
    [0, 1, 7, 0],
    [0, 3, 5, 0],
    [0, 1, 7, 0],
  ],
  'an empty answer': [
    [0, 3, 0, 5],
    [0, 2, 4, 2],
    [0, 3, 4, 1],
    [0, 2, 2, 4],
  ],
  'rows without targets': [
    [0, 8, 0, 0],
    [0, 2, 4, 2],
    [0, 8, 0, 0],
    [0, 2, 2, 4],
  ],
};

let state = 1;
const random = (limit: number): number => {
  state = (state * 48271) % 2147483647;
  return state % limit;
};

/** A batch on the host; padding has ids of real tokens. */
function batchOf(rows: readonly Row[]) {
  const ids = Int32Array.from({ length: rows.length * T }, () => 3 + random(900));
  const targets = new Int32Array(ids.length).fill(IGNORED);
  rows.forEach(([left, prompt, answer], row) => {
    const first = row * T + left + prompt;
    targets.set(ids.subarray(first, first + answer), first - 1);
  });
  const shape = [rows.length, T];
  return {
    ids: Tensor.from(ids, { shape }),
    targets: Tensor.from(targets, { shape }),
    answered: Tensor.from(Float32Array.from(rows, ([, , answer]) => answer)),
  };
}

/** Sums of log-probabilities of `targets` by row, in f64 from the model's logits. */
function sumsOf(model: nn.models.CausalLM, ids: Tensor, targets: readonly number[]): number[] {
  const [rows, length] = ids.shape as [number, number];
  const logits = noGrad(() => model.call(ids)).toArray() as number[];
  const V = logits.length / (rows * length);
  return Array.from({ length: rows }, (_, row) => {
    let sum = 0;
    for (let t = 0; t < length; ++t) {
      const target = targets[row * length + t] as number;
      if (target === IGNORED) continue;
      const localValues = logits.slice((row * length + t) * V, (row * length + t + 1) * V);
      const largest = Math.max(...localValues);
      const total = localValues.reduce((all, x) => all + Math.exp(x - largest), 0);
      sum += (localValues[target] as number) - largest - Math.log(total);
    }
    return sum;
  });
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const mean = (all: readonly number[]): number => all.reduce((a, b) => a + b, 0) / all.length;
const values = (tensor: Tensor): number[] => tensor.toArray().map(Number);

type Batch = ReturnType<typeof batchOf>;
interface Sums {
  own: number[];
  reference: number[];
  counts: number[];
  /** Log-probabilities of whole chosen rows, and their tokens. */
  whole: number[];
  wholeCounts: number[];
}

/** The mean loss of P pairs from sums of 2P rows. */
const PAIRS: Readonly<Record<string, readonly [TrainingMethod, (sums: Sums) => number]>> = {
  dpo: [
    dpo({
      beta: 0.3,
      loss: ['sigmoid', 'ipo', 'sft'],
      weights: [1, 0.1, 0.5],
      reference: modelOf(4),
    }),
    ({ own, reference, counts }) => {
      const P = own.length / 2;
      const x = own.map((value, i) => value - (reference[i] as number));
      const tokens = (i: number): number => Math.max(1, counts[i] as number);
      const pairs = Array.from({ length: P }, (_, i) => {
        const [w, l] = [x[i] as number, x[i + P] as number];
        const ipo = (w / tokens(i) - l / tokens(i + P) - 1 / 0.6) ** 2;
        return -Math.log(sigmoid(0.3 * (w - l))) + 0.1 * ipo;
      });
      const chosen = counts.slice(0, P).reduce((a, b) => a + b, 0);
      const nll = -own.slice(0, P).reduce((a, b) => a + b, 0) / Math.max(1, chosen);
      return mean(pairs) + 0.5 * nll;
    },
  ],
  simpo: [
    cpo({ beta: 2, loss: 'simpo', cpoAlpha: 0 }),
    ({ own, counts }) => {
      const P = own.length / 2;
      const a = own.map((value, i) => value / Math.max(1, counts[i] as number));
      const pairs = a.slice(0, P).map((w, i) => 2 * (w - (a[i + P] as number)) - 0.5);
      return mean(pairs.map((x) => -Math.log(sigmoid(x))));
    },
  ],
  orpo: [
    orpo({ beta: 0.2 }),
    ({ own, counts, whole, wholeCounts }) => {
      const P = own.length / 2;
      const odds = own.map((value, i) => {
        const a = Math.min(value / Math.max(1, counts[i] as number), -1e-6);
        return a - Math.log(-Math.expm1(a));
      });
      const pairs = odds.slice(0, P).map((w, i) => w - (odds[i + P] as number));
      const tokens = wholeCounts.reduce((a, b) => a + b, 0);
      const nll = -whole.reduce((a, b) => a + b, 0) / Math.max(1, tokens);
      return nll - 0.2 * mean(pairs.map((x) => Math.log(sigmoid(x))));
    },
  ],
};

/** Whole chosen rows: the prompt and the answer of rows with an answer. */
function wholeOf(model: nn.models.CausalLM, { ids }: Batch, rows: readonly Row[]) {
  const chosen = rows.slice(0, rows.length / 2);
  const localValues = values(ids).slice(0, chosen.length * T);
  const targets = localValues.map((_, i) => {
    const [left, prompt, answer] = chosen[Math.floor(i / T)] as Row;
    // The loss knows the end of a prompt by its answer; padding at the left belongs to the prompt.
    return answer > 0 && i % T < left + prompt + answer - 1
      ? (localValues[i + 1] as number)
      : IGNORED;
  });
  const half = Tensor.from(Int32Array.from(localValues), { shape: [chosen.length, T] });
  const counts = chosen.map(
    (_, row) => targets.slice(row * T, (row + 1) * T).filter((target) => target !== IGNORED).length,
  );
  return { whole: sumsOf(model, half, targets), wholeCounts: counts };
}

test.each(
  Object.keys(PAIRS).flatMap((name) => Object.keys(BATCHES).map((kind) => [name, kind] as const)),
)('%s with %s', (name, kind) => {
  const [method, formula] = required(PAIRS[name]);
  const rows = required(BATCHES[kind]);
  const model = modelOf(3);
  const batch = batchOf(rows);
  const forward: Forward = (...inputs) => model.call(...(inputs as [Tensor]));
  const targets = values(batch.targets);
  const expected = formula({
    own: sumsOf(model, batch.ids, targets),
    reference: sumsOf(modelOf(4), batch.ids, targets),
    counts: values(batch.answered),
    ...wholeOf(model, batch, rows),
  });
  const objective = method.objectiveOf<Batch>(model);
  const micro = objective.countBatch(batch);
  expect(micro.counted).toBe(rows.length / 2);
  const loss = objective.computeMeanLoss(forward, micro);
  expect(Math.abs(loss.item() - expected)).toBeLessThan(2e-6 * Math.max(1, Math.abs(expected)));
  loss.backward();
  for (const { grad } of model.parameters()) {
    if (grad) expect((grad as Tensor).abs().max().item()).toBeLessThan(1e3);
  }
});

test('kto with mismatched rows', () => {
  const model = modelOf(3);
  const rows = [
    [0, 3, 3, 2],
    [0, 2, 4, 2],
    [0, 3, 0, 5],
  ] as const;
  const [own, other] = [batchOf(rows), batchOf(rows)];
  const desirable = Tensor.from([1, 0, 1]);
  const { ids, targets } = other;
  const batch = { ...own, desirable, mismatched: { ids, targets } };
  const method = kto({ beta: 0.2, desirableWeight: 1.5, reference: modelOf(4) });
  const forward: Forward = (...inputs) => model.call(...(inputs as [Tensor]));
  const objective = method.objectiveOf<typeof batch>(model);
  const x = ({ ids: tokens, targets: wanted }: { ids: Tensor; targets: Tensor }): number[] => {
    const [a, b] = [model, modelOf(4)].map((model) => sumsOf(model, tokens, values(wanted)));
    return (a as number[]).map((value, i) => value - (b?.[i] as number));
  };
  const z = Math.max(0, mean(x(other)));
  const expected = x(own).map((value, i) =>
    i === 1 ? 1 - sigmoid(0.2 * (z - value)) : 1.5 * (1 - sigmoid(0.2 * (value - z))),
  );
  const loss = objective.computeMeanLoss(forward, objective.countBatch(batch)).item();
  expect(Math.abs(loss - mean(expected))).toBeLessThan(2e-6);
});

test('several micro-batches have the loss and the gradient of one', () => {
  const rows = Object.values(BATCHES).flatMap(
    ([a, b, c, d]) =>
      [
        [a, c],
        [b, d],
      ] as const,
  );
  const pairs = rows.map(([w, l]) => batchOf([w as Row, l as Row]));
  const joinRows = (name: 'ids' | 'targets' | 'answered'): Tensor => {
    const all = [0, 1].flatMap((side) =>
      pairs.flatMap((pair) => values(pair[name].narrow(0, side, 1))),
    );
    const typed = name === 'answered' ? Float32Array.from(all) : Int32Array.from(all);
    return Tensor.from(typed, name === 'answered' ? {} : { shape: [2 * pairs.length, T] });
  };
  for (const name of ['dpo', 'orpo'] as const) {
    const [method] = required(PAIRS[name]);
    const run = (batches: readonly Batch[]) => {
      const model = modelOf(3);
      const forward: Forward = (...inputs) => model.call(...(inputs as [Tensor]));
      const objective = method.objectiveOf<Batch>(model);
      const micros: MicroBatch<Batch>[] = batches.map((batch) =>
        objective.countBatch({ ...batch }),
      );
      const sum = (kind: 'counted' | 'further'): number =>
        micros.reduce((all, micro) => all + (micro[kind] ?? 0), 0);
      const losses = micros.map((micro) => {
        const loss = objective.computeSharedLoss(
          forward,
          micro,
          sum('counted'),
          null,
          sum('further'),
        );
        loss.backward();
        return loss.item();
      });
      return { loss: losses.reduce((a, b) => a + b, 0), weight: model.lm_head };
    };
    const whole = {
      ids: joinRows('ids'),
      targets: joinRows('targets'),
      answered: joinRows('answered'),
    };
    const [one, several] = [run([whole]), run(pairs)];
    expect(several.loss).toBeCloseTo(one.loss, 5);
    const [a, b] = [one, several].map(({ weight }) => (weight as { weight: Tensor }).weight.grad);
    expect(
      (a as Tensor)
        .sub(b as Tensor)
        .abs()
        .max()
        .item(),
    ).toBeLessThan(1e-5);
  }
  expect(pairs[0]?.ids.device).toBe(cpu());
});
