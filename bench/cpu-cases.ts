// Lists the cases of `bench cpu` for this library and for PyTorch: training, generation and single
// ops.
import { initInference, initialize, seed } from '../lib/index.js';
import * as models from '../lib/models/index.js';
import { quantizeModel } from '../lib/models/quantize-model.js';
import { device } from '../lib/runtime/device.js';
import * as kernels from '../lib/runtime/kernels.generated.js';
import {
  attention,
  backward,
  embedding,
  gelu,
  inOrder,
  layerNorm,
  linear,
  matmul,
  noGrad,
  scope,
  softmax,
  Tensor,
} from '../lib/tensor/index.js';

/** One case in a form that both sides read; only our side has `bits` of weights. */
export interface Case {
  op: string;
  dtype: 'f32' | 'bf16';
  shape: number[] | Record<string, number>;
  /** Gradients of all inputs as well. */
  backward: boolean;
  bits?: 8 | 4;
}

/** The measured call, and the clean-up. */
export interface Prepared {
  call(): unknown;
  end?(): Promise<void>;
}

const cpu = device('cpu');

const gpt2 = { vocab: 50_257, batch: 8, seq: 128, layers: 4, heads: 4, channels: 128 };
const llama = { layers: 6, channels: 768, heads: 12, kvHeads: 4, hidden: 2048, vocab: 32_000 };

const both = (op: string, shape: number[]): Case[] =>
  (['f32', 'bf16'] as const).flatMap((dtype) =>
    [false, true].map((backward) => ({ op, dtype, shape, backward })),
  );

const forward = (op: string, shape: number[]): Case[] =>
  both(op, shape).filter((item) => !item.backward);

/** By the names that --only takes. Products with sizes that no vector divides are among them. */
export const groups: Readonly<Record<string, readonly Case[]>> = {
  train: [
    { op: 'train', dtype: 'f32', shape: gpt2, backward: true },
    {
      op: 'train',
      dtype: 'f32',
      backward: true,
      shape: { ...gpt2, batch: 4, seq: 256, layers: 6, heads: 6, channels: 384 },
    },
  ],
  decode: [1, 8].flatMap((batch) => {
    const shape = { ...llama, batch, prompt: 16, new: 32 };
    const one: Case = { op: 'decode', dtype: 'f32', shape, backward: false };
    return [one, { ...one, dtype: 'bf16' }, { ...one, bits: 8 }, { ...one, bits: 4 }] as Case[];
  }),
  matmul: [
    ...[
      [512, 512, 512],
      [509, 331, 257],
      [1024, 384, 1536],
    ].flatMap((mnk) => both('matmul', mnk)),
    ...[
      [1, 2048, 2048],
      [8, 2047, 2049],
      [67, 1001, 771],
    ].flatMap((mnk) => forward('linear', mnk)),
  ],
  ops: [
    ...[
      [1024, 1000],
      [4096, 128],
    ].flatMap((rows) => both('softmax', rows)),
    ...[
      [1024, 384],
      [1000, 1021],
    ].flatMap((rows) => both('layerNorm', rows)),
    ...both('gelu', [1024, 1536]),
    ...[
      [4, 6, 256, 64],
      [2, 4, 127, 32],
    ].flatMap((heads) => both('attention', heads)),
    ...both('embedding', [50_257, 384, 1024]),
    { op: 'adamw', dtype: 'f32', shape: [4_000_000], backward: false },
  ],
};

function random(shape: readonly number[], dtype: Case['dtype'], grad = false): Tensor {
  const out = Tensor.empty(shape, dtype, cpu).keep();
  kernels.randomUniform({ out, low: 0, high: 1, seed: 1, offset: 0, ...inOrder });
  return grad ? out.requireGrad() : out;
}

function indices(count: number, below: number): Tensor {
  const values = Int32Array.from({ length: count }, (_, i) => (i * 7919) % below);
  return Tensor.from(values, { device: cpu }).keep();
}

async function trainingCase({
  vocab,
  batch,
  seq,
  ...sizes
}: Record<string, number>): Promise<Prepared> {
  const shape = [batch, seq] as [number, number];
  const { layers, heads, channels } = sizes as { layers: number; heads: number; channels: number };
  const model = new models.GPT2({
    vocabSize: vocab as number,
    maxSeq: shape[1],
    layers,
    heads,
    channels,
  });
  const { engine } = await initialize({
    model,
    device: cpu,
    config: {
      train_micro_batch_size_per_gpu: shape[0],
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 1e-4, weight_decay: 0.1 } },
    },
  });
  const [tokens, targets] = [0, 1].map(() =>
    indices(shape[0] * shape[1], vocab as number)
      .reshape(shape)
      .keep(),
  ) as [Tensor, Tensor];
  const call = (): void => {
    engine.backward(engine.forward<Tensor>(tokens, targets));
    engine.step();
  };
  return { call, end: async () => engine.destroy() };
}

async function continuingCase({ dtype, shape, bits }: Case): Promise<Prepared> {
  const { batch, prompt, new: count, vocab, ...sizes } = shape as Record<string, number>;
  const length = (prompt as number) + (count as number);
  seed(1);
  const model = new models.Llama({
    ...(sizes as unknown as models.LlamaConfig),
    vocabSize: vocab as number,
    maxSeq: length,
    tied: true,
  });
  model.to(cpu, dtype);
  if (bits) quantizeModel(model, { bits, head: bits });
  const engine = await initInference(model, {
    device: 'cpu',
    max_out_tokens: length,
    max_ragged_sequence_count: batch as number,
    kv_cache: { prefix_caching: false, blocks: 64 },
  });
  const prompts = Array.from({ length: batch as number }, (_, text) =>
    Array.from({ length: prompt as number }, (_, i) => (text * 7919 + i * 31) % 1000),
  );
  const asked = { maxNewTokens: count as number, temperature: 0, ignoreEos: true };
  const call = (): Promise<unknown> =>
    Promise.all(prompts.map((prompt) => engine.generate({ prompt: prompt, ...asked })));
  return { call, end: () => engine.destroy() };
}

function adamw(n: number): Prepared {
  const [master, m, v, grad] = [0, 1, 2, 3].map(() => random([n], 'f32'));
  const control = Tensor.from([1, 1, 1, 1], { device: cpu }).keep();
  const rule = { lr: 1e-4, weightDecay: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8 };
  const steps = { correction1: 0.5, correction2: 0.5, decoupled: true };
  const args = { master, m, v, grad, weight: null, control, ...rule, ...steps };
  const end = async (): Promise<void> => {
    for (const tensor of [master, m, v, grad, control]) tensor?.dispose();
  };
  return { call: () => kernels.adamW(args as Parameters<typeof kernels.adamW>[0]), end };
}

/** The function of a case and its input tensors. */
function functional({ op, shape, dtype, backward }: Case): [(...x: Tensor[]) => Tensor, Tensor[]] {
  const [first, second, third] = shape as [number, number, number];
  const make = (...sizes: number[]): Tensor => random(sizes, dtype, backward);
  const x = (): Tensor => make(...(shape as number[]));
  switch (op) {
    case 'matmul':
      return [matmul as never, [make(first, third), make(third, second)]];
    case 'linear':
      return [linear as never, [make(first, third), make(second, third)]];
    case 'softmax':
      return [softmax as never, [x()]];
    case 'layerNorm':
      return [layerNorm as never, [x(), make(second), make(second)]];
    case 'gelu':
      return [((tensor: Tensor) => gelu(tensor, 'tanh')) as never, [x()]];
    case 'attention':
      return [
        ((...qkv: [Tensor, Tensor, Tensor]) => attention(...qkv, { causal: true })) as never,
        [x(), x(), x()],
      ];
    default: {
      const tokens = indices(third, first);
      return [((weight: Tensor) => embedding(weight, tokens)) as never, [make(first, second)]];
    }
  }
}

/** The case, ready to be called again and again. */
export async function prepareCase(item: Case): Promise<Prepared> {
  if (item.op === 'train') return trainingCase(item.shape as Record<string, number>);
  if (item.op === 'decode') return continuingCase(item);
  if (item.op === 'adamw') return adamw((item.shape as number[])[0] as number);
  const [compute, inputs] = functional(item);
  const owned = [...inputs];
  const end = async (): Promise<void> => {
    for (const tensor of owned) tensor.dispose();
  };
  if (!item.backward)
    return { call: () => noGrad(() => scope(() => void compute(...inputs))), end };
  const grad = random(
    noGrad(() => scope(() => [...compute(...inputs).shape])),
    item.dtype,
  );
  owned.push(grad);
  const call = (): void => {
    scope(() => backward(compute(...inputs), grad));
    for (const tensor of inputs) {
      tensor.grad?.dispose();
      tensor.grad = null;
    }
  };
  return { call, end };
}
