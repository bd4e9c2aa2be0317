// Gathers of FP8 weights: the codes of two ranks become weights with the codes of the whole weight.

import { Linear } from '../../lib/nn/index.js';
import { Module } from '../../lib/nn/module.js';
import { cpu } from '../../lib/runtime/device.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { held, randn, scope, seed, Tensor } from '../../lib/tensor/index.js';
import { liveTensors } from '../../lib/tensor/tensor.js';
import { gatherFp8 } from '../../lib/zero/fp8-gather.js';
import { MemoryStore } from '../../lib/zero/partition.js';
import { Unit, type WeightUnit } from '../../lib/zero/unit.js';
import type { CollectiveStart, Collectives } from '../../lib/zero/wire.js';

const device = cpu();
const RANKS = 2;

class Layers extends Module {
  /** A shard ends inside of it. */
  readonly wide = new Linear(48, 96);
  readonly narrow = new Linear(16, 32);

  forward(x: Tensor): Tensor {
    return x;
  }
}

/** Collectives of one rank that sees what the ranks sent in earlier rounds. */
class Rehearsal implements Pick<Collectives, 'allGather'> {
  private calls = 0;
  sent = 0;

  constructor(
    readonly rank: number,
    private readonly inputs: Map<string, Uint8Array>,
  ) {}

  readonly size = RANKS;

  allGather(output: Tensor, input: Tensor, _at: CollectiveStart) {
    const call = this.calls++;
    const size = { u8: 1, bf16: 2 }[input.dtype as 'u8' | 'bf16'];
    const bytes = new Uint8Array(input.numel * size);
    input.buffer.read(input.offset * size, bytes);
    this.sent = bytes.length;
    this.inputs.set(`${call} ${this.rank}`, bytes);
    for (let rank = 0; rank < RANKS; ++rank) {
      const other = this.inputs.get(`${call} ${rank}`);
      if (other) output.buffer.write(output.offset * size + rank * bytes.length, other);
    }
    return { wait() {} };
  }
}

function unitOf(model: Layers): WeightUnit {
  const parameters = [...model.namedParameters()].map(([name, parameter]) => ({
    name,
    parameter,
    group: 0,
  }));
  const options = { dtype: 'bf16' as const, device, layout: { shards: RANKS } };
  return new Unit('layers', model, parameters, options, () => null);
}

/** The weights that both ranks get, and the bytes that a rank sends. */
function gatherCodes(unit: WeightUnit, values: Tensor, isCoded: (name: string) => boolean) {
  const names = new Map(unit.parameters.map(({ name, parameter }) => [parameter, name]));
  const gather = gatherFp8((parameter) => isCoded(names.get(parameter) as string));
  const numel = values.numel / RANKS;
  const inputs = new Map<string, Uint8Array>();
  const flats: Tensor[] = [];
  let sent = 0;
  // Magnitudes, codes, and all codes.
  for (let round = 0; round < 3; ++round) {
    for (let rank = 0; rank < RANKS; ++rank) {
      const group = new Rehearsal(rank, inputs);
      const store = new MemoryStore(held(() => values.alias([numel], undefined, rank * numel)));
      const flat = held(() => Tensor.empty([values.numel], 'bf16', device));
      const at = { stream: device.compute, purpose: 'weights' };
      gather(store, flat, group as unknown as Collectives, at, unit).wait(device.compute);
      store.dispose();
      flats[rank]?.release();
      flats[rank] = flat;
      sent = group.sent;
    }
  }
  return { flats, sent };
}

/** The codes and the scale of a matrix with one scale. */
function codesOf(values: Tensor, shape: [number, number], offset: number): number[] {
  return scope(() => {
    const matrix = values.alias(shape, undefined, offset);
    const out = Tensor.empty(shape, 'u8', device);
    const scale = Tensor.empty([1], 'f32', device);
    kernels.fp8Quantize({
      in: matrix,
      out,
      transposed: null,
      scale,
      transposedScale: null,
      format: 'e4m3',
      scaling: 'tensor',
    });
    return [...(out.toArray().flat() as number[]), scale.item()];
  });
}

const model = new Layers();
const unit = unitOf(model);
const { entries, numel } = unit.layout;

function weights(): Tensor {
  seed(9);
  return held(() => scope(() => randn([numel], { device }).mul(0.02).to('bf16')));
}

test('weights that are gathered as codes have the codes of the whole weights', () => {
  const before = liveTensors();
  const values = weights();
  const { flats, sent } = gatherCodes(unit, values, (name) => name.endsWith('weight'));
  const [first, second] = flats as [Tensor, Tensor];
  expect(first.toRaw()).toEqual(second.toRaw());
  expect(first.toRaw()).not.toEqual(values.toRaw());
  for (const { name, shape, offset, numel: count } of entries) {
    if (name.endsWith('weight')) {
      const as = shape as [number, number];
      expect(codesOf(first, as, offset)).toEqual(codesOf(values, as, offset));
      continue;
    }
    const ofBias = (flat: Tensor) => flat.toRaw().subarray(offset * 2, (offset + count) * 2);
    expect(ofBias(first)).toEqual(ofBias(values));
  }
  // A byte an element, a row of 64 and a scale a piece, and the biases of the last rank.
  expect(sent).toBeLessThan(1.25 * (numel / RANKS));
  for (const tensor of [...flats, values]) tensor.release();
  expect(liveTensors()).toBe(before);
});

test('a magnitude that is not finite makes the whole weight NaN, and no other', () => {
  const values = weights();
  const { offset, shape } = entries.find(({ name }) => name === 'wide.weight') ?? entries[0]!;
  values.buffer.write(offset * 2, Uint16Array.of(0x7f80));
  const { flats } = gatherCodes(unit, values, (name) => name.endsWith('weight'));
  const got = (flats[1] as Tensor).toArray() as number[];
  const count = shape.reduce((all, n) => all * n, 1);
  expect(got.slice(offset, offset + count).every(Number.isNaN)).toBe(true);
  expect(got.filter(Number.isNaN)).toHaveLength(count);
  for (const tensor of [...flats, values]) tensor.release();
});

test('a unit without FP8 weights is gathered as it is', () => {
  const values = weights();
  const { flats, sent } = gatherCodes(unit, values, () => false);
  expect(sent).toBe(numel);
  expect((flats[0] as Tensor).toRaw()).toEqual(values.toRaw());
  for (const tensor of [...flats, values]) tensor.release();
});
