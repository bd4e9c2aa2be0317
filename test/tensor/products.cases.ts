// einsum against its definition in nested loops, and the products of vectors and of batches.
import assert from 'node:assert/strict';
import * as ops from '../../lib/tensor/index.js';
import { assertClose } from '../autograd/check.js';
import type { Case } from '../support/case.js';
import { composedCase, countingTensor, expectTensor, refuses } from './composed.cases.js';

/** einsum by its definition, over nested loops. */
function summedProducts(equation: string, operands: readonly ops.Tensor[]): number[] {
  const [left = '', output = ''] = equation.split('->');
  const names = left.split(',');
  const sizes = new Map<string, number>();
  names.forEach((name, i) => {
    for (const [d, c] of [...name].entries()) sizes.set(c, operands[i]?.shape[d] as number);
  });
  const letters = [...sizes.keys()];
  const place = (name: string, at: Map<string, number>): number =>
    [...name].reduce((sum, c) => sum * (sizes.get(c) as number) + (at.get(c) as number), 0);
  const values = operands.map((x) => x.toArray());
  const out = new Array<number>([...output].reduce((n, c) => n * (sizes.get(c) as number), 1)).fill(
    0,
  );
  const visit = (depth: number, at: Map<string, number>): void => {
    if (depth === letters.length) {
      const product = names.reduce((p, name, i) => p * (values[i]?.[place(name, at)] as number), 1);
      out[place(output, at)] = (out[place(output, at)] as number) + product;
      return;
    }
    const letter = letters[depth] as string;
    for (let i = 0; i < (sizes.get(letter) as number); ++i) visit(depth + 1, at.set(letter, i));
  };
  visit(0, new Map());
  return out;
}

export const cases: Case[] = [
  composedCase('einsum is its definition', (device) => {
    const equations: [string, ...number[][]][] = [
      ['ij,jk->ik', [3, 5], [5, 7]],
      ['ij,jk->ki', [3, 5], [5, 7]],
      ['bij,bkj->bik', [2, 3, 5], [2, 7, 5]],
      ['bthd,bshd->bhts', [2, 3, 2, 5], [2, 4, 2, 5]],
      ['i,j->ij', [3], [5]],
      ['i,i->', [7], [7]],
      ['ij,ij->i', [3, 5], [3, 5]],
      ['ii->', [3, 3]],
      ['iji->j', [3, 5, 3]],
      ['abc->ca', [2, 3, 5]],
      ['ij,jk,kl,l->i', [3, 5], [5, 2], [2, 7], [7]],
      ['ij,kl->', [3, 2], [2, 5]],
      ['ij,jk->ik', [3, 0], [0, 2]],
    ];
    for (const dtype of ['f64', 'f32'] as const) {
      if (dtype === 'f64' && device.kind !== 'cpu') continue; // It exists on the CPU only.
      for (const [equation, ...shapes] of equations) {
        const operands = shapes.map((shape) => ops.randn(shape, { device, dtype }));
        const out = ops.einsum(equation, ...operands);
        assert.equal(out.dtype, dtype);
        const tolerance = dtype === 'f64' ? 1e-12 : 1e-5;
        assertClose(out.toArray(), summedProducts(equation, operands), tolerance, equation);
      }
    }
  }),
  composedCase('einsum with dots, without output, and refused', (device) => {
    const a = ops.randn([2, 3, 5], { device });
    const b = ops.randn([5, 7], { device });
    const expected = a.matmul(b).toArray();
    assertClose(ops.einsum('...ij,jk->...ik', a, b).toArray(), expected, 1e-6, 'dots');
    assertClose(ops.einsum('bij,jk', [a, b]).toArray(), expected, 1e-6, 'no output');
    assertClose(
      ops.einsum(' ... i j , ... j k -> ... i k ', a, b).toArray(),
      expected,
      1e-6,
      'both',
    );
    assert.deepEqual([...ops.einsum('ba', b).shape], [7, 5]);
    const same = ops.einsum('ij->ij', b);
    assert.ok(same.buffer !== b.buffer);
    assert.deepEqual([...ops.einsum('ij,jk->ik', ops.ones([3, 1], { device }), b).shape], [3, 7]);
    refuses('DS_ARGUMENT', /as many operands/, () => ops.einsum('ij,jk->ik', a));
    refuses('DS_SHAPE', /2 dims for "ij"/, () => ops.einsum('ij->i', a));
    refuses('DS_SHAPE', /one size for "i"/, () => ops.einsum('ij,ik->jk', b, b.transpose()));
    refuses('DS_ARGUMENT', /after "->"/, () => ops.einsum('ij->iz', b));
    refuses('DS_ARGUMENT', /after "->"/, () => ops.einsum('ij->ii', b));
    refuses('DS_ARGUMENT', /letters/, () => ops.einsum('i1->i', b));
    refuses('DS_ARGUMENT', /an equation such as/, () => ops.einsum(b as never, b));
  }),
  composedCase('matmul of vectors, from the left and from the right', (device) => {
    const row = countingTensor(device, [2]).add(1); // 1, 2
    const table = countingTensor(device, [2, 3]); // 0, 1, 2 and 3, 4, 5
    expectTensor(row.matmul(table), 'f32', [6, 9, 12]);
    expectTensor(countingTensor(device, [3]).matmul(table.transpose(0, 1)), 'f32', [5, 14]);
    expectTensor(table.matmul(countingTensor(device, [3])), 'f32', [5, 14]);
    expectTensor(row.matmul(row), 'f32', 5);
    // A dim of one element stays; only that of the vector goes.
    expectTensor(row.matmul(countingTensor(device, [2, 1])), 'f32', [2]);
    expectTensor(countingTensor(device, [1, 3]).matmul(countingTensor(device, [3])), 'f32', [5]);
    const batch = countingTensor(device, [2, 2, 3]);
    expectTensor(row.matmul(batch), 'f32', [
      [6, 9, 12],
      [24, 27, 30],
    ]);
    expectTensor(batch.matmul(countingTensor(device, [3])), 'f32', [
      [5, 14],
      [23, 32],
    ]);
    expectTensor(row.matmul(countingTensor(device, [3, 2, 1])), 'f32', [[2], [8], [14]]);
    refuses('DS_SHAPE', /matmul/, () => row.matmul(countingTensor(device, [3, 2])));
    refuses('DS_SHAPE', /matmul: expected \[.., M, K\]/, () => table.matmul(row));
    refuses('DS_SHAPE', /matmul: expected \[.., M, K\]/, () =>
      row.matmul(countingTensor(device, [])),
    );
    refuses('DS_SHAPE', /matmul: expected \[.., M, K\]/, () =>
      countingTensor(device, []).matmul(table),
    );
  }),
  composedCase('outer, dot and bmm', (device) => {
    const [a, b] = [countingTensor(device, [3]), countingTensor(device, [2]).add(1)];
    expectTensor(a.outer(b), 'f32', [
      [0, 0],
      [1, 2],
      [2, 4],
    ]);
    expectTensor(a.dot(a), 'f32', 5);
    refuses('DS_SHAPE', /outer.*two vectors/, () => a.outer(countingTensor(device, [2, 2])));
    refuses('DS_SHAPE', /bmm/, () =>
      countingTensor(device, [2, 2]).bmm(countingTensor(device, [2, 2])),
    );
  }),
];
