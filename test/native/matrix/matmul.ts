// Matmul: transposes, batches, strides, bias, epilogues and accumulation.
import type { DType } from '../../../lib/runtime/dtype.js';
import type { MatmulEpilogue } from '../../../lib/runtime/kernels.generated.js';
import { contiguousStrides } from '../../../lib/runtime/view.js';
import { geluTanh, geluTanhSlope } from './functions.js';
import {
  type Check,
  close,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  type Operand,
  opCase,
  output,
} from './harness.js';
import { floating } from './layouts.js';

interface Product {
  dtype: DType;
  out?: DType;
  /** [batch or nothing, M, K, N] */
  sizes: readonly number[];
  transA?: boolean;
  transB?: boolean;
  bias?: boolean;
  epilogue?: MatmulEpilogue;
  accumulate?: boolean;
  /** Unused elements after each row. */
  gap?: number;
  lead?: number;
  /** One b for the whole batch, by stride 0. */
  sharedB?: boolean;
  aux?: boolean;
}

function rows(shape: readonly number[], p: Product, shared = false): Layout {
  const strides = contiguousStrides([...shape.slice(0, -1), shape.at(-1)! + (p.gap ?? 0)]);
  if (shared) strides[0] = 0;
  return { lead: p.lead ?? 16, strides };
}

/** The product of row-major f64 matrices, element by element. */
function reference(p: Product, a: Float64Array, b: Float64Array): Float64Array {
  const [batch, m, k, n] = (p.sizes.length === 4 ? p.sizes : [1, ...p.sizes]) as [
    number,
    number,
    number,
    number,
  ];
  const out = new Float64Array(batch * m * n);
  for (let z = 0; z < batch; ++z) {
    for (let i = 0; i < m; ++i) {
      for (let j = 0; j < n; ++j) {
        let sum = 0;
        for (let l = 0; l < k; ++l) {
          const left = a[z * m * k + (p.transA ? l * m + i : i * k + l)]!;
          sum += left * b[z * k * n + (p.transB ? j * k + l : l * n + j)]!;
        }
        out[(z * m + i) * n + j] = sum;
      }
    }
  }
  return out;
}

function title(p: Product): string {
  const flags = Object.entries(p)
    .filter(([key, value]) => value && !['dtype', 'sizes'].includes(key))
    .map(([key, value]) => (value === true ? key : `${key} ${value}`));
  return [`[${p.sizes}]`, ...flags].join(' ');
}

function product(p: Product): MatrixCase {
  const batched = p.sizes.length === 4;
  const lead = batched ? [p.sizes[0]!] : [];
  const [m, k, n] = p.sizes.slice(-3) as [number, number, number];
  const shapeA = [...lead, ...(p.transA ? [k, m] : [m, k])];
  const shapeB = [...lead, ...(p.transB ? [n, k] : [k, n])];
  const shape = [...lead, m, n];
  const count = shape.reduce((x, y) => x * y, 1);
  const outDType = p.out ?? p.dtype;
  const epilogue = p.epilogue ?? 'none';
  const withAux = epilogue === 'gelu_grad' || (epilogue === 'gelu' && p.aux !== false);
  const check: Check = {
    ...close(outDType, 1, 'tensor'),
    absolute: (outDType === 'f64' ? 1e-15 : 2e-6) * Math.sqrt(Math.max(1, k)),
  };
  return opCase({
    op: 'Matmul',
    dtype: p.dtype,
    title: title(p),
    build(random) {
      const fill = (size: readonly number[]): Float64Array =>
        random.normal(size.reduce((x, y) => x * y, 1));
      const outLayout = rows(shape, p);
      const target: Operand = p.accumulate
        ? inPlaceOperand(input(outDType, shape, random.normal(count), outLayout), check)
        : output(outDType, shape, check, outLayout);
      return {
        operands: {
          a: input(p.dtype, shapeA, fill(shapeA), rows(shapeA, p)),
          b: input(p.dtype, shapeB, fill(shapeB), rows(shapeB, p, p.sharedB)),
          bias: p.bias ? input(outDType, [n], random.normal(n), { lead: p.lead ?? 16 }) : null,
          aux: !withAux
            ? null
            : epilogue === 'gelu'
              ? output(outDType, shape, check, outLayout)
              : input(outDType, shape, random.normal(count), outLayout),
          out: target,
        },
        args: {
          transA: p.transA ?? false,
          transB: p.transB ?? false,
          epilogue,
          accumulate: p.accumulate ?? false,
        },
        reference(v) {
          const z = reference(p, v.a!, v.b!).map((x, i) => x + (v.bias ? v.bias[i % n]! : 0));
          if (epilogue === 'gelu') return { out: z.map(geluTanh), aux: z };
          if (epilogue === 'gelu_grad')
            return { out: z.map((x, i) => x * geluTanhSlope(v.aux![i]!)) };
          return { out: z.map((x, i) => x + (p.accumulate ? v.out![i]! : 0)) };
        },
      };
    },
  });
}

function forDType(dtype: DType): Product[] {
  const list: Product[] = [];
  const sizes = [
    [1, 1, 1],
    [1, 17, 33],
    [17, 1, 3],
    [33, 127, 1],
    [17, 33, 127],
    [64, 64, 64],
    [129, 65, 31],
    [3, 1029, 17],
    [255, 7, 257],
  ];
  for (const size of sizes) {
    for (const transA of [false, true]) {
      for (const transB of [false, true]) list.push({ dtype, sizes: size, transA, transB });
    }
    list.push({ dtype, sizes: size, bias: true, transB: true });
    list.push({ dtype, sizes: size, gap: 3, lead: 5 });
    list.push({ dtype, sizes: size, gap: 8, transA: true, accumulate: true });
    list.push({ dtype, sizes: size, accumulate: true });
    list.push({ dtype, sizes: size, epilogue: 'gelu', bias: true });
    list.push({ dtype, sizes: size, epilogue: 'gelu_grad' });
    list.push({ dtype, sizes: size, epilogue: 'gelu_grad', transB: true, gap: 5, lead: 3 });
    if (dtype !== 'f64' && dtype !== 'f32') {
      list.push({ dtype, out: 'f32', sizes: size });
      list.push({ dtype, out: 'f32', sizes: size, transA: true, accumulate: true });
    }
  }
  for (const size of [
    [0, 3, 5],
    [3, 5, 0],
    [3, 0, 5],
    [0, 2, 3, 4],
    [2, 3, 0, 4],
  ]) {
    list.push({ dtype, sizes: size }, { dtype, sizes: size, accumulate: true });
    list.push({ dtype, sizes: size, bias: true });
  }
  list.push({ dtype, sizes: [3, 0, 5], epilogue: 'gelu', bias: true });
  // A few rows by aligned rows of weights, as single tokens have them.
  for (let rows = 1; rows <= 33; ++rows) {
    const sizes = [rows, rows % 2 ? 72 : 296, rows % 3 ? 35 : 64];
    list.push({ dtype, sizes, transB: true, gap: 8, bias: rows % 4 === 1 });
    if (rows % 8 !== 1) continue;
    list.push({ dtype, sizes, transB: true, epilogue: 'gelu', bias: true });
    list.push({ dtype, sizes: [rows, 8, 1], transB: true, gap: 3 });
    if (dtype === 'bf16' || dtype === 'f16') list.push({ dtype, out: 'f32', sizes, transB: true });
  }
  // As many weights as a CPU reads once for up to eight rows, and one row more.
  for (const rows of [1, 2, 3, 5, 8, 9]) {
    const sizes = [rows, 1029 + rows, 67];
    list.push({ dtype, sizes, transB: true, gap: 3, lead: 5, bias: true });
    list.push({ dtype, sizes, transB: true, accumulate: true });
    list.push({ dtype, sizes, transB: true, epilogue: rows % 2 ? 'gelu' : 'gelu_grad' });
    if (dtype === 'bf16' || dtype === 'f16') list.push({ dtype, out: 'f32', sizes, transB: true });
  }
  // One row by weights that take a GPU's blocks more than one turn.
  list.push({ dtype, sizes: [1, 4200, 37], transB: true, bias: true });
  list.push({ dtype, sizes: [1, 9096, 6], transB: true, gap: 8 });
  list.push({ dtype, sizes: [1, 2880, 301], transB: true, bias: true });
  list.push({ dtype, sizes: [1, 4096, 83], transB: true, bias: true });
  list.push({ dtype, sizes: [1, 3600, 140], transB: true, gap: 8 });
  list.push({ dtype, sizes: [1, 40, 4], transB: true, accumulate: true });
  for (const size of [
    [3, 17, 33, 9],
    [5, 1, 64, 65],
    [2, 65, 31, 64],
    [7, 3, 3, 3],
  ]) {
    for (const transB of [false, true]) {
      list.push({ dtype, sizes: size, transB });
      list.push({ dtype, sizes: size, transB, transA: true, gap: 2 });
      list.push({ dtype, sizes: size, transB, sharedB: true, bias: true });
      list.push({ dtype, sizes: size, transB, accumulate: true, lead: 5 });
    }
  }
  return list;
}

export const cases: MatrixCase[] = floating.flatMap((dtype) => forDType(dtype).map(product));
