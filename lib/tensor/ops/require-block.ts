// Checks the block size of an attention layout without importing the kernels.
import { argumentError } from '../../runtime/input-errors.js';
import { requireInteger } from '../../runtime/require-number.js';

const MIN_BLOCK = 16;

/** Returns `block`. Throws DS_ARGUMENT unless it is a power of two of at least MIN_BLOCK tokens. */
export function requireBlock(op: string, block: unknown): number {
  const tokens = requireInteger(op, block, 1);
  if (tokens >= MIN_BLOCK && Number.isInteger(Math.log2(tokens))) return tokens;
  throw argumentError(
    op,
    `a power of two of tokens, at least ${MIN_BLOCK}`,
    String(tokens),
    'The kernels hide 16 x 16 scores as a whole: set block to 16, 32, 64 or 128, and the numbers of blocks accordingly.',
  );
}
