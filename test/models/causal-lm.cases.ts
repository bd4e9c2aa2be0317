// Tests that every CausalLM has the same behavior and rejects unsupported calls.
import assert from 'node:assert/strict';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { LossReport, noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { CausalLM, GPT2, Llama } = nn.models;

const sizes = { vocabSize: 37, maxSeq: 16, layers: 2, heads: 2, channels: 8 };

const models: Record<string, () => nn.models.CausalLM> = {
  GPT2: () => new GPT2(sizes),
  Llama: () => new Llama({ ...sizes, hidden: 12, kvHeads: 1 }),
};

const rows = (values: readonly number[][], device: Device): Tensor =>
  Tensor.from(Int32Array.from(values.flat()), {
    shape: [values.length, values[0]?.length ?? 0],
    device,
  });

function answers(make: () => nn.models.CausalLM, device: Device): void {
  seed(5);
  const model = make().to(device);
  assert.ok(model instanceof CausalLM);
  assert.deepEqual([model.vocabSize, model.hiddenSize, model.maxSeq], [37, 8, 16]);
  const text = [
    [3, 1, 30, 7],
    [9, 2, 36, 0],
  ];
  const tokens = rows(text, device);
  const fullTensor = noGrad(() => model.call(tokens));
  assert.deepEqual(fullTensor.shape, [2, 4, 37]);
  const caches = model.caches(2, 4);
  noGrad(() => model.next(tokens.narrow(1, 0, 3), caches));
  const last = noGrad(() => model.next(tokens.narrow(1, 3, 1), caches));
  const expected = fullTensor.narrow(1, 3, 1).contiguous().toArray();
  last
    .contiguous()
    .toArray()
    .forEach((value, i) => {
      assert.ok(Math.abs(value - (expected[i] as number)) < 1e-5, `${value}, not ${expected[i]}`);
    });
  attendsOnlyThroughCaches(model, tokens);
  assert.equal(model.call(tokens, tokens).ndim, 0);
  const long = rows([Array(17).fill(0)], device);
  assert.throws(() => model.call(long), {
    code: 'DS_SHAPE',
    message: /T <= 16.*create the dataset with at most that length/s,
  });
  const unknown = { document: tokens } as object;
  assert.throws(() => model.call(tokens, null, unknown), {
    code: 'DS_ARGUMENT',
    message: /documents/,
  });
}

/** A cache only needs attend(): here it returns zeros of the right shape for each layer. */
function attendsOnlyThroughCaches(model: nn.models.CausalLM, tokens: Tensor): void {
  const asked: string[] = [];
  const deaf = (layer: number): nn.LayerCache => ({
    attend(q, k, v, { window }) {
      asked.push(`${layer}: ${q.shape} ${k.shape} ${v.shape} ${window}`);
      return q.mul(0);
    },
  });
  const hidden = model as unknown as {
    hiddenOf(tokens: Tensor, places: nn.models.Places): Tensor;
  };
  const places = { documents: null, positions: null, reach: null, start: 0 };
  noGrad(() =>
    scope(() => void hidden.hiddenOf(tokens, { ...places, caches: [deaf(0), deaf(1)] })),
  );
  const keys = `2,${model.config.kvHeads ?? 2},4,4`;
  assert.deepEqual(
    asked,
    [0, 1].map((layer) => `${layer}: 2,2,4,4 ${keys} ${keys} null`),
  );
}

/** Options of the loss reach it, with and without kept logits. */
function takesLossOptions(make: () => nn.models.CausalLM, device: Device): void {
  seed(6);
  const model = make().to(device);
  const tokens = rows([[3, 1, 30, 7, 9]], device);
  const targets = rows([[1, 30, -100, 9, 2]], device);
  const report = new LossReport(device);
  const of = (loss: nn.models.CausalLossOptions): number =>
    noGrad(() => model.call(tokens, targets, { loss }).item());
  const mean = of({});
  const near = (value: number, expected: number): void =>
    assert.ok(Math.abs(value - expected) < 1e-5 * expected, `${value}, not ${expected}`);
  near(of({ divisor: 8, report }), mean / 2);
  near(of({ divisor: Tensor.from([2], { device }), report, skipIgnored: true }), mean * 2);
  const choices = noGrad(() => model.call(tokens))
    .argmax(-1)
    .toArray();
  const correct = [1, 30, -100, 9, 2].filter((target, i) => target === choices[i]).length;
  assert.deepEqual(report.read(), { counted: 8, correct: 2 * correct, accuracy: correct / 4 });
  report.dispose();
  assert.ok(of({ labelSmoothing: 0.5 }) !== mean);
  assert.throws(() => of({ labelSmoothing: 2 }), {
    code: 'DS_ARGUMENT',
    message: /labelSmoothing/,
  });
  assert.throws(() => of({ accuracy: true } as object), { code: 'DS_ARGUMENT', message: /report/ });
}

const each = (
  name: string,
  body: (make: () => nn.models.CausalLM, device: Device) => void,
): Case[] =>
  Object.entries(models).map(([model, make]) => ({
    name: `CausalLM: ${model} ${name}`,
    run: (device) => scope(() => body(make, device)),
  }));

export const cases: Case[] = [
  ...each('gives logits, steps and losses', answers),
  ...each('makes its loss as it is told', takesLossOptions),
];
