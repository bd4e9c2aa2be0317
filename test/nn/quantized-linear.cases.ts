// Tests layers with 8-bit and 4-bit weights: rounding of weights, and outputs and gradients for the
// dequantized weights.
import assert from 'node:assert/strict';
import { nn, noGrad, scope, seed, Tensor } from '../../lib/index.js';
import { joinedLinear, joinMemory } from '../../lib/nn/joined-linears.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import type { Case } from '../support/case.js';

const { QuantizedLinear } = nn;

const toF64 = (tensor: Tensor): number[] =>
  noGrad(() => scope(() => tensor.to('f32').contiguous().toArray()));

function distance(a: readonly number[], b: readonly number[]): number {
  return a.reduce((largest, x, i) => Math.max(largest, Math.abs(x - (b[i] as number))), 0);
}

/** Rounding of sums of this size in the dtype. */
const TOLERANCE = { f32: 1e-5, f16: 4e-3, bf16: 3e-2 } as const;
const dtypes = ['f32', 'f16', 'bf16'] as const;

function drawTensor(shape: readonly number[], dtype: DType, device: Device): Tensor {
  const count = shape.reduce((product, size) => product * size, 1);
  const values = Float32Array.from({ length: count }, (_, i) => Math.sin(i * 12.9898) * 1.5);
  return scope(() => Tensor.from(values, { shape, device }).to(dtype)).keep();
}

/** Every weight moves by at most half a step. The step is the stored scale of its group. */
async function rounds(device: Device): Promise<void> {
  for (const dtype of dtypes) {
    for (const [bits, groupSize] of [
      [8, null],
      [4, 32],
      [4, 128],
      [8, 16],
    ] as const) {
      seed(4);
      const layer = new nn.Linear(150, 11).to(device, dtype);
      const before = toF64(layer.weight);
      const quantizedLinear = QuantizedLinear.from(layer, { bits, groupSize });
      const after = toF64(quantizedLinear.values('f32'));
      const steps = toF64(quantizedLinear.weight_scale);
      const groups = quantizedLinear.weight_scale.size(1);
      assert.equal(groups, Math.ceil(150 / (groupSize ?? 150)));
      assert.equal(quantizedLinear.weight_scale.dtype, dtype);
      before.forEach((value, i) => {
        const group = Math.floor((i % 150) / (groupSize ?? 150));
        const step = steps[Math.floor(i / 150) * groups + group] as number;
        const moved = Math.abs((after[i] as number) - value) / step;
        const rounding = 2 ** (bits - 23); // Rounding of f32, in steps.
        assert.ok(moved <= 0.5 + rounding, `${bits} bits, ${dtype}: weight ${i} moved ${moved}`);
      });
    }
  }
}

/** Another order of inputs: permutes the columns of the layer and the inputs. */
function reorderColumns(quantizedLinear: nn.QuantizedLinear, device: Device): nn.QuantizedLinear {
  const { bits, groupSize, shape, hasGelu } = quantizedLinear;
  const inputs = shape[1] as number;
  const layer = new QuantizedLinear({
    bits,
    groupSize,
    shape,
    hasGelu,
    scaleDType: quantizedLinear.weight_scale.dtype,
    hasZeros: true,
    isReordered: true,
  }).to(device);
  const order = Int32Array.from({ length: inputs }, (_, k) => (k * 7 + 3) % inputs);
  noGrad(() =>
    scope(() => {
      (layer.weight_order as nn.Parameter).copy_(Tensor.from(order, { device }));
      layer.setValues(quantizedLinear.values('f32'));
    }),
  );
  return layer;
}

/** A few rows, many rows, and zero rows; with and without bias, GELU, and a permutation. */
async function multiplies(device: Device): Promise<void> {
  for (const dtype of dtypes) {
    for (const bits of [8, 4] as const) {
      seed(5);
      const plain = new nn.LinearGelu(64, 37).to(device, dtype);
      const quantizedLinear = QuantizedLinear.from(plain, { bits, groupSize: 32 });
      assert.ok(quantizedLinear.hasGelu);
      const other = reorderColumns(quantizedLinear, device);
      const width = distance(toF64(quantizedLinear.values('f32')), toF64(other.values('f32')));
      assert.ok(width < 0.02, `the same weights but for rounding: ${width}`);
      noGrad(() => plain.weight.copy_(quantizedLinear.values(dtype)));
      for (const shape of [[3, 64], [2, 3, 64], [40, 64], [0, 64], [64]]) {
        const x = drawTensor(shape, dtype, device);
        const expected = toF64(plain.call(x));
        const got = quantizedLinear.call(x);
        assert.deepEqual(got.shape, [...shape.slice(0, -1), 37]);
        assert.equal(got.dtype, dtype);
        assert.ok(distance(toF64(got), expected) < TOLERANCE[dtype], `${dtype} [${shape}]`);
        const reference = new nn.Linear(64, 37, { bias: false }).to(device, dtype);
        noGrad(() => reference.weight.copy_(other.values(dtype)));
        const ours = other.project(x);
        assert.ok(distance(toF64(ours), toF64(reference.call(x))) < TOLERANCE[dtype] * 2);
      }
    }
  }
}

/** Gradients of x and of the bias; the weight has no gradient. */
async function flows(device: Device): Promise<void> {
  seed(6);
  const plain = new nn.LinearGelu(24, 40).to(device);
  const quantizedLinear = QuantizedLinear.from(plain, { bits: 4, groupSize: 8 });
  const copy = new nn.LinearGelu(24, 40).to(device);
  noGrad(() => {
    copy.weight.copy_(quantizedLinear.values('f32'));
    (copy.bias as nn.Parameter).copy_(plain.bias as nn.Parameter);
  });
  const [x, same] = [drawTensor([3, 24], 'f32', device), drawTensor([3, 24], 'f32', device)];
  quantizedLinear.call(x.requireGrad()).square().sum().backward();
  copy.call(same.requireGrad()).square().sum().backward();
  assert.ok(distance(toF64(x.grad as Tensor), toF64(same.grad as Tensor)) < 1e-5);
  const [bias, other] = [quantizedLinear.bias as nn.Parameter, copy.bias as nn.Parameter];
  assert.ok(distance(toF64(bias.grad as Tensor), toF64(other.grad as Tensor)) < 1e-5);
  for (const parameter of [quantizedLinear.weight_packed, quantizedLinear.weight_scale]) {
    assert.equal(parameter.grad, null);
    assert.throws(() => parameter.requireGrad(), /a quantized weight.*addLora/s);
  }
}

const allOf = (x: Tensor): object => ({ dtype: x.dtype, shape: x.shape, values: toF64(x) });

/** Layers of one kind, with 160 inputs. */
type LayerKind = Pick<nn.QuantizedOptions, 'bits' | 'groupSize'> &
  Record<'zeros' | 'bias', boolean>;

function layersOf(kind: LayerKind, widths: readonly number[], dtype: DType, device: Device) {
  const { bits, groupSize = null, zeros: hasZeros, bias } = kind;
  return widths.map((outputs) => {
    const plain = new nn.Linear(160, outputs, { bias }).to(device, dtype);
    const sizes = { bits, groupSize, shape: [outputs, 160], scaleDType: dtype };
    const layout = { ...sizes, hasGelu: false, hasZeros, isReordered: false };
    const quantizedLinear = new QuantizedLinear(layout, plain.bias).to(device, dtype);
    noGrad(() =>
      scope(() => {
        quantizedLinear.setValues(plain.weight.to('f32'));
        quantizedLinear.weight_zero_point?.fill_(3);
      }),
    );
    return quantizedLinear;
  });
}

/**
 * Layers with one input in one matmul have the bits of separate ones. On the CPU this holds if
 * tiles of 32 outputs are the same. On a GPU many rows use dequantized weights, and cuBLASLt may
 * choose other kernels for another width.
 */
async function joins(device: Device): Promise<void> {
  const kinds: LayerKind[] = [
    { bits: 8, groupSize: null, zeros: false, bias: true },
    { bits: 8, groupSize: 16, zeros: true, bias: false },
    { bits: 4, groupSize: 128, zeros: false, bias: false },
    { bits: 4, groupSize: 32, zeros: true, bias: true },
  ];
  const shapes = [
    [1, 160],
    [2, 3, 160],
    [0, 160],
    [40, 160],
  ] as const;
  for (const dtype of dtypes) {
    for (const [kind, widths] of kinds.flatMap((kind) =>
      [
        [64, 32, 96],
        [37, 5, 64],
      ].map((widths) => [kind, widths] as const),
    )) {
      seed(8);
      const layers = layersOf(kind, widths, dtype, device);
      const isWhole = widths.every((width) => width % 32 === 0);
      noGrad(() => assert.equal(joinedLinear(drawTensor([1, 160], dtype, device), layers), null));
      for (const shape of shapes) {
        const x = drawTensor(shape, dtype, device);
        const each = noGrad(() => layers.map((layer) => layer.call(x)));
        assert.ok(joinMemory(layers));
        assert.equal(joinedLinear(x, layers), null, 'gradients are recorded');
        const all = noGrad(() => joinedLinear(x, layers)) as Tensor[];
        assert.equal(new Set(all.map(({ buffer }) => buffer)).size, 1);
        all.forEach((got, l) => {
          const alone = each[l] as Tensor;
          const label = `${dtype} ${kind.bits} bits [${shape}], layer ${l} of ${widths}`;
          const isExact = device.kind === 'cpu' ? isWhole : shape[0] !== 40;
          if (isExact) assert.deepEqual(allOf(got), allOf(alone), label);
          else assert.ok(distance(toF64(got), toF64(alone)) <= TOLERANCE[dtype], label);
        });
      }
    }
  }
}

/** Layers of different kinds, or with other inputs, are not joined. */
async function staysApart(device: Device): Promise<void> {
  const packLayer = (
    quantizedOptions: nn.QuantizedOptions,
    layer = new nn.Linear(32, 8),
  ): nn.QuantizedLinear => QuantizedLinear.from(layer.to(device), quantizedOptions);
  const four = () => packLayer({ bits: 4, groupSize: 16 });
  const pairs: nn.Module[][] = [
    [four(), packLayer({ bits: 8 })],
    [four(), packLayer({ bits: 4, groupSize: 32 })],
    [four(), packLayer({ bits: 4, groupSize: 16 }, new nn.Linear(64, 8))],
    [four(), packLayer({ bits: 4, groupSize: 16 }, new nn.Linear(32, 8, { bias: false }))],
    [four(), packLayer({ bits: 4, groupSize: 16 }, new nn.LinearGelu(32, 8))],
    [four(), reorderColumns(four(), device)],
    [four(), new nn.Linear(32, 8).to(device)],
    [new nn.Linear(32, 8).to(device), new nn.LinearGelu(32, 8).to(device)],
  ];
  for (const pair of pairs) assert.equal(joinMemory(pair), false);
  const [moved, ...rest] = [four(), four()] as const;
  assert.ok(joinMemory([moved, ...rest]));
  moved.weight_scale.place(scope(() => moved.weight_scale.add(0).keep()));
  const x = drawTensor([2, 32], 'f32', device);
  assert.equal(
    noGrad(() => joinedLinear(x, [moved, ...rest])),
    null,
    'somebody has moved its steps',
  );
}

async function refuses(device: Device): Promise<void> {
  const layer = new nn.Linear(16, 4).to(device);
  const from = (options: object) => () => QuantizedLinear.from(layer, options as never);
  assert.throws(from({ bits: 3 }), /bits: expected 8 or 4, got 3/);
  assert.throws(from({ bits: 4, groupSize: 12 }), /groupSize: expected a multiple of 8, or null/);
  assert.throws(from({ bits: 4, group: 8 }), /group/);
  const quantizedLinear = QuantizedLinear.from(layer, { bits: 8 });
  assert.throws(
    () => quantizedLinear.call(drawTensor([2, 15], 'f32', device)),
    /\[\.\., 16\], got \[2, 15\]/,
  );
  noGrad(() => layer.weight.narrow(0, 0, 1).fill_(Number.NaN));
  assert.throws(from({ bits: 4 }), /finite numbers/);
}

/** Calls a layer with hooks; a layer with another input width throws its own error. */
async function checkCalls(device: Device): Promise<void> {
  for (const bits of [null, 8, 4] as const) {
    const block = new nn.SwiGLU(32, 24);
    if (bits) nn.quantizeModel(block, { bits, groupSize: 8 });
    block.to(device).joinLinears();
    noGrad(() =>
      scope(() => {
        const x = drawTensor([3, 32], 'f32', device);
        const joined = toF64(block.call(x));
        for (const name of ['gate_proj', 'up_proj'] as const) {
          let calls = 0;
          const remove = block[name].registerForwardHook(() => void calls++);
          assert.ok(distance(toF64(block.call(x)), joined) <= 1e-5, `${bits} ${name}`);
          remove();
          block.call(x);
          assert.equal(calls, 1, `${bits} ${name}`);
        }
        assert.throws(() => block.call(drawTensor([3, 31], 'f32', device)), /32/);
        x.dispose();
      }),
    );
    for (const parameter of block.parameters()) parameter.dispose();
  }
}

export const cases: Case[] = [
  {
    name: 'joined layers with hooks are called, and inputs of another width are refused',
    run: checkCalls,
  },
  { name: 'weights are within half a step of what they were', run: rounds },
  { name: 'outputs are those of the dequantized weights', run: multiplies },
  { name: 'gradients of inputs and biases, and none of the weight', run: flows },
  { name: 'layers with one input in one matmul have the bits of separate ones', run: joins },
  { name: 'layers of different kinds are not joined', run: staysApart },
  { name: 'unsupported layers and options are refused', run: refuses },
];
