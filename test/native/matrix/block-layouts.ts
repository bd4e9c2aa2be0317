// A layout of blocks that attention's cases see: a rule by head and block, and its bits.

const { floor } = Math;

/**
 * Whether a layout lets block `query` of head h see block `key`: a window, a column, and whatever.
 */
export function seesBlock(h: number, query: number, key: number): boolean {
  if ((query * 7 + h) % 11 === 3) return false;
  return floor(query / 3) === floor(key / 3) || key === h || (query * 5 + key * 3 + h) % 7 === 0;
}

/** The bits of a layout of `blocks` blocks by `heads` heads. */
export function layoutWords(heads: number, blocks: number): Float64Array {
  const row = floor((blocks + 31) / 32);
  const words = new Int32Array(heads * blocks * row);
  for (let h = 0; h < heads; ++h)
    for (let i = 0; i < blocks; ++i)
      for (let j = 0; j < blocks; ++j)
        if (seesBlock(h, i, j)) words[(h * blocks + i) * row + floor(j / 32)]! |= 1 << (j % 32);
  return Float64Array.from(words);
}
