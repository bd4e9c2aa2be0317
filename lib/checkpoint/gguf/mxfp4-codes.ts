// Converts MXFP4 blocks of GGUF files to the codes of Hugging Face's files: the same numbers in
// another order. Sources: ggml's block_mxfp4, transformers' weights of gpt-oss.

/** Bytes of a block of 32 values, and of its codes. The block's first byte is its scale. */
export const MXFP4_BLOCK = { bytes: 17, codes: 16 } as const;

/**
 * Writes the codes of `count` blocks to `out`. Byte i of a GGUF block has the codes of values i and
 * 16 + i; byte i of the result has the codes of values 2i and 2i + 1.
 */
export function mxfp4Codes(packed: Uint8Array, count: number, out: Uint8Array): void {
  for (let block = 0; block < count; ++block) {
    const from = block * MXFP4_BLOCK.bytes + 1;
    for (let i = 0; i < 16; ++i) {
      // Values 2i and 2i + 1 are in the same half of their bytes.
      const shift = i < 8 ? 0 : 4;
      const low = ((packed[from + ((2 * i) & 15)] as number) >> shift) & 15;
      const high = ((packed[from + ((2 * i + 1) & 15)] as number) >> shift) & 15;
      out[block * MXFP4_BLOCK.codes + i] = low | (high << 4);
    }
  }
}
