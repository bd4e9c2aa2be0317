// Cases of split master weights: halves restore every float, the upper half is the rounded weight,
// and AdamW on halves has AdamW's bits.
import assert from 'node:assert/strict';
import { Buffer } from '../../../lib/runtime/buffer.js';
import type { Device } from '../../../lib/runtime/device.js';
import { type DType, dtypeSize, rawArray } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { View } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';
import { exact, inPlaceOperand, input, type MatrixCase, opCase, output } from './harness.js';
import { aligned, oddSizes, unaligned } from './layouts.js';
import type { Make, Mistake } from './mistake.js';
import { encode, Random } from './numbers.js';

const { ceil, floor } = Math;

/** Poison around a view, 0xa5 in each byte; no op may read or write it. */
const POISON = 0xa5;

/** Flat views with their own memory, after `lead` elements of poison. */
class Memory {
  private readonly buffers: Buffer[] = [];

  constructor(
    private readonly device: Device,
    private readonly lead: number,
  ) {}

  view(dtype: DType, numel: number, values?: ArrayBufferView): View {
    const bytes = new Uint8Array((numel + 2 * this.lead) * dtypeSize(dtype)).fill(POISON);
    const start = this.lead * dtypeSize(dtype);
    if (values) {
      const { buffer, byteOffset, byteLength } = values;
      bytes.set(new Uint8Array(buffer, byteOffset, byteLength), start);
    }
    const buffer = Buffer.allocate(this.device, bytes.length);
    buffer.write(0, bytes);
    this.buffers.push(buffer);
    return { buffer, dtype, shape: [numel], offset: this.lead, strides: [1] };
  }

  /** The bits of a view; asserts that the poison around it is unchanged. */
  read({ buffer, dtype, shape }: View): Uint8Array {
    const all = new Uint8Array(buffer.bytes);
    buffer.read(0, all);
    const start = this.lead * dtypeSize(dtype);
    const end = start + (shape[0] as number) * dtypeSize(dtype);
    const around = [...all.subarray(0, start), ...all.subarray(end)];
    assert.ok(
      around.every((byte) => byte === POISON),
      'wrote beyond its view',
    );
    return all.slice(start, end);
  }

  release(): void {
    for (const buffer of this.buffers) buffer.release();
  }
}

interface Split {
  high: View;
  low: View;
  ties: View;
}

const emptySplit = (memory: Memory, n: number): Split => ({
  high: memory.view('bf16', n),
  low: memory.view('bf16', n),
  ties: memory.view('u8', ceil(n / 8)),
});

const isNaNBits = (bits: number): boolean => (bits & 0x7fffffff) > 0x7f800000;

/** The bits of masters after split and join: a NaN becomes quiet, with a zero lower half. */
function restoreBits(bits: Uint32Array): Uint32Array {
  return bits.map((bit) => (isNaNBits(bit) ? (bit & 0xffff0000) | 0x400000 : bit));
}

const wordsOf = (bytes: Uint8Array): Uint32Array => new Uint32Array(bytes.buffer);

function assertSame(got: Uint32Array, expected: Uint32Array, label: string): void {
  const at = got.findIndex((value, i) => value !== expected[i]);
  const hex = (words: Uint32Array) => words[at]?.toString(16);
  assert.equal(at, -1, `${label} ${at}: ${hex(got)}, not ${hex(expected)}`);
}

/**
 * Splits floats with these bits and joins them: the weights are the rounded floats, and no bit is
 * lost.
 */
function comesBack(name: string, bitsOf: () => Uint32Array, lead = 0): Case {
  const run = (device: Device): void => {
    const bits = bitsOf();
    const n = bits.length;
    const memory = new Memory(device, lead);
    const view = memory.view('f32', n, bits);
    const split = emptySplit(memory, n);
    kernels.splitMaster({ in: view, ...split });
    const rounded = memory.view('bf16', n);
    kernels.copy({ in: view, out: rounded });
    assert.deepEqual(memory.read(split.high), memory.read(rounded), 'weights');
    const out = memory.view('f32', n);
    kernels.joinMaster({ ...split, out });
    assertSame(wordsOf(memory.read(out)), restoreBits(bits), 'float');
    const tail = memory.read(split.ties).at(-1) ?? 0;
    assert.equal(n % 8 ? tail >> (n % 8) : 0, 0, 'bits of ties beyond the last float');
    memory.release();
  };
  return { name: `split masters come back: ${name}`, run };
}

/**
 * Upper halves around signs, zero, denormals, ones, the largest floats, infinities and NaNs, even
 * and odd.
 */
const uppers = [
  0, 1, 0x7f, 0x80, 0x3f80, 0x3f81, 0x7f7e, 0x7f7f, 0x7f80, 0x7fbf, 0x7fc0, 0x7fff,
].flatMap((upper) => [upper, upper | 0x8000]);

function everyLower(): Uint32Array {
  return Uint32Array.from({ length: uppers.length * 65536 }, (_, i) => {
    return (uppers[floor(i / 65536)] as number) * 65536 + (i % 65536);
  });
}

/** Any 32 bits; every fourth is half way between two bf16 numbers. */
function anyBits(name: string, n: number): Uint32Array {
  const random = new Random(name);
  const [upper, lower] = [random.uniform(n, 0, 65536), random.uniform(n, 0, 65536)];
  return Uint32Array.from(upper, (high, i) => {
    return floor(high) * 65536 + (i % 4 === 3 ? 0x8000 : floor(lower[i] as number));
  });
}

interface Update {
  n: number;
  grad: DType;
  /** Magnitude of moments and gradients. */
  scale: number;
  apply: 0 | 1;
  decoupled: boolean;
  /**
   * Whether masters have arbitrary bits, with infinities and NaNs, and gradients may be not finite.
   */
  wild: boolean;
  lead: number;
}

/** Masters around 1; their lower bits are often a tie. */
function mastersOf(random: Random, n: number): Uint32Array {
  const bits = new Uint32Array(Float32Array.from(random.normal(n)).buffer);
  return bits.map((bit, i) => (i % 3 === 0 ? ((bit >>> 16) << 16) | 0x8000 : bit));
}

/** Three updates of f32 masters equal three updates of split masters with the same gradients. */
function equalsAdamW(u: Update): Case {
  const { n, apply } = u;
  const flags = `apply ${apply}, decoupled ${u.decoupled}, wild ${u.wild}, lead ${u.lead}`;
  const name = `AdamWHalves ${u.grad} [${n}] equals AdamW, values of ${u.scale}, ${flags}`;
  const run = (device: Device): void => {
    const random = new Random(name);
    const memory = new Memory(device, u.lead);
    const encodeValues = (dtype: DType, values: ArrayLike<number>) => {
      const raw = rawArray(dtype, values.length);
      for (let i = 0; i < values.length; ++i) encode(raw, i, values[i] as number, dtype);
      return memory.view(dtype, values.length, raw);
    };
    // Clears the lower half of NaN payloads, which arithmetic never sets, because moments would
    // inherit it.
    const bits = u.wild ? restoreBits(anyBits(name, n)) : mastersOf(random, n);
    const m = random.normal(n).map((x) => x * u.scale);
    const v = random.uniform(n, 0, 1).map((x) => x * u.scale);
    const moments = () => ({ m: encodeValues('f32', m), v: encodeValues('f32', v) });
    const [whole, halves] = [moments(), moments()];
    const master = memory.view('f32', n, bits);
    const split = emptySplit(memory, n);
    kernels.splitMaster({ in: master, ...split });
    const weight = memory.view('bf16', n);
    for (let step = 1; step <= 3; ++step) {
      const values = random.normal(n).map((x) => x * u.scale);
      if (u.wild && n > 2) [values[0], values[1]] = [Number.NaN, Number.POSITIVE_INFINITY];
      const grad = encodeValues(u.grad, values);
      const rule = {
        grad,
        control: encodeValues('f32', [0.5, apply, 1, 1]),
        decoupled: u.decoupled,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weightDecay: 0.1,
        correction1: 1 - 0.9 ** step,
        correction2: 1 - 0.999 ** step,
      };
      kernels.adamW({ ...whole, master, weight, ...rule });
      kernels.adamWHalves({ ...halves, ...split, ...rule });
      assert.deepEqual(memory.read(split.high), memory.read(weight), 'weights');
      for (const key of ['m', 'v'] as const) {
        assertSame(wordsOf(memory.read(halves[key])), wordsOf(memory.read(whole[key])), key);
      }
    }
    const joined = memory.view('f32', n);
    kernels.joinMaster({ ...split, out: joined });
    const expected = restoreBits(wordsOf(memory.read(master)));
    assertSame(wordsOf(memory.read(joined)), expected, 'master');
    memory.release();
  };
  return { name, run };
}

const plain: Update = {
  n: 3001,
  grad: 'bf16',
  scale: 1,
  apply: 1,
  decoupled: true,
  wild: false,
  lead: 0,
};

const equalities: Case[] = [
  comesBack('all lower halves', everyLower),
  comesBack('2^20 of any bits', () => anyBits('any', 2 ** 20)),
  ...[0, 1, 7, 8, 9, 63, 65, 1023, 1025, 40_009].flatMap((n) =>
    [0, 3].map((lead) => comesBack(`${n}, lead ${lead}`, () => anyBits(`${n}`, n), lead)),
  ),
  ...[0, 1, 7, 9, 65, 1025, 70_001].flatMap((n) =>
    [0, 3].map((lead) => equalsAdamW({ ...plain, n, lead })),
  ),
  ...(['f32', 'f16', 'bf16'] as const).flatMap((grad) => [
    equalsAdamW({ ...plain, grad, scale: 1e-38 }),
    equalsAdamW({ ...plain, grad, decoupled: false }),
    equalsAdamW({ ...plain, grad, apply: 0 }),
    equalsAdamW({ ...plain, grad, wild: true }),
  ]),
];

const word = new DataView(new ArrayBuffer(4));

function bitsOf(x: number): number {
  word.setFloat32(0, x);
  return word.getUint32(0);
}

function floatOf(bits: number): number {
  word.setUint32(0, bits >>> 0);
  return word.getFloat32(0);
}

/** Halves of a finite float, each as the number with these bf16 bits, and its tie bit. */
function halvesOf(x: number): { high: number; low: number; tie: 0 | 1 } {
  const bits = bitsOf(x);
  const lower = bits & 0xffff;
  const isOdd = ((bits >>> 16) & 1) === 1;
  const up = lower > 0x8000 || (lower === 0x8000 && isOdd) ? 0x10000 : 0;
  const high = floatOf((bits & 0xffff0000) + up);
  return { high, low: floatOf(lower << 16), tie: lower === 0x8000 && !isOdd ? 1 : 0 };
}

/** Floats, some of them ties. Lower halves are no bf16 NaNs, because op cases compare numbers. */
function floats(random: Random, n: number): Float64Array {
  return random.normal(n).map((x, i) => {
    const upper = bitsOf(x) & 0xffff0000;
    return floatOf(upper + (i % 3 === 0 ? 0x8000 : (i * 7919) % 0x7f80));
  });
}

function splitOf(values: Float64Array): Record<'high' | 'low' | 'ties', Float64Array> {
  const all = Array.from(values, halvesOf);
  const ties = new Float64Array(ceil(values.length / 8));
  all.forEach(({ tie }, i) => {
    ties[floor(i / 8)] = (ties[floor(i / 8)] as number) + tie * 2 ** (i % 8);
  });
  const column = (key: 'high' | 'low') => Float64Array.from(all, (item) => item[key]);
  return { high: column('high'), low: column('low'), ties };
}

const layoutOf = (n: number) => (n % 2 ? unaligned : aligned);

function split(n: number): MatrixCase {
  return opCase({
    op: 'SplitMaster',
    dtype: 'f32',
    title: `[${n}]`,
    build(random) {
      const out = (dtype: DType, numel: number) => output(dtype, [numel], exact, layoutOf(n));
      return {
        operands: {
          in: input('f32', [n], floats(random, n), layoutOf(n)),
          high: out('bf16', n),
          low: out('bf16', n),
          ties: out('u8', ceil(n / 8)),
        },
        reference: (values) => splitOf(values.in as Float64Array),
      };
    },
  });
}

function join(n: number): MatrixCase {
  return opCase({
    op: 'JoinMaster',
    dtype: 'f32',
    title: `[${n}]`,
    build(random) {
      const masters = floats(random, n);
      const { high, low, ties } = splitOf(masters);
      return {
        operands: {
          high: input('bf16', [n], high, layoutOf(n)),
          low: input('bf16', [n], low, layoutOf(n)),
          ties: input('u8', [ties.length], ties, layoutOf(n)),
          out: output('f32', [n], exact, layoutOf(n)),
        },
        reference: () => ({ out: masters }),
      };
    },
  });
}

/** An update without effect: it is skipped, or its gradient and moments are zero. */
function idle(n: number, grad: DType, apply: 0 | 1): MatrixCase {
  return opCase({
    op: 'AdamWHalves',
    dtype: grad,
    title: `[${n}] apply ${apply}`,
    build(random) {
      const old = splitOf(floats(random, n));
      const some = (values: Float64Array) => (apply ? values.fill(0) : values);
      const keepBits = (dtype: DType, values: Float64Array) =>
        inPlaceOperand(input(dtype, [values.length], values, layoutOf(n)), exact);
      return {
        operands: {
          high: keepBits('bf16', old.high),
          low: keepBits('bf16', old.low),
          ties: keepBits('u8', old.ties),
          m: keepBits('f32', some(random.normal(n))),
          v: keepBits('f32', some(random.uniform(n, 0, 1))),
          grad: input(grad, [n], some(random.normal(n)), layoutOf(n)),
          control: input('f32', [4], [0.5, apply, 1, 1]),
        },
        args: {
          lr: 1e-3,
          beta1: 0.9,
          beta2: 0.999,
          eps: 1e-8,
          weightDecay: 0,
          decoupled: true,
          correction1: 0.1,
          correction2: 0.001,
        },
        reference: ({ m, v }) => ({ ...old, m, v }),
      };
    },
  });
}

export const cases: (MatrixCase | Case)[] = [
  ...equalities,
  ...oddSizes.flatMap((n) => [split(n), join(n)]),
  ...(['f32', 'f16', 'bf16'] as const).flatMap((grad) =>
    ([0, 1] as const).flatMap((apply) => [17, 1029].map((n) => idle(n, grad, apply))),
  ),
];

const halvesFor = (m: Make, n: number): Split => ({
  high: m([n], 'bf16'),
  low: m([n], 'bf16'),
  ties: m([ceil(n / 8)], 'u8'),
});

/** A valid update of 9 masters, except for `wrong`. */
const update = (m: Make, wrong: Partial<Parameters<typeof kernels.adamWHalves>[0]>): void =>
  kernels.adamWHalves({
    ...halvesFor(m, 9),
    m: m([9]),
    v: m([9]),
    grad: m([9], 'bf16'),
    control: m([4]),
    lr: 1,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weightDecay: 0,
    decoupled: true,
    correction1: 1,
    correction2: 1,
    ...wrong,
  });

export const mistakes: Mistake[] = [
  {
    op: 'split_master',
    what: 'masters',
    code: 'DS_SHAPE',
    message: '[9] bf16',
    run: (m) => kernels.splitMaster({ in: m([9], 'bf16'), ...halvesFor(m, 9) }),
  },
  {
    op: 'split_master',
    what: 'ties',
    code: 'DS_SHAPE',
    message: '[1] u8',
    run: (m) => kernels.splitMaster({ in: m([9]), ...halvesFor(m, 9), ties: m([1], 'u8') }),
  },
  {
    op: 'join_master',
    what: 'sizes',
    code: 'DS_SHAPE',
    message: '[8] bf16',
    run: (m) => kernels.joinMaster({ ...halvesFor(m, 9), low: m([8], 'bf16'), out: m([9]) }),
  },
  {
    op: 'join_master',
    what: 'weights',
    code: 'DS_SHAPE',
    message: '[9] f16',
    run: (m) => kernels.joinMaster({ ...halvesFor(m, 9), high: m([9], 'f16'), out: m([9]) }),
  },
  {
    op: 'adamw_halves',
    what: 'moments',
    code: 'DS_DTYPE',
    message: 'bf16',
    run: (m) => update(m, { v: m([9], 'bf16') }),
  },
  {
    op: 'adamw_halves',
    what: 'gradients',
    code: 'DS_SHAPE',
    message: '[8] bf16',
    run: (m) => update(m, { grad: m([8], 'bf16') }),
  },
  {
    op: 'adamw_halves',
    what: 'upper halves',
    code: 'DS_SHAPE',
    message: '[9] f32',
    run: (m) => update(m, { high: m([9]) }),
  },
  {
    op: 'adamw_halves',
    what: 'ties',
    code: 'DS_SHAPE',
    message: '[9] u8',
    run: (m) => update(m, { ties: m([9], 'u8') }),
  },
  {
    op: 'adamw_halves',
    what: 'control',
    code: 'DS_SHAPE',
    message: '[3] f32',
    run: (m) => update(m, { control: m([3]) }),
  },
];
