// Layer factors: scales of each block's branches; a block with factor 0 is skipped.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { sharedTokens, type Tensor } from '../tensor/index.js';

/** Scales a branch by `factor` before it joins the stream. */
export function scaleBranch(branch: Tensor, factor: number): Tensor {
  return factor === 1 ? branch : branch.mul(factor);
}

/** Returns the layers that run, each with its factor; without factors, all layers. */
export function listRunning<Layer>(
  layers: readonly Layer[],
  factors: readonly number[] | null = null,
): { layer: Layer; index: number; factor: number }[] {
  return layers
    .map((layer, index) => ({ layer, index, factor: factors?.[index] ?? 1 }))
    .filter(({ factor }) => factor !== 0);
}

/** Throws DS_ARGUMENT unless there is a number >= 0 for each of `layers` layers. */
export function requireFactors(op: string, factors: unknown, layers: number): void {
  const isFactor = (value: unknown): boolean =>
    typeof value === 'number' && Number.isFinite(value) && value >= 0;
  // Array.from() instead of every(), which skips holes.
  const isList = Array.isArray(factors) && factors.length === layers;
  if (isList && Array.from(factors, isFactor).every(Boolean)) return;
  const got = Array.isArray(factors)
    ? `[${factors.map(formatValue).join(', ')}]`
    : formatValue(factors);
  const expected = `a list of ${layers} numbers >= 0, one for each block`;
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got });
}

/**
 * Throws DS_ARGUMENT if the first block would split the tokens of `x` over ranks, because it may
 * not run.
 */
export function requireOwnTokens(x: Tensor, factors: readonly number[] | null = null): void {
  const share = sharedTokens();
  if (!factors || !share || x.size(1) === share.count) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'layerFactors',
    expected: 'a model without sequenceParallel, because its first block splits the tokens',
    got: `${share.whole} tokens for blocks that get ${share.count}`,
    hint: 'Parallelize it without sequenceParallel, or remove progressive_layer_drop.',
  });
}
