// Checks the arguments of backward(): tensors in a graph, and a seed for each non-scalar.
import { DsError, type DsErrorCode } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { describe } from '../runtime/view.js';
import { Tensor } from './tensor.js';

/** Throws DS_ARGUMENT, DS_AUTOGRAD, DS_SHAPE, DS_DTYPE, DS_DEVICE: see backward(). */
export function requireRoots(roots: readonly Tensor[], seeds: readonly (Tensor | null)[]): void {
  requireLists(roots, seeds);
  for (const [i, root] of roots.entries()) requireSeed(root, seeds[i] ?? null);
}

function requireLists(roots: unknown, seeds: unknown): void {
  const isRoot = (item: unknown): boolean => item instanceof Tensor;
  const isSeed = (item: unknown): boolean => item == null || item instanceof Tensor;
  const isList = Array.isArray(roots) && roots.length > 0 && roots.every(isRoot);
  if (!isList) throw misuse('a tensor, or a list of tensors', roots, 'Call loss.backward().');
  if (Array.isArray(seeds) && seeds.every(isSeed)) {
    if (seeds.length <= roots.length) return;
    throw misuse(`at most ${roots.length} seeds`, seeds, 'A seed belongs to a root.');
  }
  throw misuse('a tensor like the root as its seed', seeds, 'For a factor, scale the loss.');
}

function misuse(expected: string, got: unknown, hint: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'backward',
    expected,
    got: formatValue(got),
    hint,
  });
}

function requireSeed(root: Tensor, seed: Tensor | null): void {
  const fail = (code: DsErrorCode, expected: string, got: string, hint = ''): never => {
    throw new DsError({ code, op: 'backward', expected, got, hint });
  };
  const what = describe(root);
  const { device } = root;
  if (!root.requiresGrad) {
    const hint =
      'Was it computed under noGrad(), or detached? Call requireGrad() on the trained tensors.';
    fail('DS_AUTOGRAD', 'a tensor computed from one that requires a gradient', what, hint);
  }
  if (!seed) {
    if (root.numel === 1) return;
    fail('DS_AUTOGRAD', 'a scalar loss or a seed', what, 'Reduce it with mean() or sum().');
    return;
  }
  if (!sameSizes(root.shape, seed.shape)) {
    fail('DS_SHAPE', `a seed like its root, ${what}`, describe(seed));
  }
  if (root.dtype !== seed.dtype) {
    fail('DS_DTYPE', `a seed like its root, ${what}`, describe(seed), `.to('${root.dtype}')`);
  }
  if (device === seed.device) return;
  const { name } = device;
  fail('DS_DEVICE', `a seed on its root's ${name}`, `one on ${seed.device.name}`, `.to('${name}')`);
}

const sameSizes = (a: readonly number[], b: readonly number[]): boolean =>
  a.length === b.length && a.every((size, d) => size === b[d]);
