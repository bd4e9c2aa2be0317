// Tests mixtures of experts: files with one matrix per expert, and errors.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { consolidate, type DsError, initialize, nn, seed, Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { noGrad } from '../../lib/tensor/index.js';
import { thrownBy } from '../support/refusal.js';

const folder = join(packageRoot(), 'test', 'golden', 'transformers', 'models');
const { fromPretrained, Mixtral, Qwen2Moe } = nn.models;
const sizes = {
  vocabSize: 31,
  maxSeq: 16,
  layers: 2,
  heads: 4,
  channels: 16,
  hidden: 20,
  moe: { experts: 5, perToken: 2 },
};

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-mixtures-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

test('a sparse mixer weights an expert among those with almost its logit', () => {
  const [TOKENS, EXPERTS, JITTER] = [40, 5, 0.2871];
  const router = new nn.SparseMixerRouter(EXPERTS, EXPERTS, JITTER, {
    weightInit: (out) => {
      const unit = Float32Array.from({ length: EXPERTS ** 2 }, (_, i) => (i % 6 === 0 ? 1 : 0));
      out.buffer.write(0, new Uint8Array(unit.buffer));
    },
  });
  const logits = Float32Array.from(
    { length: TOKENS * EXPERTS },
    (_, i) => ((i * 37) % 101) / 50 - 1,
  );
  const { ids, weights } = noGrad(() =>
    router.call(Tensor.from(logits, { shape: [TOKENS, EXPERTS] })),
  );
  // The formula of the paper's code.
  const choose = (row: number[], taken: number): [number, number] => {
    const candidates = row.map((value, i) => (i === taken ? Number.NEGATIVE_INFINITY : value));
    const best = Math.max(...candidates);
    const isNear = (value: number): boolean =>
      (best - value) / Math.max(Math.abs(value), best) <= 2 * JITTER;
    const shares = candidates.map((value) => (isNear(value) ? Math.exp(value) : 0));
    const at = candidates.indexOf(best);
    return [at, Math.exp(best) / shares.reduce((a, b) => a + b)];
  };
  const expected = Array.from({ length: TOKENS }, (_, t) => {
    const row = [...logits.subarray(t * EXPERTS, (t + 1) * EXPERTS)];
    const first = choose(row, -1);
    return [first, choose(row, first[0])];
  });
  expect(ids.toArray()).toEqual(expected.flatMap((pair) => pair.map(([id]) => id)));
  weights.toArray().forEach((weight, i) => {
    expect(weight).toBeCloseTo(expected.flat()[i]?.[1] as number, 6);
  });
  expect(weights.toArray().filter((weight) => weight < 0.99).length).toBeGreaterThan(TOKENS / 4);
  expect(() => new nn.SparseMixerRouter(4, 4, 0.1, { k: 1 })).toThrow(/SparseMixerRouter k/);
});

type Contents = Record<string, { shape: readonly number[]; values: number[] }>;

/** Names, shapes and values of the tensors in a folder. */
async function contents(path: string): Promise<Contents> {
  const files = await WeightFiles.open(path);
  const found: Contents = {};
  for (const name of [...files.tensors.keys()].sort()) {
    const values = await files.read(name);
    found[name] = { shape: values.shape, values: values.toArray() };
    values.release();
  }
  await files.close();
  return found;
}

describe.each(['mixtral', 'qwen2-moe'])('%s', (family) => {
  const from = join(folder, family);

  test('is saved and consolidated in the layout of transformers', async () => {
    const before = await contents(from);
    const model = await fromPretrained(from);
    await model.save(join(dir, 'saved'), { maxShardBytes: 40_000 });
    expect(await contents(join(dir, 'saved'))).toEqual(before);
    const { engine } = await initialize({
      model: await fromPretrained(from),
      config: { train_batch_size: 1, optimizer: { type: 'SGD', params: { lr: 0 } } },
      device: 'cpu',
    });
    await engine.saveCheckpoint(join(dir, 'checkpoint'));
    engine.destroy();
    await consolidate(join(dir, 'checkpoint'), join(dir, 'hf'));
    expect(await contents(join(dir, 'hf'))).toEqual(before);
    const localModel = await fromPretrained(join(dir, 'checkpoint'));
    const tokens = Tensor.from(Int32Array.of(3, 9, 27, 11, 30), { shape: [1, 5] });
    const [a, b] = [model, localModel].map((model) => noGrad(() => model.call(tokens).toArray()));
    expect(a).toEqual(b);
    await consolidate(join(dir, 'checkpoint'), join(dir, 'native'), { format: 'native' });
    expect(Object.keys(await contents(join(dir, 'native')))).toContain(
      'model.layers.0.mlp.experts.gate_up_proj',
    );
  });

  test('loads onto a model of the same sizes, whole or in pieces', async () => {
    const model = await fromPretrained(from);
    seed(3);
    const loaded = nn.models.fromConfig(from);
    await nn.loadWeights(loaded, from);
    const pairs = Object.entries(loaded.stateDict());
    for (const [name, tensor] of pairs) {
      expect([name, tensor.toArray()]).toEqual([name, model.stateDict()[name]?.toArray()]);
    }
    await nn.saveWeights(model, join(dir, 'native'), { format: 'native' });
    await expect(nn.loadWeights(loaded, join(dir, 'native'))).resolves.toEqual({
      missing: [],
      unexpected: [],
    });
  });

  test('is read in ranges that begin and end anywhere', async () => {
    const model = await fromPretrained(from);
    const parameter = model.stateDict()['model.layers.0.mlp.experts.gate_up_proj'] as nn.Parameter;
    const { stored, numel } = parameter;
    const part = (first: number, count: number): number[] => {
      const out = Tensor.empty([count], 'f32', cpu());
      stored?.read(out, first);
      return out.toArray();
    };
    const parts = [part(0, 7), part(7, 501), part(508, numel - 508)];
    const box = { offset: [1, 3, 2], shape: [3, 9, 5] };
    const out = Tensor.empty([3 * 9 * 5 - 4], 'f32', cpu());
    stored?.read(out, 4, box);
    const cut = out.toArray();
    const fullValues = parameter.toArray();
    expect(parts.flat()).toEqual(fullValues);
    const [, height, width] = parameter.shape as [number, number, number];
    const expected = Array.from({ length: 3 * 9 * 5 }, (_, i) => {
      const [e, r, c] = [Math.floor(i / 45), Math.floor((i % 45) / 5), i % 5];
      return fullValues[((e + 1) * height + r + 3) * width + c + 2];
    });
    expect(cut).toEqual(expected.slice(4));
  });
});

test('a missing expert is named', async () => {
  const model = new Mixtral({ ...sizes, moe: { experts: 6, perToken: 2 } });
  await model.save(join(dir, 'six'));
  const error = await nn
    .loadWeights(new Mixtral({ ...sizes, moe: { experts: 7, perToken: 2 } }), join(dir, 'six'))
    .catch((thrown: DsError) => thrown);
  expect(String(error)).toMatch(/block_sparse_moe\.experts\.6\.w1\.weight/);
});

test('the router loss is k for equal loads, and is part of the loss', () => {
  seed(1);
  const tokens = Tensor.from(
    Int32Array.from({ length: 24 }, (_, i) => (i * 7) % 31),
    {
      shape: [2, 12],
    },
  );
  const lossOf = (routerAuxLossCoef: number, options: object = {}): number => {
    seed(2);
    const model = new Mixtral({ ...sizes, routerAuxLossCoef, ...options });
    // Logits of 0 everywhere: every probability is 1 / 5, and the choices are always the first two.
    const routers = model.model.layers.map(({ mlp }) => (mlp as nn.SparseMixture).gate);
    noGrad(() => routers.forEach(({ weight }) => void weight.fill_(0)));
    const loss = model.call(tokens, tokens);
    loss.backward();
    return loss.item();
  };
  const plain = lossOf(0);
  expect(lossOf(0.5) - plain).toBeCloseTo(0.5 * 2, 5);
  expect(lossOf(0.5, { activationCheckpointing: true }) - plain).toBeCloseTo(0.5 * 2, 5);
});

test('of a batch that is padding, or has no target, the loss of routers is 0 and no NaN', () => {
  const model = new Mixtral({ ...sizes, routerAuxLossCoef: 0.5 });
  const all = (value: number): Tensor =>
    Tensor.from(new Int32Array(24).fill(value), { shape: [2, 12] });
  const [tokens, targets, padding] = [all(3), all(-100), all(-1)];
  const none = Tensor.from([0]);
  for (const inputs of [
    { documents: padding },
    { documents: padding, loss: { divisor: 40 } },
    { loss: { divisor: none } },
  ]) {
    const loss = model.call(tokens, targets, inputs);
    loss.backward();
    expect(loss.item()).toBe(0);
  }
  for (const { grad } of model.parameters()) {
    expect((grad as Tensor).toArray().every((value) => value === 0)).toBe(true);
  }
});

test('activation checkpointing keeps the gradients of routers', () => {
  const tokens = Tensor.from(
    Int32Array.from({ length: 24 }, (_, i) => (i * 7) % 31),
    {
      shape: [2, 12],
    },
  );
  const gradients = (activationCheckpointing: boolean): number[][] => {
    seed(2);
    const model = new Mixtral({ ...sizes, routerAuxLossCoef: 0.5, activationCheckpointing });
    const documents = Tensor.from(
      Int32Array.from({ length: 24 }, (_, i) => (i % 12 > 8 ? -1 : 0)),
      { shape: [2, 12] },
    );
    model.call(tokens, tokens, { documents, loss: { divisor: 40 } }).backward();
    return model.parameters().map(({ grad }) => (grad as Tensor).toArray());
  };
  const [kept, again] = [gradients(false), gradients(true)];
  kept.forEach((values, i) => {
    for (const [j, value] of values.entries()) expect(again[i]?.[j]).toBeCloseTo(value, 6);
  });
});

describe('refusals', () => {
  test.each<[string, () => unknown, RegExp]>([
    [
      'no experts',
      () => new Mixtral({ ...sizes, moe: undefined } as never),
      /moe: expected .* experts, perToken/,
    ],
    [
      'more per token than there are',
      () => new Mixtral({ ...sizes, moe: { experts: 2, perToken: 3 } }),
      /perToken.*at most 2/s,
    ],
    [
      'a shared expert that the family has not got',
      () => new Mixtral({ ...sizes, moe: { ...sizes.moe, sharedHidden: 4 } } as never),
      /sharedHidden.*null/s,
    ],
    [
      'a family without its shared expert',
      () => new Qwen2Moe(sizes as never),
      /sharedHidden.*the width/s,
    ],
    ['experts in a dense family', () => new nn.models.Llama(sizes as never), /moe/],
    [
      'another score',
      () => nn.models.fromConfig({ ...read('mixtral'), scoring_func: 'sigmoid' }),
      /scoring_func.*softmax.*sigmoid/s,
    ],
    [
      'noise of routers',
      () => nn.models.fromConfig({ ...read('mixtral'), router_jitter_noise: 0.1 }),
      /router_jitter_noise/,
    ],
  ])('%s', (_name, make, message) => {
    expect(String(thrownBy(make))).toMatch(message);
  });

  const read = (family: string) => require(join(folder, family, 'config.json'));
});
