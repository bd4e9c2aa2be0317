// Keys and values in FP8 on the CPU.
import { initInference, nn } from '../../lib/index.js';
import { testOnCpu } from '../support/jest-cases.js';
import { cases } from './kv-cache-fp8.cases.js';

testOnCpu('fp8 keys and values', cases);

test('batch-invariant forwards refuse FP8 keys and values', async () => {
  const sizes = { vocabSize: 17, maxSeq: 16, layers: 1, channels: 8, heads: 2, hidden: 8 };
  const config = { device: 'cpu', batch_invariant: true, kv_cache: { dtype: 'fp8_e4m3' } } as const;
  await expect(initInference(new nn.models.Llama(sizes), config)).rejects.toThrow(
    /kv_cache.dtype: expected "auto" with batch_invariant, got "fp8"/,
  );
});
