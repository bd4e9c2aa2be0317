// Tests several adapters of one model: names, switches, sums, combinations and folders.
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initialize, nn, noGrad, peft, scope, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { refusal, thrownBy } from '../support/refusal.js';
import { logits, stir, tinyGpt2, tinyLlama } from './models.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-adapter-sets-'));
afterAll(() => rmSync(dir, { recursive: true }));

const all = { r: 2, loraAlpha: 6, targetModules: 'all-linear' } as const;
const some = { r: 3, loraAlpha: 3, targetModules: ['q_proj', 'down_proj'] } as const;
const outputs = (model: nn.models.CausalLM) => logits(model, cpu());

/** Two adapters with values; "one" is active. */
function pair(second: peft.LoraOptions = some): nn.models.Llama {
  const model = tinyLlama();
  peft.addAdapter(model, 'one', all);
  stir(model);
  peft.addAdapter(model, 'two', second);
  peft.setAdapter(model, 'two');
  stir(model);
  // Values other than those of "one".
  noGrad(() => {
    for (const { factors } of peft.lorasOf(model).values()) {
      for (const factor of factors) factor.mul_(-0.7);
    }
  });
  peft.setAdapter(model, 'one');
  return model;
}

const near = (values: readonly number[], expected: readonly number[], digits = 5): void => {
  expect(values).toHaveLength(expected.length);
  for (const [i, value] of values.entries()) expect(value).toBeCloseTo(expected[i]!, digits);
};

/** base + the difference of each adapter, which add up in the weights. */
function mergeSets(weights: Record<string, number>): number[] {
  const model = pair();
  const updates = new Map<nn.Parameter, Float32Array[]>();
  for (const [name, weight] of Object.entries(weights)) {
    peft.setAdapter(model, name);
    for (const layer of peft.lorasOf(model).values()) {
      const update = noGrad(() => scope(() => layer.update().mul(weight).toArray()));
      const list = updates.get(layer.weight) ?? [];
      updates.set(layer.weight, [...list, Float32Array.from(update)]);
    }
  }
  peft.unload(model);
  for (const [parameter, list] of updates) {
    noGrad(() =>
      scope(() => {
        for (const values of list) parameter.add_(Tensor.from(values, { shape: parameter.shape }));
      }),
    );
  }
  return outputs(model);
}

test('one adapter is active at a time, and the others keep their values', () => {
  const model = pair();
  expect(peft.adapterNames(model)).toEqual(['one', 'two']);
  expect(peft.activeAdapters(model)).toEqual(['one']);
  const values = outputs(model);
  near(values, mergeSets({ one: 1 }));
  peft.setAdapter(model, 'two');
  const names = [...model.namedParameters()].map(([name]) => name);
  expect(names.filter((name) => name.includes('lora_A'))).toHaveLength(4);
  near(outputs(model), mergeSets({ two: 1 }));
  const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  expect(trained).toHaveLength(8);
  peft.setAdapter(model, 'one');
  expect(outputs(model)).toEqual(values);
  const base = peft.withoutAdapters(model, () => outputs(model));
  expect(base).toEqual(outputs(tinyLlama()));
});

test('updates of several active adapters are added, also merged', () => {
  const model = pair();
  peft.setAdapter(model, ['one', 'two']);
  const both = outputs(model);
  near(both, mergeSets({ one: 1, two: 1 }));
  const names = [...model.namedParameters()].map(([name]) => name);
  expect(names).toContain('model.layers.0.self_attn.q_proj.lora_A.two.weight');
  peft.merge(model);
  near(outputs(model), both);
  expect(thrownBy(() => peft.setAdapter(model, 'one'))).toMatchObject({ code: 'DS_ARGUMENT' });
  peft.unmerge(model);
  near(outputs(model), both);
  peft.setAdapter(model, 'two');
  near(outputs(model), mergeSets({ two: 1 }));
});

test('an engine trains the active adapter only', async () => {
  const model = pair();
  peft.setAdapter(model, 'two');
  const before = [...peft.lorasOf(model).values()].map(({ factors }) => factors[1]!.toArray());
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'AdamW', params: { lr: 0.1 } },
    },
  });
  const tokens = Tensor.from(Int32Array.from([1, 2, 3, 4]), { shape: [1, 4] });
  engine.backward(engine.forward(tokens, tokens));
  engine.step();
  const error = thrownBy(() => peft.setAdapter(model, 'one'));
  expect(error.message).toMatch(/a model without an engine/);
  engine.destroy();
  const after = [...peft.lorasOf(model).values()].map(({ factors }) => factors[1]!.toArray());
  expect(after).not.toEqual(before);
  peft.setAdapter(model, 'one');
  near(outputs(model), mergeSets({ one: 1 }));
  tokens.dispose();
});

test('"cat" gives the weighted sum of updates', () => {
  const model = pair();
  peft.addWeightedAdapter(model, { one: 0.6, two: -0.5 }, 'both', { combinationType: 'cat' });
  expect(peft.activeAdapters(model)).toEqual(['one']);
  peft.setAdapter(model, 'both');
  near(outputs(model), mergeSets({ one: 0.6, two: -0.5 }));
  expect(new Set(Array.from(peft.lorasOf(model).values(), ({ sizes }) => sizes.r))).toEqual(
    new Set([5]),
  );
});

test('"linear" weighs A and B by the roots of the factors, as PEFT does', () => {
  const options = { r: 2, loraAlpha: 3, targetModules: ['q_proj'] };
  const model = pair(options);
  const factors = (name: string) => {
    peft.setAdapter(model, name);
    const layer = [...peft.lorasOf(model)].find(([path]) => path.endsWith('0.self_attn.q_proj'));
    return layer![1].factors.map((factor) => factor.toArray());
  };
  const [one, two] = [factors('one'), factors('two')];
  peft.addWeightedAdapter(model, { one: 0.5, two: -2 }, 'mix');
  const mix = factors('mix');
  // Weight times scaling: 0.5 x 3, and -2 x 1.5.
  const roots = [Math.sqrt(1.5), Math.sqrt(3)] as const;
  for (const [i, sign] of [-1, 1].entries()) {
    const expected = one[i]!.map((x, at) => roots[0] * x + sign * roots[1] * two[i]![at]!);
    near(mix[i]!, expected);
  }
});

test('after an adapter is deleted, another one becomes active', () => {
  const model = pair();
  peft.deleteAdapter(model, 'one');
  expect([peft.adapterNames(model), peft.activeAdapters(model)]).toEqual([['two'], ['two']]);
  near(outputs(model), mergeSets({ two: 1 }));
  const error = thrownBy(() => peft.deleteAdapter(model, 'two'));
  expect(error.message).toMatch(/another adapter, got the only adapter.*peft\.unload/);
  expect(outputs(peft.unload(model))).toEqual(outputs(tinyLlama()));
  expect(peft.adapterNames(model)).toEqual([]);
});

test('folders of all adapters, and adapters of folders', async () => {
  const model = pair();
  peft.setAdapter(model, ['one', 'two']);
  const both = outputs(model);
  const paths = await peft.saveAdapters(model, join(dir, 'saved'));
  expect(paths).toHaveLength(4);
  expect(peft.activeAdapters(model)).toEqual(['one', 'two']);
  const other = tinyLlama();
  for (const name of ['one', 'two']) {
    await peft.loadAdapter(other, join(dir, 'saved', name), { adapterName: name });
  }
  expect([peft.adapterNames(other), peft.activeAdapters(other)]).toEqual([['one', 'two'], ['one']]);
  peft.setAdapter(other, ['one', 'two']);
  near(outputs(other), both);
  const error = await refusal(() => peft.saveAdapter(other, join(dir, 'x')));
  expect(error.message).toMatch(/one active adapter, got several.*saveAdapters/);
  await peft.saveAdapters(other, join(dir, 'part'), { selectedAdapters: ['two'] });
  expect(existsSync(join(dir, 'part', 'two', 'adapter_config.json'))).toBe(true);
  expect(existsSync(join(dir, 'part', 'one'))).toBe(false);
});

test('addLora() names the adapter "default", which is saved into the folder itself', async () => {
  const model = peft.addLora(tinyGpt2(), { r: 2 });
  stir(model);
  expect(peft.adapterNames(model)).toEqual(['default']);
  peft.addAdapter(model, 'more', { r: 4, targetModules: ['c_fc'] });
  await peft.saveAdapters(model, join(dir, 'gpt2'));
  expect(existsSync(join(dir, 'gpt2', 'adapter_config.json'))).toBe(true);
  expect(existsSync(join(dir, 'gpt2', 'more', 'adapter_config.json'))).toBe(true);
});

test('a folder of another model leaves the adapters as they are', async () => {
  const other = peft.addLora(tinyLlama(), { r: 2, targetModules: ['q_proj'], rankPattern: {} });
  await peft.saveAdapter(other, join(dir, 'odd'));
  const model = new nn.models.Llama({
    vocabSize: 64,
    maxSeq: 16,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    channels: 64,
    hidden: 48,
  });
  peft.addAdapter(model, 'one', all);
  const load = () => peft.loadAdapter(model, join(dir, 'odd'), { adapterName: 'odd' });
  expect(await refusal(load)).toMatchObject({ code: 'DS_CHECKPOINT' });
  expect([peft.adapterNames(model), peft.activeAdapters(model)]).toEqual([['one'], ['one']]);
});

test.each<[string, (model: nn.models.Llama) => unknown, RegExp]>([
  ['a name in use', (m) => peft.addAdapter(m, 'two', all), /a name that no adapter has/],
  ['an odd name', (m) => peft.addAdapter(m, 'a/b', all), /1 to 64 letters/],
  ['biases', (m) => peft.addAdapter(m, 'x', { ...all, bias: 'all' }), /bias: expected "none"/],
  [
    'whole modules',
    (m) => peft.addAdapter(m, 'x', { ...all, modulesToSave: ['norm'] }),
    /modulesToSave: expected no modules/,
  ],
  ['an unknown name', (m) => peft.setAdapter(m, 'x'), /an adapter \("one", "two"\), got "x"/],
  ['no name', (m) => peft.setAdapter(m, []), /at least one name/],
  ['no weights', (m) => peft.addWeightedAdapter(m, {}, 'x'), /numbers by the names of adapters/],
  [
    'different ranks',
    (m) => peft.addWeightedAdapter(m, { one: 1, two: 1 }, 'x'),
    /adapters of one rank, got "one" of rank 2, "two" of rank 3.*"cat"/,
  ],
])('%s is refused, and the adapters stay', (_, call, message) => {
  const model = pair();
  const before = outputs(model);
  expect(thrownBy(() => call(model)).message).toMatch(message);
  expect(peft.adapterNames(model)).toEqual(['one', 'two']);
  expect(outputs(model)).toEqual(before);
});
