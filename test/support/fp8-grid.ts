// The formats, scalings and scales of FP8 in plain f64, as csrc/ops/fp8.h describes them.
const { abs, ceil, floor, fround, max, min } = Math;

export const FORMATS = ['e4m3', 'e5m2'] as const;
export const SCALINGS = ['tensor', 'row', 'group', 'square'] as const;

export type Format = (typeof FORMATS)[number];
export type Scaling = (typeof SCALINGS)[number];

export const GRIDS = {
  e4m3: { mantissa: 3, bias: 7, largest: 448 },
  e5m2: { mantissa: 2, bias: 15, largest: 57_344 },
} as const;

/** The code of the value of the grid that is nearest to x, ties to an even code. */
export function codeOf(x: number, format: Format): number {
  const { mantissa, bias, largest } = GRIDS[format];
  if (Number.isNaN(x)) return 0x7f;
  const sign = x < 0 || Object.is(x, -0) ? 128 : 0;
  const size = min(abs(x), largest);
  const exponent = size === 0 ? 1 - bias : max(floor(Math.log2(size)), 1 - bias);
  const steps = size / 2 ** (exponent - mantissa);
  const down = floor(steps);
  const up = steps - down > 0.5 || (steps - down === 0.5 && down % 2 === 1);
  return sign + (exponent - 1 + bias) * 2 ** mantissa + down + (up ? 1 : 0);
}

/** The value of a finite code, without its scale. */
export function valueOfCode(code: number, format: Format): number {
  const { mantissa, bias } = GRIDS[format];
  const rest = code % 128;
  const exponent = floor(rest / 2 ** mantissa);
  const fraction = rest % 2 ** mantissa;
  const size =
    exponent === 0
      ? fraction * 2 ** (1 - bias - mantissa)
      : (2 ** mantissa + fraction) * 2 ** (exponent - bias - mantissa);
  return code < 128 ? size : -size;
}

const groups = (n: number): number => ceil(n / 128);
export const roundUp = (n: number, multiple: number): number => ceil(n / multiple) * multiple;

export function scaleShape(scaling: Scaling, rows: number, columns: number): number[] {
  if (scaling === 'tensor') return [1];
  if (scaling === 'row') return [rows];
  if (scaling === 'group') return [groups(columns), roundUp(rows, 4)];
  return [groups(rows), roundUp(groups(columns), 4)];
}

/** Where the scale of element (r, c) is. */
export function scaleAt(
  scaling: Scaling,
  [rows, columns]: readonly [number, number],
  r: number,
  c: number,
): number {
  if (scaling === 'tensor') return 0;
  if (scaling === 'row') return r;
  if (scaling === 'group') return floor(c / 128) * roundUp(rows, 4) + r;
  return floor(r / 128) * roundUp(groups(columns), 4) + floor(c / 128);
}

function multiplierOf(largest: number, { format, scaling }: Kind): number {
  if (!Number.isFinite(largest)) return NaN;
  const exact = fround(GRIDS[format].largest / max(largest, 1e-12));
  return scaling === 'row' ? 2 ** floor(Math.log2(exact)) : exact;
}

export interface Kind {
  format: Format;
  scaling: Scaling;
}

/** Codes [rows, columns padded to 16] and scales of the matrix whose elements `at` returns. */
export function quantizeGrid(
  at: (r: number, c: number) => number,
  size: readonly [number, number],
  kind: Kind,
): { codes: Float64Array; scales: Float64Array } {
  const [rows, columns] = size;
  const { format, scaling } = kind;
  const count = scaleShape(scaling, rows, columns).reduce((a, b) => a * b, 1);
  const largest = new Float64Array(count);
  const each = (body: (r: number, c: number, scale: number) => void): void => {
    for (let r = 0; r < rows; ++r)
      for (let c = 0; c < columns; ++c) body(r, c, scaleAt(scaling, size, r, c));
  };
  // Math.max of NaN is NaN.
  each((r, c, scale) => {
    largest[scale] = max(largest[scale] as number, abs(at(r, c)));
  });
  const by = largest.map((value) => multiplierOf(value, kind));
  const pitch = roundUp(columns, 16);
  const codes = new Float64Array(rows * pitch);
  each((r, c, scale) => {
    codes[r * pitch + c] = codeOf(fround(at(r, c) * (by[scale] as number)), format);
  });
  return { codes, scales: by.map((value) => fround(1 / value)) };
}

/** The values [rows, columns] of the codes of a matrix. */
export function afterQuantization(
  at: (r: number, c: number) => number,
  size: readonly [number, number],
  kind: Kind,
): Float64Array {
  const { codes, scales } = quantizeGrid(at, size, kind);
  const [rows, columns] = size;
  const pitch = roundUp(columns, 16);
  return Float64Array.from({ length: rows * columns }, (_, i) => {
    const [r, c] = [floor(i / columns), i % columns];
    const scale = scales[scaleAt(kind.scaling, size, r, c)] as number;
    return valueOfCode(codes[r * pitch + c] as number, kind.format) * scale;
  });
}
