// Attention within chunks of consecutive tokens: a token sees the earlier tokens of its own chunk.
// Source: Llama 4.
import { required } from '../runtime/required.js';
import { concat, scope, type Tensor } from '../tensor/index.js';

/** Returns the number of the chunk of each position, an integer tensor, as i32. */
export const chunkOf = (positions: Tensor, chunk: number): Tensor =>
  scope(() => {
    // f32 may round a whole quotient down, to the previous chunk; the half prevents it.
    const divided = (x: Tensor): Tensor =>
      x
        .to('f32')
        .add(0.5)
        .mul(1 / chunk)
        .floor()
        .to('i32');
    // f32 rounds positions above 2^24: the quotient of the remainder corrects the first quotient.
    const quotient = divided(positions);
    return quotient.add(divided(positions.to('i32').sub(quotient.mul(chunk))));
  });

/** The first query and the first key of a chunk, by their indices in q and k. */
export interface ChunkPlace {
  query: number;
  key: number;
}

/**
 * Returns the causal attention of q [B, H, T, D], the last T of the S tokens of k and v [B, Hk, S,
 * D]. `attend` computes it for the queries and keys of one chunk.
 */
export const attendChunks = (
  { q, k, v }: { q: Tensor; k: Tensor; v: Tensor },
  chunk: number,
  attend: (q: Tensor, k: Tensor, v: Tensor, at: ChunkPlace) => Tensor,
): Tensor =>
  scope(() => {
    const [T, S] = [q.size(2), k.size(2)];
    const first = S - T;
    const parts: Tensor[] = [];
    for (let begin = Math.floor(first / chunk) * chunk; begin < S; begin += chunk) {
      const count = Math.min(chunk, S - begin);
      const from = Math.max(first, begin);
      const [query, key] = [from - first, begin];
      const queries = q.narrow(2, query, begin + count - from);
      const [keys, values] = [k, v].map((one) => one.narrow(2, key, count)) as [Tensor, Tensor];
      parts.push(attend(queries, keys, values, { query, key }));
    }
    return parts.length === 1 ? required(parts[0]) : concat(parts, 2);
  });
