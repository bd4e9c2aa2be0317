// Measures the memory of an inference engine during generation, after every tenth of the tokens.
import { type inference, initInference, liveTensors, nn } from '../lib/index.js';
import { device as findDevice } from '../lib/runtime/device.js';
import type { Options } from './main.js';

/** Memory in use after `tokens` generated tokens. */
export interface MemoryRow {
  tokens: number;
  /** Bytes of the device, and its buffers. */
  inUse: number;
  liveBuffers: number;
  liveTensors: number;
  /** Bytes of the process, as the system counts them. */
  resident: number;
  blocksUsed: number;
}

const VOCABULARY = 31;

/** Prompts of 1 to 20 tokens with 25 new ones each, half of them sampled. */
export function mixedRequests(first: number): inference.GenerateRequest[] {
  return Array.from({ length: 40 }, (_, i) => ({
    prompt: Array.from({ length: 1 + (i % 20) }, (_, k) => (first + i * k) % VOCABULARY),
    maxNewTokens: 25,
    temperature: i % 2,
    ignoreEos: true,
    topK: 1 + (i % 5),
  }));
}

/** A tiny model behind a cache that is too small for all its requests. */
export function tinyEngine(device: string): Promise<inference.InferenceEngine> {
  const sizes = { vocabSize: VOCABULARY, maxSeq: 64, layers: 1, heads: 2, channels: 8 };
  const config = { device, kv_cache: { block_size: 16, blocks: 40 } };
  return initInference(new nn.models.GPT2(sizes), config);
}

/** [--tokens 1000000] [--device cpu]. */
export async function inferenceMemoryBench(options: Options): Promise<object> {
  const tokens = Number(options.tokens ?? 1_000_000);
  const name = options.device ?? 'cpu';
  const engine = await tinyEngine(name);
  const rows: MemoryRow[] = [];
  for (let i = 0; engine.stats().generatedTokens < tokens; ++i) {
    await engine.generateBatch(mixedRequests(i));
    const { generatedTokens, blocksUsed } = engine.stats();
    if (generatedTokens < ((rows.length + 1) * tokens) / 10) continue;
    const { inUse, liveBuffers } = findDevice(name).memory;
    const resident = process.memoryUsage.rss();
    const row = { tokens: generatedTokens, inUse, liveBuffers, resident, blocksUsed };
    rows.push({ ...row, liveTensors: liveTensors() });
    console.log(JSON.stringify(rows.at(-1)));
  }
  const stats = engine.stats();
  await engine.destroy();
  return { rows, stats };
}
