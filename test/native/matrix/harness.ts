// Runs one native op on data with a given layout, and checks values, guard zones and determinism.
import assert from 'node:assert/strict';
import { Buffer as Bytes } from 'node:buffer';
import { Buffer } from '../../../lib/runtime/buffer.js';
import { cpu, type Device } from '../../../lib/runtime/device.js';
import { type DType, type NumericArray, rawArray } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { Stream } from '../../../lib/runtime/stream.js';
import { contiguousStrides, numel } from '../../../lib/runtime/view.js';
import type { Case } from '../../support/case.js';
import { decode, decodeAll, encode, encodeAll, Random } from './numbers.js';

// Local copies: jest's sandbox makes every global look-up slow.
const { abs, max } = Math;
const { isFinite: finite, isNaN: nan } = Number;
const { is } = Object;

export type OpName = (typeof kernels.opNames)[number];
export type Values = Record<string, Float64Array>;

/** How to compare an output. `tolerance` is relative to the largest value of its scope. */
export interface Check {
  tolerance: number;
  /** `row` is the last dim, the whole of a one-dimensional tensor. */
  scope: 'element' | 'row' | 'tensor';
  /** Absolute tolerance in addition, for values that underflow or cancel. */
  absolute: number;
  /** Whether the contract promises the CPU's bits on every back end; NaNs are equal. */
  sameBits: boolean;
}

const roundings: Partial<Record<DType, number>> = {
  f64: 1e-12,
  f32: 1e-5,
  f16: 2e-3,
  bf16: 1.6e-2,
};

/** Equal to the reference after rounding to the dtype, with the same bits on every back end. */
export const exact: Check = { tolerance: 0, scope: 'element', absolute: 0, sameBits: true };

/** Within `factor` times the usual error of `dtype`. */
export function close(dtype: DType, factor = 1, scope: Check['scope'] = 'row'): Check {
  const absolute = dtype === 'f64' ? 1e-15 : dtype === 'f16' || scope === 'element' ? 1e-6 : 1e-9;
  return { tolerance: (roundings[dtype] ?? 0) * factor, scope, absolute, sameBits: false };
}

/** Close to the reference, and the same bits on every back end. */
export function closeSameBits(dtype: DType, factor = 1, scope: Check['scope'] = 'row'): Check {
  return { ...close(dtype, factor, scope), sameBits: true };
}

export interface Layout {
  /** Elements before the view; odd numbers break the alignment of vectors. */
  lead?: number;
  strides?: readonly number[];
}

/** One argument of an op: logical values in row-major order, and their layout in a buffer. */
export interface Operand extends Layout {
  dtype: DType;
  shape: readonly number[];
  /** null: the op must overwrite every element. */
  values: ArrayLike<number> | null;
  /** Present for outputs. */
  check?: Check;
  /** The view of another operand, for an op that works in place. */
  sameAs?: string;
}

export function input(
  dtype: DType,
  shape: readonly number[],
  values: ArrayLike<number>,
  layout: Layout = {},
): Operand {
  return { dtype, shape, values, ...layout };
}

export function output(
  dtype: DType,
  shape: readonly number[],
  check: Check,
  layout: Layout = {},
): Operand {
  return { dtype, shape, values: null, check, ...layout };
}

/** Read and written: the result depends on the old values. */
export function inPlaceOperand(operand: Operand, check: Check): Operand {
  return { ...operand, check };
}

/**
 * Written in place of the operand called `name`, which must itself be `inPlaceOperand`; with
 * strides, of a part of it from its first element.
 */
export function sameAs(operand: Operand, name: string): Operand {
  return { ...operand, sameAs: name };
}

export interface Problem {
  operands: Record<string, Operand | null>;
  args?: Record<string, unknown>;
  /** Computes the outputs from the operands (with old contents) in plain f64. */
  reference(values: Values): Record<string, ArrayLike<number> | undefined>;
}

export interface Spec {
  op: OpName;
  /** The main dtype of the case; f64 exists on the CPU only. */
  dtype: DType;
  title: string;
  build(random: Random): Problem;
}

export interface MatrixCase extends Case {
  op: OpName;
  /** The case's operands and arguments. */
  build(): Problem;
  /** Runs the op without `operand`. */
  runWithout(operand: string, device: Device): void;
  /** The names of the case's operands. */
  operands(): string[];
}

const GUARD = 8;

/** Under a sanitizer, which watches memory, each case runs once: other runs compare the values. */
const isWatched = process.env.DS_TEST_WATCHED === '1';

/** The elements of an operand's buffer, with guard zones and gaps. */
interface Image {
  operand: Operand;
  raw: NumericArray;
  /** Positions of the logical elements. */
  at: Int32Array;
  lead: number;
  strides: readonly number[];
}

function positions(
  shape: readonly number[],
  strides: readonly number[] | undefined,
  lead: number,
): Int32Array {
  const at = new Int32Array(numel(shape));
  if (!strides) {
    for (let i = 0; i < at.length; ++i) at[i] = lead + i;
    return at;
  }
  const index = new Array<number>(shape.length).fill(0);
  let position = lead;
  for (let i = 0; i < at.length; ++i) {
    at[i] = position;
    for (let d = shape.length - 1; d >= 0; --d) {
      position += strides[d]!;
      if (++index[d]! < shape[d]!) break;
      position -= shape[d]! * strides[d]!;
      index[d] = 0;
    }
  }
  return at;
}

function imageOf(operand: Operand, poison: number): Image {
  const { dtype, shape, values } = operand;
  const strides = operand.strides ?? contiguousStrides(shape);
  const lead = operand.lead ?? 16;
  const at = positions(shape, operand.strides, lead);
  let extent = lead + at.length;
  if (operand.strides) {
    extent = lead;
    for (let i = 0; i < at.length; ++i) extent = max(extent, at[i]! + 1);
  }
  const raw = rawArray(dtype, extent + GUARD);
  new Uint8Array(raw.buffer).fill(poison);
  if (values) encodeAll(raw, at, values, dtype);
  return { operand, raw, at, lead, strides };
}

export type Images = Record<string, Image>;

/**
 * The same memory as four-byte words, if an element has four bytes: a loop over one array type is
 * fast.
 */
const wordsOf = ({ buffer, BYTES_PER_ELEMENT }: NumericArray): Uint32Array | null =>
  BYTES_PER_ELEMENT === 4 ? new Uint32Array(buffer) : null;

const sameBytes = (a: NumericArray, b: NumericArray): boolean =>
  Bytes.from(a.buffer, a.byteOffset, a.byteLength).equals(
    Bytes.from(b.buffer, b.byteOffset, b.byteLength),
  );

/** Copies the elements of the view in `image` from one raw array to another. */
function copyElements(from: NumericArray, to: NumericArray, { operand, at, lead }: Image): void {
  if (!operand.strides) {
    to.set(from.subarray(lead, lead + at.length) as never, lead);
    return;
  }
  const [source, target] = [wordsOf(from), wordsOf(to)];
  if (source && target) for (let i = 0; i < at.length; ++i) target[at[i]!] = source[at[i]!]!;
  else for (let i = 0; i < at.length; ++i) to[at[i]!] = from[at[i]!]!;
}

/** The same values, with different poison around them. */
export function poisonGaps(image: Image, poison: number): Image {
  const { operand, raw } = image;
  const other = rawArray(operand.dtype, raw.length);
  new Uint8Array(other.buffer).fill(poison);
  if (operand.values) copyElements(raw, other, image);
  return { ...image, raw: other };
}

export function imagesOf(problem: Problem, poison: number): Images {
  const images: Images = {};
  for (const [name, operand] of Object.entries(problem.operands)) {
    if (operand && !operand.sameAs) images[name] = imageOf(operand, poison);
  }
  return images;
}

const decodeImage = ({ operand, raw, at }: Image): Float64Array =>
  decodeAll(raw, at, operand.dtype);

function valuesOf(images: Images): Values {
  const values: Values = {};
  for (const [name, image] of Object.entries(images)) values[name] = decodeImage(image);
  return values;
}

type Kernel = (args: Record<string, unknown>, stream: Stream) => void;

function kernelOf(op: OpName): Kernel {
  const name = (op[0]!.toLowerCase() + op.slice(1)) as keyof typeof kernels;
  return kernels[name] as unknown as Kernel;
}

/** Runs `op` on copies of the images on `device` and returns the images afterwards. */
export function execute(device: Device, op: OpName, problem: Problem, images: Images): Images {
  const buffers: Record<string, Buffer> = {};
  const args: Record<string, unknown> = { ...problem.args };
  for (const [name, { operand, raw, lead, strides }] of Object.entries(images)) {
    const buffer = Buffer.allocate(device, raw.byteLength);
    buffer.write(0, raw);
    buffers[name] = buffer;
    const { dtype, shape } = operand;
    args[name] = { buffer, dtype, shape, offset: lead, strides };
  }
  for (const [name, operand] of Object.entries(problem.operands)) {
    if (!operand) args[name] = null;
    else if (operand.sameAs) {
      const { shape, strides } = operand;
      const fullResult = args[operand.sameAs] as object;
      args[name] = strides ? { ...fullResult, shape, strides } : fullResult;
    }
  }
  const result: Images = {};
  try {
    kernelOf(op)(args, device.compute);
    for (const [name, image] of Object.entries(images)) {
      const raw = rawArray(image.operand.dtype, image.raw.length);
      buffers[name]!.read(0, raw);
      result[name] = { ...image, raw };
    }
  } finally {
    for (const buffer of Object.values(buffers)) buffer.release();
  }
  return result;
}

/** All other elements than the op's outputs must keep their values. */
export function checkUntouched(name: string, before: Image, after: Image): void {
  const rest = after.raw.slice();
  if (before.operand.check) copyElements(before.raw, rest, before);
  if (sameBytes(rest, before.raw)) return;
  for (let p = 0; p < rest.length; ++p) {
    if (!is(before.raw[p], rest[p]))
      assert.fail(`${name}: element ${p - before.lead} outside its view was changed`);
  }
}

function sameElement(a: Image, b: Image, p: number): boolean {
  if (is(a.raw[p], b.raw[p])) return true;
  const { dtype } = a.operand;
  return nan(decode(a.raw, p, dtype)) && nan(decode(b.raw, p, dtype));
}

export function checkSameBits(name: string, expected: Image, got: Image, label: string): void {
  const inside = ({ raw, lead, at }: Image) => raw.subarray(lead, lead + at.length);
  if (!expected.operand.strides && sameBytes(inside(expected), inside(got))) return;
  for (let i = 0; i < expected.at.length; ++i) {
    const p = expected.at[i]!;
    if (sameElement(expected, got, p)) continue;
    const { dtype } = expected.operand;
    const values = `${decode(expected.raw, p, dtype)}, got ${decode(got.raw, p, dtype)}`;
    assert.fail(`${name}[${i}]: ${label}: expected ${values}`);
  }
}

/** The largest finite magnitude of each scope of `expected`, repeated for every element. */
function scales(expected: ArrayLike<number>, shape: readonly number[], check: Check): Float64Array {
  const last = check.scope === 'row' && shape.length > 0 ? shape.at(-1)! : expected.length;
  const width = check.scope === 'element' ? 1 : max(last, 1);
  const out = new Float64Array(expected.length);
  for (let start = 0; start < out.length; start += width) {
    const end = Math.min(start + width, out.length);
    let scale = 0;
    for (let i = start; i < end; ++i) {
      const x = abs(expected[i]!);
      if (finite(x)) scale = max(scale, x);
    }
    out.fill(scale, start, end);
  }
  return out;
}

/**
 * Compares decoded elements with `expected`, which is rounded to the dtype first if the tolerance
 * is 0.
 */
export function checkValues(
  name: string,
  got: ArrayLike<number>,
  expected: ArrayLike<number>,
  operand: { dtype: DType; shape: readonly number[] },
  check: Check,
): void {
  const cell = rawArray(operand.dtype, 1);
  const scale = scales(expected, operand.shape, check);
  assert.equal(got.length, expected.length, `${name}: the reference has another size`);
  for (let i = 0; i < got.length; ++i) {
    let want = expected[i]!;
    if (check.tolerance === 0 || !finite(want)) {
      encode(cell, 0, want, operand.dtype);
      want = decode(cell, 0, operand.dtype);
    }
    const x = got[i]!;
    const fine =
      x === want ||
      (nan(x) && nan(want)) ||
      abs(x - want) <= check.tolerance * scale[i]! + check.absolute;
    if (!fine) assert.fail(`${name}[${i}]: expected ${want}, got ${x} (scale ${scale[i]})`);
  }
}

function compareDevices(name: string, host: Image, got: Image): void {
  const { check, dtype, shape } = host.operand;
  if (check!.sameBits) {
    checkSameBits(name, host, got, 'the same bits as on the CPU');
    return;
  }
  const doubled = { ...check!, tolerance: 2 * check!.tolerance, absolute: 2 * check!.absolute };
  checkValues(name, decodeImage(got), decodeImage(host), { dtype, shape }, doubled);
}

/**
 * Compares the CPU with the reference, and other devices with the CPU. Every case runs twice with
 * different poison, which reveals unwritten elements and varying results.
 */
function runCase(spec: Spec, name: string, device: Device): void {
  const problem = spec.build(new Random(name));
  const images = imagesOf(problem, 0xff);
  const after = execute(device, spec.op, problem, images);
  if (isWatched) return;
  const other: Images = {};
  for (const [name, image] of Object.entries(images)) other[name] = poisonGaps(image, 0x55);
  const again = execute(device, spec.op, problem, other);
  for (const key of Object.keys(images)) {
    checkUntouched(key, images[key]!, after[key]!);
    checkUntouched(key, other[key]!, again[key]!);
    if (images[key]!.operand.check)
      checkSameBits(key, after[key]!, again[key]!, 'the same bits in a second run');
  }
  const host = device.kind === 'cpu' ? null : execute(cpu(), spec.op, problem, images);
  const expected = host ? {} : problem.reference(valuesOf(images));
  for (const [key, image] of Object.entries(after)) {
    const { operand } = image;
    if (!operand.check) continue;
    if (host) {
      compareDevices(key, host[key]!, image);
      continue;
    }
    const values = expected[key];
    assert.ok(values, `the reference lacks ${key}`);
    checkValues(key, decodeImage(image), values, operand, operand.check);
  }
}

/** A case with inputs seeded by its name. */
export function opCase(spec: Spec): MatrixCase {
  const name = `${spec.op} ${spec.dtype} ${spec.title}`;
  return {
    name,
    op: spec.op,
    build: () => spec.build(new Random(name)),
    run: (device) => runCase(spec, name, device),
    runWithout: (operand, device) => {
      const problem = spec.build(new Random(name));
      const rest = { ...problem, operands: { ...problem.operands, [operand]: null } };
      execute(device, spec.op, rest, imagesOf(rest, 0xff));
    },
    operands: () => {
      const { operands } = spec.build(new Random(name));
      return Object.keys(operands).filter((key) => operands[key] && !operands[key]?.sameAs);
    },
    skip: (device) =>
      spec.dtype === 'f64' && device.kind !== 'cpu' ? 'f64 exists on the CPU only' : null,
  };
}
