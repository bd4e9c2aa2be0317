// Tests documents and windows in attention, and positions in rope: packed rows against separate
// documents.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import {
  type AttentionOptions,
  attention,
  causalSelfAttentionPacked,
  documentPositions,
  rope,
  scope,
  Tensor,
} from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { draw, refuses } from './attention-checks.js';

function documentCase(name: string, body: (device: Device) => void): Case {
  return { name: `documents: ${name}`, run: (device) => scope(() => body(device)) };
}

function integers(rows: readonly (readonly number[])[], device: Device, dtype: DType = 'i32') {
  const shape = [rows.length, (rows[0] as readonly number[]).length];
  return Tensor.from(rows.flat(), { shape, device, dtype });
}

/** Within `tolerance` of the largest expected value, or of 1. */
function near(got: number[], expected: number[], tolerance: number, label: string): void {
  assert.equal(got.length, expected.length, label);
  const largest = expected.reduce((top, x) => Math.max(top, Math.abs(x)), 1);
  got.forEach((x, i) => {
    const away = Math.abs(x - (expected[i] as number));
    assert.ok(away <= tolerance * largest, `${label}[${i}]: ${x}, expected ${expected[i]}`);
  });
}

const [H, HK, D] = [4, 2, 16];

/** Queries, keys, values and the gradient of the output; keys may have fewer heads. */
function operands(B: number, T: number, S: number, device: Device): Tensor[] {
  return [
    draw('q', [B, H, T, D], device),
    draw('k', [B, HK, S, D], device),
    draw('v', [B, HK, S, D], device),
    draw('dout', [B, H, T, D], device),
  ];
}

/** The output and the gradients of queries, keys and values. */
function results(tensors: readonly Tensor[], options: AttentionOptions): Tensor[] {
  const [q, k, v, dout] = tensors.map((x) => x.detach()) as [Tensor, Tensor, Tensor, Tensor];
  const leaves = [q, k, v].map((x) => x.requireGrad()) as [Tensor, Tensor, Tensor];
  const out = attention(...leaves, options);
  out.mul(dout).sum().backward();
  return [out, ...leaves.map((x) => x.grad as Tensor)];
}

const lengths = [64, 1, 300, 130, 7, 200, 75]; // 777 in total

/** Document numbers for these lengths, after `pad` tokens of padding. */
function numberDocuments(pad = 0): number[] {
  const rows = lengths.flatMap((length, i) => new Array<number>(length).fill(i * 3));
  return [...new Array<number>(pad).fill(-1), ...rows];
}

const packed = documentCase('a packed row is its documents apart, to 1e-6 at T 777', (device) => {
  const tensors = operands(1, 777, 777, device);
  const names = ['out', 'dq', 'dk', 'dv'];
  for (const window of [null, 50, 129]) {
    const options = { causal: true, window };
    const documents = integers([numberDocuments()], device);
    const fullTensors = results(tensors, { ...options, documents });
    let at = 0;
    for (const length of lengths) {
      const parts = tensors.map((x) => x.narrow(2, at, length));
      results(parts, options).forEach((expected, i) => {
        const got = (fullTensors[i] as Tensor).narrow(2, at, length).contiguous().toArray();
        near(got, expected.contiguous().toArray(), 1e-6, `${names[i]} of ${length} at ${at}`);
      });
      at += length;
    }
  }
});

const padded = documentCase('padding on either side changes nothing and gets nothing', (device) => {
  const pad = 37;
  const tensors = operands(2, 777 + pad, 777 + pad, device);
  const rows = [numberDocuments(pad), [...numberDocuments(), ...new Array<number>(pad).fill(-5)]];
  const got = results(tensors, { causal: true, documents: integers(rows, device) });
  for (const [row, first] of [
    [0, pad],
    [1, 0],
  ] as const) {
    const inside = (x: Tensor): Tensor => x.narrow(0, row, 1).narrow(2, first, 777);
    const documents = integers([numberDocuments()], device);
    const expected = results(tensors.map(inside), { causal: true, documents });
    got.forEach((x, i) => {
      const values = inside(x).contiguous().toArray();
      near(values, (expected[i] as Tensor).contiguous().toArray(), 1e-6, `${i} of row ${row}`);
      const outside = x
        .narrow(0, row, 1)
        .narrow(2, row === 0 ? 0 : 777, pad)
        .contiguous();
      assert.ok(outside.toArray().every((value) => value === 0));
    });
  }
});

const asMasks = documentCase('documents and windows are masks, also beside a cache', (device) => {
  for (const [T, S] of [
    [40, 40],
    [9, 40],
    [40, 21],
  ] as const) {
    const tensors = operands(2, T, S, device);
    const rows = (n: number) =>
      [0, 1].map((b) => Array.from({ length: n }, (_, i) => ((i + b) % 11 === 0 ? -1 : i % 3)));
    const [queries, keys] = [rows(T), rows(S)];
    for (const causal of [true, false]) {
      for (const window of [null, 1, 7, 30]) {
        const isSeen = (b: number, t: number, s: number): boolean => {
          const away = t + S - T - s;
          if (window !== null && (away >= window || (!causal && -away >= window))) return false;
          return queries[b]?.[t] === keys[b]?.[s] && (keys[b]?.[s] as number) >= 0;
        };
        const flags = [0, 1].flatMap((b) =>
          Array.from({ length: T * S }, (_, i) => isSeen(b, Math.floor(i / S), i % S)),
        );
        const mask = Tensor.from(flags, { shape: [2, 1, T, S], device });
        const expected = results(tensors, { causal, mask });
        const pair = { queries: integers(queries, device), keys: integers(keys, device, 'i64') };
        const forms = T === S ? [pair, integers(keys, device, 'i64')] : [pair];
        for (const documents of forms) {
          results(tensors, { causal, window, documents }).forEach((x, i) => {
            const label = `${i} of ${T} by ${S}, window ${window}, causal ${causal}`;
            near(x.toArray(), (expected[i] as Tensor).toArray(), 2e-6, label);
          });
        }
      }
    }
  }
});

const skipped = documentCase('tiles that are hidden as a whole are not computed', (device) => {
  const T = 512;
  const tensors = operands(1, T, T, device);
  const half = (x: Tensor): Tensor => x.narrow(2, T / 2, T / 2);
  const spoilt = (x: Tensor, until: number): Tensor => {
    const first = Tensor.from(
      Array.from({ length: T }, (_, t) => t < until),
      { shape: [1, 1, T, 1], device },
    );
    return x.maskedFill(first, Number.NaN);
  };
  const documents = integers([Array.from({ length: T }, (_, t) => Number(t >= T / 2))], device);
  for (const dtype of ['f32', 'bf16'] as const) {
    const typed = tensors.map((x) => x.to(dtype));
    for (const causal of [true, false]) {
      const apart = results(typed.map(half), { causal });
      const got = results(
        typed.map((x) => spoilt(x, T / 2)),
        { causal, documents },
      );
      got.forEach((x, i) => {
        const expected = (apart[i] as Tensor).to('f32').contiguous().toArray();
        const tolerance = dtype === 'f32' ? 1e-6 : 1.6e-2;
        near(half(x).to('f32').contiguous().toArray(), expected, tolerance, `${dtype} ${i}`);
      });
    }
    // Ignores the first half of the queries, and keys before the window of the others.
    const [q, k, v] = typed as [Tensor, Tensor, Tensor];
    const out = attention(q, spoilt(k, T / 4), spoilt(v, T / 4), { causal: true, window: 64 });
    assert.ok(half(out).to('f32').contiguous().toArray().every(Number.isFinite), dtype);
  }
});

const fromPacked = documentCase('the packed projection takes both', (device) => {
  const [B, T, heads, width] = [2, 45, 3, 24];
  const leaf = () => draw('qkv', [B, T, 3 * width], device).requireGrad();
  const rows = [0, 1].map((b) => Array.from({ length: T }, (_, t) => (t < 4 * b ? -1 : t % 20)));
  const reach = {
    documents: integers(
      rows.map((row) => row.slice().sort((a, b) => a - b)),
      device,
    ),
    window: 13,
  };
  const dout = draw('dout', [B, T, width], device);
  const [one, other] = [leaf(), leaf()];
  const out = causalSelfAttentionPacked(one, heads, reach);
  const [q, k, v] = other
    .reshape([B, T, 3, heads, width / heads])
    .permute([2, 0, 3, 1, 4])
    .split(1)
    .map((x) => x.squeeze(0)) as [Tensor, Tensor, Tensor];
  const expected = attention(q, k, v, { causal: true, ...reach }).transpose(1, 2);
  const same = expected.reshape([B, T, width]);
  out.mul(dout).sum().backward();
  same.mul(dout).sum().backward();
  near(out.toArray(), same.toArray(), 1e-6, 'out');
  near((one.grad as Tensor).toArray(), (other.grad as Tensor).toArray(), 1e-6, 'gradient');
});

/** cos and sin [rows, D / 2]. */
function table(rows: number, device: Device): [Tensor, Tensor] {
  const angles = Array.from(
    { length: rows * (D / 2) },
    (_, i) => Math.floor(i / 8) * 0.37 + (i % 8),
  );
  const of = (f: (x: number) => number): Tensor =>
    Tensor.from(Float32Array.from(angles, f), { shape: [rows, D / 2], device });
  return [of(Math.cos), of(Math.sin)];
}

const positions = documentCase('positions restart with documents, and rope follows', (device) => {
  const rows = [
    numberDocuments(),
    [...new Array<number>(77).fill(-1), ...new Array<number>(700).fill(4)],
  ];
  const tensor = documentPositions(integers(rows, device));
  const expected = rows.flatMap((row) => {
    let begin = 0;
    return row.map((document, t) => {
      if (t > 0 && document !== row[t - 1]) begin = t;
      return t - begin;
    });
  });
  assert.equal(tensor.dtype, 'i32');
  assert.deepEqual(Array.from(tensor.toArray(), Number), expected);
  const wide = documentPositions(integers(rows, device, 'i64'));
  assert.deepEqual(Array.from(wide.toArray(), Number), expected);
  for (const n of [0, 1]) {
    const few = Tensor.from(new Int32Array(2 * n), { shape: [2, n], device });
    assert.deepEqual(documentPositions(few).shape, [2, n]);
  }

  const [cos, sin] = table(900, device);
  const leaf = draw('x', [2, 777, 3, D], device).requireGrad();
  const dout = draw('dout', [2, 777, 3, D], device);
  const out = rope(leaf, cos, sin, tensor);
  out.mul(dout).sum().backward();
  let at = 0;
  for (const length of lengths) {
    const part = leaf.detach().narrow(0, 0, 1).narrow(1, at, length).contiguous().requireGrad();
    const alone = rope(part, cos.narrow(0, 0, length), sin.narrow(0, 0, length));
    alone
      .mul(dout.narrow(0, 0, 1).narrow(1, at, length))
      .sum()
      .backward();
    const of = (x: Tensor) => x.narrow(0, 0, 1).narrow(1, at, length).contiguous().toArray();
    assert.deepEqual(of(out), alone.toArray());
    assert.deepEqual(of(leaf.grad as Tensor), (part.grad as Tensor).toArray());
    at += length;
  }
});

const partly = documentCase('rope turns the channels that there are angles for', (device) => {
  const [cos, sin] = table(9, device);
  const [x, dout] = ['x', 'dout'].map((name) => draw(name, [2, 9, 3, D + 6], device)) as [
    Tensor,
    Tensor,
  ];
  const leaf = x.detach().requireGrad();
  const out = rope(leaf, cos, sin);
  out.mul(dout).sum().backward();
  const [first, rest] = x.split([D, 6], -1).map((part) => part.contiguous()) as [Tensor, Tensor];
  first.requireGrad();
  const turned = rope(first, cos, sin);
  turned
    .mul(dout.narrow(-1, 0, D))
    .sum()
    .backward();
  assert.deepEqual(out.narrow(-1, 0, D).contiguous().toArray(), turned.toArray());
  assert.deepEqual(out.narrow(-1, D, 6).contiguous().toArray(), rest.toArray());
  const [dfirst, drest] = (leaf.grad as Tensor).split([D, 6], -1) as [Tensor, Tensor];
  assert.deepEqual(dfirst.contiguous().toArray(), (first.grad as Tensor).toArray());
  assert.deepEqual(drest.contiguous().toArray(), dout.narrow(-1, D, 6).contiguous().toArray());
  const odd = draw('odd', [2, 9, 3, D - 2], device);
  refuses('DS_SHAPE', /cos and sin/, () => rope(odd, cos, sin));
});

const manyHeads = documentCase('rope turns each of many heads as it turns one', (device) => {
  const [cos, sin] = table(150, device);
  for (const dtype of ['f32', 'bf16'] as const) {
    for (const heads of [1, 2, 3, 8, 12]) {
      const all = draw('x', [2, 150, heads + 1, D], device).to(dtype);
      const leaf = all.narrow(2, 1, heads).requireGrad();
      const dout = draw('dout', [2, 150, heads, D], device).to(dtype);
      const out = rope(leaf, cos, sin);
      out.mul(dout).sum().backward();
      for (let h = 0; h < heads; ++h) {
        const of = (x: Tensor): Tensor => x.detach().narrow(2, h, 1).contiguous();
        const alone = of(leaf).requireGrad();
        const turned = rope(alone, cos, sin);
        turned.mul(of(dout)).sum().backward();
        assert.deepEqual(of(out).toArray(), turned.toArray());
        assert.deepEqual(of(leaf.grad as Tensor).toArray(), (alone.grad as Tensor).toArray());
      }
    }
  }
  // One head against the formula.
  const x = draw('x', [1, 150, 1, D], device);
  const [values, cosines, sines] = [x, cos, sin].map((each) => Array.from(each.toArray(), Number));
  const at = (list: number[] | undefined, i: number): number => list?.[i] ?? Number.NaN;
  rope(x, cos, sin)
    .toArray()
    .forEach((value, i) => {
      const [t, d] = [Math.floor(i / D), i % D];
      const angle = (t * D) / 2 + (d % (D / 2));
      const other = d < D / 2 ? -at(values, i + D / 2) : at(values, i - D / 2);
      const expected = at(values, i) * at(cosines, angle) + other * at(sines, angle);
      assert.ok(Math.abs(Number(value) - expected) < 1e-5, `element ${i}`);
    });
});

const outside = documentCase('a position outside the table shows', (device) => {
  const [cos, sin] = table(5, device);
  const x = draw('x', [1, 3, 1, D], device);
  for (const bad of [5, -1, 2 ** 31 - 1]) {
    const rows = integers([[4, bad, 0]], device);
    if (device.kind === 'cpu') {
      refuses('DS_INDEX', /\[0, 5\)/, () => rope(x, cos, sin, rows));
      continue;
    }
    const got = rope(x, cos, sin, rows).toArray();
    got.forEach((value, i) => {
      assert.equal(Number.isNaN(value), i >= D && i < 2 * D, `element ${i}`);
    });
  }
});

const mistakes = documentCase('what fits nothing is refused by name', (device) => {
  const [q, k] = operands(2, 9, 13, device) as [Tensor, Tensor];
  const call = (options: unknown) => () => attention(q, k, k, options as AttentionOptions);
  const ids = (rows: number, n: number, dtype: DType = 'i32'): Tensor =>
    Tensor.from(new Array<number>(rows * n).fill(0), { shape: [rows, n], dtype, device });
  refuses('DS_SHAPE', /queries \[2, 9\], keys \[2, 13\]/, call({ documents: ids(2, 13) }));
  refuses(
    'DS_SHAPE',
    /documents\.queries.*\[2, 9\]/s,
    call({ documents: { queries: ids(2, 13), keys: ids(2, 13) } }),
  );
  refuses(
    'DS_SHAPE',
    /documents\.keys.*\[2, 13\]/s,
    call({ documents: { queries: ids(2, 9), keys: ids(1, 13) } }),
  );
  refuses('DS_DTYPE', /i32 or i64/, call({ documents: ids(2, 13, 'f32') }));
  refuses('DS_ARGUMENT', /documents.*a tensor/s, call({ documents: [[0]] }));
  refuses(
    'DS_ARGUMENT',
    /documents\.keys.*a tensor/s,
    call({ documents: { queries: ids(2, 9), keys: 3 } }),
  );
  for (const window of [0, -1, 2.5, '4']) refuses('DS_ARGUMENT', /window/, call({ window }));
  const x = draw('x', [2, 9, 1, D], device);
  const [cos, sin] = table(9, device);
  refuses('DS_SHAPE', /rope positions.*\[2, 9\]/s, () => rope(x, cos, sin, ids(2, 8)));
  refuses('DS_DTYPE', /rope positions/, () => rope(x, cos, sin, ids(2, 9, 'f32')));
  refuses('DS_DTYPE', /documentPositions/, () => documentPositions(ids(2, 9, 'f32')));
  refuses('DS_SHAPE', /documentPositions/, () => documentPositions(ids(2, 9).reshape([18])));
});

export const cases: Case[] = [
  packed,
  padded,
  asMasks,
  skipped,
  fromPacked,
  positions,
  partly,
  manyHeads,
  outside,
  mistakes,
];
