// Tests that packed documents have the same losses and gradients as separate ones, in every model.
import assert from 'node:assert/strict';
import { nn } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { noGrad, scope, seed, Tensor } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';

const { GPT2, Llama, Mistral, Qwen2, Qwen3 } = nn.models;

const rows = (values: readonly number[][], device: Device): Tensor =>
  Tensor.from(Int32Array.from(values.flat()), {
    shape: [values.length, values[0]?.length ?? 0],
    device,
  });

/** Lengths of documents in rows of 777 tokens; negative lengths are padding. */
const LENGTHS = [
  [300, 1, 200, 276],
  [-20, 417, -1, 40, 65, -234],
];

interface Packed {
  tokens: Tensor;
  targets: Tensor;
  documents: Tensor;
  /** Each document separately, with its targets. */
  apart: [Tensor, Tensor][];
  /** Number of counted targets. */
  counted: number;
}

function packTexts(device: Device): Packed {
  const apart: [Tensor, Tensor][] = [];
  const texts = LENGTHS.map((lengths) =>
    lengths.map((length, number) => {
      const ids = Array.from({ length: Math.abs(length) }, (_, t) => (7 * t + t * t + number) % 37);
      const next = ids.map((_, t) => (length < 0 ? -100 : (ids[t + 1] ?? -100)));
      if (length > 0) apart.push([rows([ids], device), rows([next], device)]);
      return { ids, next, documents: ids.map(() => (length < 0 ? -1 : number)) };
    }),
  );
  const all = (part: 'ids' | 'next' | 'documents'): number[][] =>
    texts.map((row) => row.flatMap((text) => text[part]));
  const [tokens, targets, documents] = (['ids', 'next', 'documents'] as const).map((part) =>
    rows(all(part), device),
  ) as [Tensor, Tensor, Tensor];
  const counted = all('next')
    .flat()
    .filter((target) => target >= 0).length;
  return { tokens, targets, documents, apart, counted };
}

const sizes = { vocabSize: 37, maxSeq: 800, layers: 2, heads: 4, channels: 32 };
const rotary = { ...sizes, hidden: 12, initializerRange: 0.2 };

/**
 * With larger weights than the initial ones, because gradients of these are mostly cancelled sums.
 */
function gpt2(config: nn.models.GPT2Config): nn.models.GPT2 {
  const model = new GPT2(config);
  for (const parameter of model.parameters()) {
    if (parameter.ndim === 2) parameter.initialize(nn.init.normal(0.2));
  }
  return model;
}

const models: Record<string, (more: object) => nn.models.CausalLM> = {
  GPT2: (more) => gpt2({ ...sizes, ...more }),
  Llama: (more) => new Llama({ ...rotary, kvHeads: 2, ...more }),
  'Mistral with a window': (more) => new Mistral({ ...rotary, window: 50, ...more }),
  'Qwen2, tied': (more) => new Qwen2({ ...rotary, tied: true, ...more }),
  'Qwen3 with windows': (more) =>
    new Qwen3({ ...rotary, kvHeads: 1, headDim: 16, window: [64, null], ...more }),
};

const gradientsOf = (model: nn.Module): [string, number[]][] =>
  Array.from(model.namedParameters(), ([name, { grad }]) => [name, (grad as Tensor).toArray()]);

function packs(make: (more: object) => nn.models.CausalLM, device: Device): void {
  const { tokens, targets, documents, apart, counted } = packTexts(device);
  seed(11);
  const alone = make({}).to(device);
  let total = 0;
  for (const [ids, next] of apart) {
    const loss = alone.call(ids, next, { loss: { divisor: counted } });
    loss.backward();
    total += loss.item();
  }
  const expected = gradientsOf(alone);
  // On GPUs and with AVX-512, matmuls sum tokens in parts, which separate documents split
  // differently. Processors without AVX-512 are within 1e-6.
  const bound = 2e-6;
  for (const activationCheckpointing of [false, true]) {
    seed(11);
    const model = make({ activationCheckpointing }).to(device);
    // Checkpointed segments need the documents again after their scope has ended.
    const loss = scope(() => model.call(tokens, targets, { documents: documents.clone() }));
    loss.backward();
    assert.ok(Math.abs(loss.item() - total) <= 1e-6 * total, `${loss.item()}, not ${total}`);
    gradientsOf(model).forEach(([name, gradient], i) => {
      const expectedValues = expected[i]?.[1] as number[];
      const largest = Math.max(...expectedValues.map(Math.abs));
      const worst = Math.max(
        ...gradient.map((g, j) => Math.abs(g - (expectedValues[j] as number))),
      );
      assert.ok(worst <= bound * largest, `${name}: off by ${worst} of ${largest}`);
    });
  }
}

/** Explicit positions: the same result as if the text before them were there. */
function moves(make: (more: object) => nn.models.CausalLM, device: Device): void {
  seed(12);
  const model = make({}).to(device).eval();
  const text = Array.from({ length: 40 }, (_, t) => (5 * t + 3) % 37);
  const logits = (ids: number[][], inputs: nn.models.CausalInputs): number[] =>
    noGrad(() => model.call(rows(ids, device), null, inputs).contiguous().toArray());
  const places = text.map((_, t) => t);
  const plain = logits([text], {});
  assert.deepEqual(logits([text], { positions: rows([places], device) }), plain);
  const doubled = { positions: rows([places, places.map((t) => t + 9)], device) };
  const [first, second] = [0, 1].map((row) =>
    logits([text, text], doubled).slice(row * plain.length, (row + 1) * plain.length),
  ) as [number[], number[]];
  const off = (values: number[]) =>
    Math.max(...values.map((value, i) => Math.abs(value - (plain[i] as number))));
  assert.ok(off(first) < 1e-5, `${off(first)}`);
  // Rotary positions are relative; learned ones are not.
  if (model instanceof GPT2) assert.ok(off(second) > 1e-3);
  else assert.ok(off(second) < 1e-4, `${off(second)}`);
}

/** Invalid positions throw, and so do positions with angles that depend on the text length. */
function refuses(device: Device): void {
  const model = models.Llama?.({}).to(device) as nn.models.CausalLM;
  const tokens = rows([[3, 1, 30, 7]], device);
  const expectRefusal = (inputs: object, code: string, message: RegExp) =>
    assert.throws(() => model.call(tokens, null, inputs), { code, message });
  expectRefusal(
    { documents: [0, 0, 1, 1] },
    'DS_ARGUMENT',
    /Llama inputs\.documents: .*\[1, 4\] i32/,
  );
  expectRefusal({ positions: tokens.to('f32') }, 'DS_DTYPE', /Llama inputs\.positions/);
  expectRefusal({ documents: rows([[0, 0, 1]], device) }, 'DS_SHAPE', /expected a tensor \[1, 4\]/);
  const stretched = new Llama({
    ...rotary,
    ropeScaling: { type: 'dynamic', factor: 2, originalMaxSeq: 3 },
  }).to(device);
  assert.throws(() => stretched.call(tokens, null, { documents: tokens }), {
    code: 'DS_ARGUMENT',
    message: /"dynamic" depends on the text, got up to 4 tokens/,
  });
  const short = rows([[3, 1, 30]], device);
  const logits = (inputs: nn.models.CausalInputs) =>
    noGrad(() => stretched.call(short, null, inputs).contiguous().toArray());
  assert.deepEqual(logits({ documents: rows([[0, 0, 0]], device) }), logits({}));
}

const each = (
  name: string,
  body: (make: (more: object) => nn.models.CausalLM, device: Device) => void,
): Case[] =>
  Object.entries(models).map(([model, make]) => ({
    name: `packing: ${name} (${model})`,
    run: (device) => scope(() => body(make, device)),
  }));

export const cases: Case[] = [
  ...each('documents in a row are documents apart', packs),
  ...each('positions are those that are given', moves),
  { name: 'packing: places that cannot be', run: (device) => scope(() => refuses(device)) },
];
