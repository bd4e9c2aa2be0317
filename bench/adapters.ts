// Compares the throughput of a batch with several adapters and of the same batch without adapters.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeAlone } from '../lib/checkpoint/index.js';
import { type inference, initInference, nn, seed } from '../lib/index.js';
import { cpu, type Device, device as findDevice } from '../lib/runtime/device.js';
import type { DType } from '../lib/runtime/dtype.js';
import { held, randn } from '../lib/tensor/index.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median } from './report.js';

const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/** Saves random factors of all linear layers except the head, as PEFT does. */
async function save(
  model: nn.models.CausalLM,
  dir: string,
  { r, dtype, device }: { r: number; dtype: DType; device: Device },
): Promise<void> {
  const linears = [...model.namedModules()].filter(
    (pair): pair is [string, nn.Linear] =>
      pair[1] instanceof nn.Linear && !pair[0].endsWith('lm_head'),
  );
  const sources = linears.flatMap(([name, { weight }]) => {
    const [outputs = 0, inputs = 0] = weight.shape;
    const one = (factor: string, shape: number[]) => ({
      name: `base_model.model.${name}.lora_${factor}.weight`,
      dtype,
      shape,
      values: held(() => randn(shape, { device }).mul(0.01).to(dtype).to(cpu())),
    });
    return [one('A', [r, inputs]), one('B', [outputs, r])];
  });
  mkdirSync(dir, { recursive: true });
  await writeAlone(join(dir, 'adapter_model.safetensors'), sources);
  for (const { values } of sources) values.release();
  const config = { peft_type: 'LORA', r, lora_alpha: 2 * r, target_modules: 'all-linear' };
  writeFileSync(join(dir, 'adapter_config.json'), JSON.stringify(config));
}

/** Tokens per second of `clients` requests; request i uses adapter i % `adapters`. */
async function rate(
  engine: inference.InferenceEngine,
  { adapters, clients, prompt, tokens }: Record<string, number> & { adapters: number },
): Promise<number> {
  const token = (): number => Math.floor(Math.random() * engine.module.vocabSize);
  const requests = Array.from({ length: clients as number }, (_, i) => ({
    prompt: Array.from({ length: prompt as number }, token),
    maxNewTokens: tokens as number,
    ignoreEos: true,
    ...(adapters > 0 && { adapter: `a${i % adapters}` }),
  }));
  const start = performance.now();
  await engine.generateBatch(requests);
  return ((clients as number) * (tokens as number) * 1000) / (performance.now() - start);
}

/**
 * [--model llama-8B] [--device cuda] [--dtype bf16|fp16|fp32] [--count 32] [--rank 16]
 * [--clients 128] [--prompt 32] [--tokens 256] [--rounds 3]. `ratio`: the speed against the first
 * row, without adapters.
 */
export async function adaptersBench(options: Options): Promise<object> {
  const { model = 'llama-8B', device = 'cuda', dtype = 'bf16' } = options;
  const [count, r] = [Number(options.count ?? 32), Number(options.rank ?? 16)];
  const clients = Number(options.clients ?? 128);
  const [prompt, tokens] = [Number(options.prompt ?? 32), Number(options.tokens ?? 256)];
  const rounds = Number(options.rounds ?? 3);
  const [home, type] = [findDevice(device), DTYPES[dtype as keyof typeof DTYPES]];
  seed(1);
  const result = benchModel({ model, ...(options.layers && { layers: options.layers }) }, 4096);
  result.to(home, type);
  const dir = mkdtempSync(join(tmpdir(), 'ds-bench-adapters-'));
  try {
    await save(result, dir, { r, dtype: type, device: home });
    const begun = performance.now();
    const names = Array.from({ length: count }, (_, i) => [`a${i}`, dir] as const);
    const engine = await initInference(
      result,
      {
        device,
        max_out_tokens: prompt + tokens,
        max_ragged_sequence_count: clients,
        enable_cuda_graph: 'auto',
        kv_cache: { prefix_caching: false },
      },
      { adapters: Object.fromEntries(names) },
    );
    const start_s = (performance.now() - begun) / 1000;
    console.log(JSON.stringify({ start_s }));
    const rows: object[] = [];
    let base = 0;
    for (const adapters of [0, 1, count]) {
      const sizes = { adapters, clients, prompt, tokens };
      // Records the steps.
      await rate(engine, { ...sizes, tokens: Math.min(tokens, 64) });
      const rates: number[] = [];
      for (let i = 0; i < rounds; ++i) rates.push(await rate(engine, sizes));
      const speed = median(rates);
      base ||= speed;
      const row = { ...sizes, rank: r, tokens_per_s: speed, ratio: speed / base };
      console.log(JSON.stringify(row));
      rows.push(row);
    }
    await engine.destroy();
    return { start_s, rows };
  } finally {
    rmSync(dir, { recursive: true });
  }
}
