// Sums of products in Einstein's notation, as a chain of matrix products.

import type { DsError } from '../../errors.js';
import { valueError } from '../../runtime/input-errors.js';
import { required } from '../../runtime/required.js';
import { describe, numel } from '../../runtime/view.js';
import { scope } from '../scope.js';
import type { Tensor } from '../tensor.js';
import { clone, diagonal } from './arrange.js';
import { mul } from './elementwise.js';
import { matmul } from './matmul.js';
import { sum } from './reduce.js';
import { requireSameType, requireTensor, shapeError } from './shapes.js';
import { expand, permute, reshape } from './views.js';

/** A tensor with a unique name per dim. */
interface Term {
  x: Tensor;
  /** One letter per dim; the dims of "..." have numbers. */
  labels: readonly string[];
}

// Operations: products.

/**
 * Returns the sums over the letters that `equation` does not list after "->":
 * einsum('bij,bjk->bik', a, b). A letter twice in one operand takes its diagonal. "..." stands for
 * leading dims that broadcast. Without "->" the letters that occur once follow in alphabetical
 * order after the dims of "...". Matrix products combine the operands from left to right. Operands
 * have one floating dtype and one device. Throws DS_ARGUMENT for a bad equation, DS_SHAPE,
 * DS_DTYPE, DS_DEVICE. As torch.einsum.
 */
export function einsum(equation: string, ...operands: Tensor[] | [readonly Tensor[]]): Tensor {
  const list = (Array.isArray(operands[0]) ? operands[0] : operands) as readonly Tensor[];
  const { inputs, output } = parse(equation, list);
  return scope(() => {
    const terms = list.map((x, i) => takeDiagonals(x, required(inputs[i]), equation));
    broadcast(terms, equation);
    let [left, ...rest] = terms as [Term, ...Term[]];
    for (let right = rest.shift(); right; right = rest.shift()) {
      const keptLabels = new Set([...output, ...rest.flatMap(({ labels }) => labels)]);
      left = contract(left, right, keptLabels);
    }
    const { x, labels } = sumTerm(left, new Set(output));
    const out = permute(
      x,
      output.map((label) => labels.indexOf(label)),
    );
    return list.includes(x) ? clone(out) : out;
  });
}

interface Parsed {
  inputs: string[][];
  output: string[];
}

function parse(equation: unknown, operands: readonly Tensor[]): Parsed {
  if (typeof equation !== 'string')
    throw malformedError('an equation such as "ij,jk->ik"', equation);
  const [left = '', right, surplus] = equation.replaceAll(' ', '').split('->');
  const names = left.split(',');
  if (surplus !== undefined) throw malformedError('at most one "->"', equation);
  if (names.length !== operands.length) {
    throw malformedError(`as many operands as it names, ${names.length}`, `${operands.length}`);
  }
  for (const x of operands) requireTensor('einsum', x);
  for (const x of operands) requireSameType('einsum', required(operands[0]), x);
  const dots = names.map((name, i) => {
    const letters = lettersOf(name, equation);
    const { ndim } = required(operands[i]);
    const ellipsisDims = ndim - letters.length;
    if (ellipsisDims === 0 || (ellipsisDims > 0 && name.includes('...'))) return ellipsisDims;
    const what = describe(required(operands[i]));
    throw shapeError(
      'einsum',
      `${letters.length} dims for "${name}"`,
      what,
      '"..." stands for any.',
    );
  });
  const max = Math.max(0, ...dots);
  const leading = (count: number): string[] =>
    Array.from({ length: count }, (_, d) => String(max - count + d));
  const expandedName = (name: string, count: number): string[] => {
    const letters = lettersOf(name, equation);
    const at = name.includes('...') ? name.indexOf('...') : 0;
    return [...letters.slice(0, at), ...leading(count), ...letters.slice(at)];
  };
  const inputs = names.map((name, i) => expandedName(name, required(dots[i])));
  const output =
    right === undefined
      ? [...leading(max), ...implicitOutput(inputs.flat())]
      : expandedName(right, right.includes('...') ? max : 0);
  requireOutput(output, inputs, equation);
  return { inputs, output };
}

function lettersOf(name: string, equation: string): string[] {
  if (/^[a-zA-Z]*(\.\.\.)?[a-zA-Z]*$/.test(name)) return [...name.replace('...', '')];
  throw malformedError(`letters and at most one "..." in "${name}"`, equation);
}

function implicitOutput(labels: readonly string[]): string[] {
  const letters = labels.filter((label) => /[a-zA-Z]/.test(label));
  return letters
    .filter((label, i) => letters.indexOf(label) === i && letters.lastIndexOf(label) === i)
    .sort();
}

function requireOutput(output: readonly string[], inputs: readonly string[][], equation: string) {
  const known = new Set(inputs.flat());
  const isSound = new Set(output).size === output.length && output.every((each) => known.has(each));
  if (!isSound) throw malformedError('letters of the operands after "->", each once', equation);
}

function malformedError(expected: string, got: unknown): DsError {
  const hint = 'For example einsum("bij,bjk->bik", a, b).';
  return valueError('einsum', expected, got, hint);
}

/** Replaces dims of x that share a letter by their diagonal. */
function takeDiagonals(x: Tensor, labels: readonly string[], equation: string): Term {
  const repeated = labels.findIndex((label, d) => labels.indexOf(label) !== d);
  if (repeated < 0) return { x, labels };
  const label = required(labels[repeated]);
  const first = labels.indexOf(label);
  if (x.shape[first] !== x.shape[repeated])
    throw sizeMismatchError(label, x.shape[first], x.shape[repeated], equation);
  const kept = labels.filter((_, d) => d !== first && d !== repeated);
  return takeDiagonals(diagonal(x, 0, first, repeated), [...kept, label], equation);
}

function sizeMismatchError(label: string, a: unknown, b: unknown, equation: string): DsError {
  const name = /\d/.test(label) ? '"..."' : `"${label}"`;
  return shapeError('einsum', `one size for ${name} of "${equation}"`, `${a} and ${b}`);
}

/** Expands every dim of size 1 to the size of its label in other operands. */
function broadcast(terms: Term[], equation: string): void {
  const sizes = new Map<string, number>();
  for (const { x, labels } of terms) {
    for (const [d, label] of labels.entries()) {
      const [known, size] = [sizes.get(label) ?? 1, required(x.shape[d])];
      if (known !== 1 && size !== 1 && known !== size)
        throw sizeMismatchError(label, known, size, equation);
      sizes.set(label, known === 1 ? size : known);
    }
  }
  for (const term of terms) {
    term.x = expand(
      term.x,
      term.labels.map((label) => required(sizes.get(label))),
    );
  }
}

/** Sums over the dims that no later product or output uses. */
function sumTerm({ x, labels }: Term, keptLabels: ReadonlySet<string>): Term {
  const dims = labels.flatMap((label, d) => (keptLabels.has(label) ? [] : [d]));
  if (dims.length === 0) return { x, labels };
  return { x: sum(x, dims), labels: labels.filter((label) => keptLabels.has(label)) };
}

/**
 * Returns the product of two terms, summed over shared dims that no later term uses: one batched
 * matrix product.
 */
function contract(left: Term, right: Term, keptLabels: ReadonlySet<string>): Term {
  const a = sumTerm(left, new Set([...keptLabels, ...right.labels]));
  const b = sumTerm(right, new Set([...keptLabels, ...left.labels]));
  const shared = a.labels.filter((label) => b.labels.includes(label));
  const batch = shared.filter((label) => keptLabels.has(label));
  const inner = shared.filter((label) => !keptLabels.has(label));
  const rows = a.labels.filter((label) => !shared.includes(label));
  const columns = b.labels.filter((label) => !shared.includes(label));
  const labels = [...batch, ...rows, ...columns];
  const size = (term: Term, names: readonly string[]): number[] =>
    names.map((name) => required(term.x.shape[term.labels.indexOf(name)]));
  const orderTerm = (term: Term, names: readonly string[]): Tensor =>
    permute(
      term.x,
      names.map((name) => term.labels.indexOf(name)),
    );
  const shape = [...size(a, batch), ...size(a, rows), ...size(b, columns)];
  const lead = numel(size(a, batch));
  const [m, k, n] = [numel(size(a, rows)), numel(size(a, inner)), numel(size(b, columns))];
  const x = orderTerm(a, [...batch, ...rows, ...inner]);
  const y = orderTerm(b, [...batch, ...inner, ...columns]);
  if (inner.length === 0) {
    const products = mul(reshape(x, [lead, m, 1]), reshape(y, [lead, 1, n]));
    return { x: reshape(products, shape), labels };
  }
  const products = matmul(reshape(x, [lead, m, k]), reshape(y, [lead, k, n]));
  return { x: reshape(products, shape), labels };
}
