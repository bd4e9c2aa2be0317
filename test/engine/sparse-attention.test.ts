// Tests the section sparse_attention of a configuration: the affected models, and its errors.
import { checkConfig } from '../../lib/config/index.js';
import { type DsConfig, initInference, initialize, nn, Tensor } from '../../lib/index.js';
import { GPT2 } from '../../lib/models/index.js';
import type { SparsePattern } from '../../lib/nn/index.js';
import { refusal } from '../support/refusal.js';

const config = (sparse_attention: object): DsConfig => ({
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  sparse_attention,
});

const section = { mode: 'fixed', attention: 'unidirectional', num_local_blocks: 2 };
const sizes = { vocabSize: 31, maxSeq: 64, layers: 2, heads: 2, channels: 16 };
const gpt2 = () => new GPT2(sizes);

const patternsOf = (model: nn.Module): (SparsePattern | null)[] =>
  [...model.namedModules()].flatMap(([, one]) =>
    'sparsity' in one ? [one.sparsity as SparsePattern | null] : [],
  );

test('all attention of a model takes the pattern, for the longest text, and trains', async () => {
  const model = gpt2();
  const { engine } = await initialize({ model, config: config(section) });
  const [first, ...others] = patternsOf(model);
  expect(others).toEqual([first]);
  expect(first?.options).toMatchObject({ mode: 'fixed', numLocalBlocks: 2, maxTokens: 64 });
  const ids = Int32Array.from({ length: 80 }, (_, i) => (i * i) % 31);
  const tokens = Tensor.from(ids, { shape: [2, 40] });
  const losses = Array.from({ length: 6 }, () => {
    const loss = engine.forward(tokens, tokens) as Tensor;
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  expect(losses.at(-1)).toBeLessThan(losses[0] as number);
  engine.destroy();
});

test('a model without attention is refused, and a failed setup leaves the model unchanged', async () => {
  const linear = new nn.Linear(4, 4);
  const error = await refusal(() => initialize({ model: linear, config: config(section) }));
  expect(error).toMatchObject({ code: 'DS_CONFIG', op: 'sparse_attention' });
  expect(error.message).toContain('nn.MultiheadAttention');

  const model = gpt2();
  const before = nn.sparsify(model, { mode: 'bigbird' });
  const broken = { ...config(section), tensorboard: { enabled: true, output_path: '/dev/null/x' } };
  expect(await refusal(() => initialize({ model, config: broken }))).toMatchObject({
    code: 'DS_IO',
  });
  expect(patternsOf(model)[0]?.options.mode).toBe('bigbird');
  before();
  expect(patternsOf(model)).toEqual([null, null]);
});

test('a pattern of more blocks than the longest text has is refused before the first step', async () => {
  const model = gpt2();
  const wide = { mode: 'bslongformer', num_sliding_window_blocks: 5 };
  expect(await refusal(() => initialize({ model, config: config(wide) }))).toMatchObject({
    code: 'DS_CONFIG',
    op: 'sparse_attention',
    expected: 'sequences of at least 5 blocks',
    got: '4 blocks of 16',
    hint: expect.stringContaining('Reduce block'),
  });
  expect(patternsOf(model)).toEqual([null, null]);
});

test('a field of that name with another value is not replaced', async () => {
  class Pruned extends nn.Linear {
    sparsity = 0.5;
  }
  class Own extends nn.Module {
    readonly attn = new nn.MultiheadAttention(8, 2);
    readonly head = new Pruned(8, 2);
    override forward(x: Tensor): Tensor {
      return this.head.call(x);
    }
  }
  const own = new Own();
  const undo = nn.sparsify(own, { mode: 'fixed' });
  expect(own.attn.sparsity?.options.mode).toBe('fixed');
  expect(own.head.sparsity).toBe(0.5);
  undo();
  expect(() => nn.sparsify(new Pruned(8, 2), {})).toThrow('without such layers');
});

test('keys that the mode does not read are noted', () => {
  const { notices, errors } = checkConfig(
    config({ mode: 'bigbird', num_local_blocks: 8, num_random_blocks: 1 }),
    { worldSize: 1 },
  );
  expect(errors).toEqual([]);
  expect(notices).toEqual([
    expect.objectContaining({
      path: 'sparse_attention',
      text: 'has the mode "bigbird", which does not read num_local_blocks.',
    }),
  ]);
});

test('inference uses dense attention, with a notice', async () => {
  const model = gpt2();
  nn.sparsify(model, section as nn.SparsityOptions);
  expect(await refusal(() => initInference(model))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'initInference',
    got: 'the pattern "fixed"',
  });
});
