// Tests 4-bit weights: the bits of quantization and dequantization against the formula in
// TypeScript, and layers on them.
import assert from 'node:assert/strict';
import { full, nn, noGrad, peft, scope, seed, Tensor } from '../../lib/index.js';
import { DYNAMIC_CODE, NF4_CODE } from '../../lib/peft/nf4-linear.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import type { Case } from '../support/case.js';
import { bitsOf, largest, logits, on, stir, tinyGpt2, tinyLlama } from './models.js';

const { fround } = Math;

/** Thresholds in bitsandbytes' tree for NF4, lowest first. */
const THRESHOLDS = [
  -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544,
  -0.23460740596055984, -0.13791173323988914, -0.045525018125772476, 0.03979014977812767,
  0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683,
  0.5016634166240692, 0.6427869200706482, 0.8614784181118011,
].map(fround);

/** Some of the 256 values of bitsandbytes' dynamic map, by index. */
const KNOWN_BYTES = [
  ...([
    [0, -0.992968738079071],
    [1, -0.9789062738418579],
    [20, -0.7117187976837158],
  ] as const),
  ...([
    [28, -0.5992187261581421],
    [92, -0.019843751564621925],
    [126, -5.500000384017767e-7],
  ] as const),
  ...([
    [127, 0],
    [137, 0.0003812500217463821],
    [152, 0.006343749817460775],
  ] as const),
  ...([
    [182, 0.07609374821186066],
    [220, 0.5148437023162842],
    [255, 1],
  ] as const),
];

interface Blocks {
  codes: number[];
  scales: number[];
}

function largestOf(block: readonly number[]): number {
  return block.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0);
}

/** The code of each value, by comparison with thresholds. */
function inBlocks(values: readonly number[], size: number, codeOf: (x: number) => number): Blocks {
  const result: Blocks = { codes: [], scales: [] };
  for (let from = 0; from < values.length; from += size) {
    const block = values.slice(from, from + size);
    const scale = largestOf(block);
    const inverse = fround(1 / scale);
    result.scales.push(scale);
    result.codes.push(...block.map((x) => codeOf(fround(x * inverse))));
  }
  return result;
}

const nf4Of = (x: number): number => THRESHOLDS.filter((threshold) => x > threshold).length;

/**
 * Nearest by distance in f64. f32 gives the same code except for ties, which random values do not
 * have.
 */
function byteOf(x: number): number {
  let best = 0;
  for (const [i, code] of DYNAMIC_CODE.entries()) {
    if (Math.abs(x - code) < Math.abs(x - (DYNAMIC_CODE[best] as number))) best = i;
  }
  return best;
}

function packCodes(codes: readonly number[]): number[] {
  const even = codes.length % 2 === 0 ? codes : [...codes, 7];
  return even.flatMap((code, i) => (i % 2 === 0 ? [(code << 4) | (even[i + 1] as number)] : []));
}

const drawValues = (count: number, phase: number): number[] =>
  Array.from({ length: count }, (_, i) => fround(Math.sin(i * 12.9898 + phase) * (1 + (i % 5))));

const f32 = (values: readonly number[], device: Device): Tensor =>
  Tensor.from(Float32Array.from(values), { device });

async function quantizes(device: Device): Promise<void> {
  for (const [count, block] of [
    [64, 64],
    [1, 64],
    [257, 64],
    [4096, 128],
    [333, 32],
  ] as const) {
    const values = drawValues(count, count);
    const expected = inBlocks(values, block, nf4Of);
    const bytes = Tensor.from(new Uint8Array(Math.ceil(count / 2)).fill(0xee), { device });
    const absmax = f32(new Array(Math.ceil(count / block)).fill(Number.NaN), device);
    const code = f32(NF4_CODE, device);
    kernels.nf4Quantize({ in: f32(values, device), code, packed: bytes, absmax, block });
    assert.deepEqual(bytes.toArray(), packCodes(expected.codes), `${count} values`);
    assert.deepEqual(absmax.toArray(), expected.scales);
    for (const dtype of ['f32', 'bf16', 'f16'] as const) {
      const out = full([count], Number.NaN, { dtype, device });
      const plain = { nestedCode: null, nestedAbsmax: null, offset: null, nestedBlock: 256 };
      kernels.nf4Dequantize({ packed: bytes, code, absmax, out, block, ...plain });
      const back = expected.codes.map((code, i) =>
        fround(
          fround(NF4_CODE[code] as number) * (expected.scales[Math.floor(i / block)] as number),
        ),
      );
      assert.equal(bitsOf(out), bitsOf(f32(back, device).to(dtype)), `${count} as ${dtype}`);
    }
  }
}

async function nests(device: Device): Promise<void> {
  for (const [place, value] of KNOWN_BYTES)
    assert.equal(DYNAMIC_CODE[place], fround(value), `${place}`);
  assert.equal(DYNAMIC_CODE.length, 256);
  seed(8);
  const layer = on(device, new nn.Linear(130, 300));
  const weights = layer.weight.toArray();
  const nf4Linear = peft.NF4Linear.from(layer);
  const { codes, scales } = inBlocks(weights, 64, nf4Of);
  assert.deepEqual(nf4Linear.weight.toArray(), packCodes(codes));
  const offset = (nf4Linear.nested_offset as nn.Parameter).toArray()[0] as number;
  const mean = scales.reduce((a, b) => a + b, 0) / scales.length;
  assert.ok(Math.abs(offset / mean - 1) < 1e-6);
  const left = scales.map((scale) => fround(scale - offset));
  const nested = inBlocks(left, 256, byteOf);
  assert.deepEqual(nf4Linear.absmax.toArray(), nested.codes);
  assert.deepEqual((nf4Linear.nested_absmax as nn.Parameter).toArray(), nested.scales);
  const restored = nested.codes.map((byte, i) =>
    fround(
      fround((DYNAMIC_CODE[byte] as number) * (nested.scales[Math.floor(i / 256)] as number)) +
        offset,
    ),
  );
  const back = codes.map((code, i) =>
    fround(fround(NF4_CODE[code] as number) * (restored[Math.floor(i / 64)] as number)),
  );
  assert.deepEqual(nf4Linear.values('f32').toArray(), back);
  assert.ok(largest(back, weights) < 0.02);
}

/**
 * The layer equals a linear layer with the dequantized weight, bit for bit, in every dtype, and so
 * does its gradient.
 */
async function computes(device: Device): Promise<void> {
  for (const doubleQuant of [true, false]) {
    for (const dtype of ['f32', 'bf16'] as DType[]) {
      seed(9);
      const layer = on(device, new nn.LinearGelu(24, 40));
      const nf4Linear = peft.NF4Linear.from(layer, { doubleQuant, blockSize: 32 });
      const fullValues = nf4Linear.values('f32').toArray();
      layer.weight.initialize(
        (out) => void out.copy_(Tensor.from(fullValues, { shape: out.shape, device })),
      );
      layer.to(dtype);
      const values = f32(drawValues(72, 4), device).reshape([3, 24]).to(dtype).keep();
      const [x, same] = [values.clone().requireGrad(), values.clone().requireGrad()];
      nf4Linear.to(dtype);
      const [y, expected] = [nf4Linear.call(x), layer.call(same)];
      // On a GPU, GELU is fused into the matmul of the linear layer, which rounds differently.
      const exact = device.kind === 'cpu' ? 1e-6 : 1e-5;
      const bound = dtype === 'f32' ? exact : 0.05;
      assert.ok(largest(y.to('f32').toArray(), expected.to('f32').toArray()) < bound);
      y.to('f32').square().sum().backward();
      expected.to('f32').square().sum().backward();
      const grads = [x, same].map(({ grad }) => (grad as Tensor).to('f32').toArray()) as [
        number[],
        number[],
      ];
      assert.ok(largest(...grads) < (dtype === 'f32' ? 1e-5 : 0.3));
      assert.equal(nf4Linear.weight.dtype, 'u8');
      assert.equal(nf4Linear.weight.requiresGrad, false);
    }
  }
}

async function models(device: Device): Promise<void> {
  for (const model of [tinyLlama(), tinyGpt2()] as nn.models.CausalLM[]) {
    on(device, model);
    const plain = logits(model, device);
    const tied = new Set(model.tiedNames().values());
    peft.quantize(model);
    const small = logits(model, device);
    assert.ok(largest(small, plain) < 0.5 && largest(small, plain) > 0);
    for (const [name, { dtype }] of model.namedParameters()) {
      assert.equal(dtype === 'u8', /(proj|c_attn|c_fc)\.(weight|absmax)$/.test(name), name);
    }
    assert.ok(tied.size >= 0);
    peft.addLora(model, { targetModules: 'all-linear' });
    on(device, model);
    assert.deepEqual(logits(model, device), small);
    stir(model);
    const adapted = logits(model, device);
    peft.merge(model);
    assert.ok(largest(logits(model, device), adapted) < 0.5);
  }
}

async function refuses(device: Device): Promise<void> {
  const layer = on(device, new nn.Linear(4, 4));
  assert.throws(() => peft.NF4Linear.from(layer, { blockSize: 7 }), /blockSize: expected an even/);
  const nf4Linear = peft.NF4Linear.from(layer);
  assert.throws(() => nf4Linear.weight.requireGrad(), /part of a quantized weight/);
  assert.throws(() => peft.quantize(new nn.Dropout(0.5)), /linear layers/);
  for (const skipModules of ['lm_head', null, [1], ['']] as unknown as string[][]) {
    const options = { skipModules };
    const message = /skipModules: expected a list of names, got/;
    assert.throws(() => peft.quantize(tinyLlama(), options), message);
    assert.throws(() => nn.quantizeModel(tinyLlama(), { bits: 8, ...options }), message);
  }
  const fullModel = peft.quantize(tinyLlama());
  assert.throws(
    () => peft.addLora(fullModel, { modulesToSave: ['mlp'] }),
    /modulesToSave: expected modules without quantized .*, got model\.layers\.0\.mlp\.gate_proj\.weight, a/,
  );
  assert.equal(peft.lorasOf(fullModel).size, 0);
  const adapted = peft.addLora(on(device, tinyLlama()));
  assert.throws(() => peft.quantize(adapted), /Quantize first/);
  const [code, absmax] = [f32(NF4_CODE, device), f32([1], device)];
  const bytes = Tensor.from(new Uint8Array(2), { device });
  const rest = { nestedCode: null, nestedAbsmax: null, offset: null, nestedBlock: 256 };
  const out = full([5], 0, { device });
  assert.throws(
    () => kernels.nf4Dequantize({ packed: bytes, code, absmax, out, block: 64, ...rest }),
    /packed \[3\] u8/,
  );
}

/** NaN has no code: it would come back as a number. */
async function refusesNonFinite(device: Device): Promise<void> {
  for (const odd of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
    const spoilt = on(device, new nn.Linear(6, 3));
    const values = Array.from({ length: 18 }, (_, i) => (i === 7 ? odd : i - 9));
    const expected = Tensor.from(values, { shape: [3, 6], device });
    noGrad(() => scope(() => void spoilt.weight.copy_(expected)));
    const message = /finite numbers, got inf or NaN in a weight \[3, 6\]/;
    const refused = { code: 'DS_NONFINITE', message };
    assert.throws(() => peft.NF4Linear.from(spoilt), refused);
    assert.throws(() => peft.quantize(new nn.Sequential(spoilt)), refused);
  }
  const nf4Linear = peft.NF4Linear.from(on(device, new nn.Linear(4, 4)));
  const before = scope(() => nf4Linear.values('f32').toArray());
  const spoilt = full([4, 4], Number.NaN, { device });
  assert.throws(() => nf4Linear.setValues(spoilt), { code: 'DS_NONFINITE' });
  assert.deepEqual(
    scope(() => nf4Linear.values('f32').toArray()),
    before,
  );
}

export const cases: Case[] = [
  { name: 'quantized and restored as bitsandbytes does, bit for bit', run: quantizes },
  { name: 'scales in 8 bits', run: nests },
  { name: 'a layer over them, and its gradient', run: computes },
  { name: 'models with adapters over them', run: models },
  { name: 'unsupported layers and options are refused', run: refuses },
  { name: 'weights that are not finite are refused', run: refusesNonFinite },
];
