// Counts the ops of a decoding step by name.
import { initInference, type nn } from '../lib/index.js';
import { observeKernels } from '../lib/runtime/call.js';
import { opNames } from '../lib/runtime/kernels.generated.js';

/** Ops of a step, in all and by name. */
export interface StepOps {
  total: number;
  by_name: Record<string, number>;
}

/** Ops of a generation of `tokens` tokens after a prompt of two. */
async function opsOf(model: nn.models.CausalLM, tokens: number): Promise<Map<string, number>> {
  const engine = await initInference(model, {
    device: model.computesIn.device.name,
    max_out_tokens: 64,
    async_scheduling: false,
    max_ragged_sequence_count: 1,
    kv_cache: { blocks: 2 },
  });
  const counts = new Map<string, number>();
  observeKernels((op) => () => {
    const name = opNames[op] as string;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  });
  try {
    const request = { prompt: [1, 2], maxNewTokens: tokens, temperature: 0, ignoreEos: true };
    await engine.generate(request);
  } finally {
    observeKernels(null);
    await engine.destroy();
  }
  return counts;
}

/**
 * Ops of a decoding step of one text, as the engine launches or records its kernels. On a GPU an op
 * is one launch. Exceptions: attention with split keys (two), and products with split inputs in
 * cuBLASLt.
 */
export async function opsOfStep(model: nn.models.CausalLM): Promise<StepOps> {
  const [few, more] = [await opsOf(model, 3), await opsOf(model, 4)];
  const by_name = Object.fromEntries(
    [...more].map(([name, count]) => [name, count - (few.get(name) ?? 0)]).filter(([, n]) => n),
  ) as Record<string, number>;
  const total = Object.values(by_name).reduce((sum, count) => sum + count, 0);
  return { total, by_name };
}
