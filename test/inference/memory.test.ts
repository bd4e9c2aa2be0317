// Tests that an engine's memory does not grow with the number of generated tokens.
import { mixedRequests, tinyEngine } from '../../bench/inference-memory.js';
import { liveTensors } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';

test('memory is flat over 20,000 tokens', async () => {
  const engine = await tinyEngine('cpu');
  for (let i = 0; i < 2; ++i) await engine.generateBatch(mixedRequests(i));
  const { inUse, liveBuffers } = cpu().memory;
  const tensors = liveTensors();
  for (let i = 2; i < 20; ++i) await engine.generateBatch(mixedRequests(i));
  expect(engine.stats()).toMatchObject({ running: 0, blocksUsed: 0, generatedTokens: 20_000 });
  // The collector may free tensors from the start; usage must not rise.
  expect(cpu().memory.inUse).toBeLessThanOrEqual(inUse);
  expect(cpu().memory.liveBuffers).toBeLessThanOrEqual(liveBuffers);
  expect(liveTensors()).toBeLessThanOrEqual(tensors);
  await engine.destroy();
});
