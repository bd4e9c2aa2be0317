// Gathers weights in 8 bits (zero_quantized_weights): every rank, including the owner, computes
// with the dequantized values. Source: ZeRO++'s qwZ.
import { held, Tensor } from '../tensor/index.js';
import { BlockCodes, hasCodes, releaseOn } from './block-codes.js';
import { type GatherUnit, gatherPlain } from './gathered-weights.js';

const BITS = 8;

/** Like gatherPlain(), with codes. Shards keep full precision. */
export const gatherCodes: GatherUnit = (place, flat, group, at) => {
  if (!hasCodes(flat.dtype)) return gatherPlain(place, flat, group, at);
  const numel = flat.numel / group.size;
  const codes = new BlockCodes(BITS, numel);
  const messages = codes.allocate(group.size, flat);
  const { memory } = place;
  if (memory && !memory.buffer.pinned) codes.write(memory, messages, group.rank, at.stream);
  else {
    const own = held(() => Tensor.empty([numel], flat.dtype, flat.device));
    place.load(own, at.stream);
    codes.write(own, messages, group.rank, at.stream);
    releaseOn(at.stream, own);
  }
  const { words } = codes;
  const from = messages.offset + group.rank * words;
  const mine = held(() => messages.alias([words], undefined, from));
  const work = group.allGather(messages, mine, at);
  return {
    wait: (stream) => {
      work.wait(stream);
      const { buffer, dtype, shape, strides } = flat;
      for (let rank = 0; rank < group.size; ++rank) {
        const shard = { buffer, dtype, shape, strides, offset: flat.offset + rank * numel };
        codes.read(messages, rank, shard, stream);
      }
      mine.release();
      releaseOn(stream, messages);
    },
  };
};
