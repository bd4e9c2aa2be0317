// One rank of a tensor-parallel engine with adapters; reports the tokens of mixed batches.
import { type inference, initInference } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';

/** The one argument, as JSON. */
export interface AdapterRanksJob {
  kind: DeviceKind;
  ranks: number;
  folder: string;
  adapters: Record<string, string>;
  prompts: number[][];
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] as string) as AdapterRanksJob;
  const { kind, ranks, folder, adapters, prompts } = job;
  const config = { dtype: 'fp32', tensor_parallel: { tp_size: ranks } } as const;
  const device = kind === 'cpu' ? { device: 'cpu' } : {};
  const engine = await initInference(folder, { ...config, ...device }, { adapters });
  const names = [undefined, ...Object.keys(adapters)];
  const requests: inference.GenerateRequest[] = names.flatMap((adapter) =>
    prompts.map((prompt) => ({
      prompt,
      temperature: 0,
      ignoreEos: true,
      maxNewTokens: 8,
      ...(adapter !== undefined && { adapter }),
    })),
  );
  const found = await engine.generateBatch(requests);
  let refusal = '';
  await engine.loadAdapter('late', folder).catch((error: Error) => {
    refusal = error.message;
  });
  await engine.destroy();
  console.log(JSON.stringify({ tokens: found.map(([one]) => one?.tokens), refusal }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
