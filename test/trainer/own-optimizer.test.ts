// Tests which weights the optimizer of a Trainer decays: the same as in transformers' Trainer.
import { nn, peft } from '../../lib/index.js';
import { createOptimizer } from '../../lib/trainer/own-optimizer.js';

/** Names of parameters by their weight decay. */
function decays(model: nn.Module): Record<number, string[]> {
  const settings = { lr: 1, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.1 } as const;
  const own = { name: 'AdamW', fp32OptimizerStates: true } as const;
  const { groups } = createOptimizer(model, { ...settings, betas: [0.9, 0.999] }, own);
  const names = new Map([...model.namedParameters()].map(([name, one]) => [one, name] as const));
  return Object.fromEntries(
    groups.map(({ params, weightDecay }) => [
      weightDecay as number,
      Array.from(params, (tensor) => names.get(tensor as nn.Parameter) as string).sort(),
    ]),
  );
}

const gpt2 = (): nn.Module =>
  new nn.models.GPT2({ vocabSize: 8, maxSeq: 4, layers: 1, heads: 2, channels: 8 });

test('AdamW8bit by its name has the same groups', () => {
  const settings = { lr: 1, betas: [0.9, 0.999] as const, eps: 1e-8, weightDecay: 0.1 };
  const of = (name: 'AdamW' | 'AdamW8bit') =>
    createOptimizer(gpt2(), settings, { name, fp32OptimizerStates: true });
  const sizes = (name: 'AdamW' | 'AdamW8bit') =>
    of(name).groups.map(({ params, weightDecay }) => [Array.from(params).length, weightDecay]);
  expect(of('AdamW8bit').constructor.name).toBe('AdamW8bit');
  expect(sizes('AdamW8bit')).toEqual(sizes('AdamW'));
});

test('matrices decay, biases and norms do not', () => {
  const { 0.1: decayed = [], 0: spared = [] } = decays(gpt2());
  expect(decayed.filter((name) => /bias|ln_/.test(name))).toEqual([]);
  expect(spared.filter((name) => !/bias|ln_/.test(name))).toEqual([]);
  expect([decayed.length > 0, spared.length > 0]).toEqual([true, true]);
});

test("DoRA's magnitudes decay as its matrices do, and a bias beside them does not", () => {
  const model = gpt2();
  peft.addLora(model, { r: 2, useDora: true, bias: 'lora_only' });
  const { 0.1: decayed = [], 0: spared = [] } = decays(model);
  const kinds = new Set(decayed.map((name) => name.split('.').find((part) => /lora/.test(part))));
  expect([...kinds].sort()).toEqual(['lora_A', 'lora_B', 'lora_magnitude_vector']);
  expect(spared.filter((name) => !name.endsWith('bias'))).toEqual([]);
  expect(spared.length).toBeGreaterThan(0);
});
