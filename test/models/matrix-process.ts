// One rank that trains the tiny models of the chosen families split over ranks, or generates with
// them, and reports the losses or tokens.
import { initDistributed, type MeshOptions } from '../../lib/comm/index.js';
import {
  type DsConfig,
  type Engine,
  initInference,
  initialize,
  type PipelineEngine,
} from '../../lib/index.js';
import { batchOf, familyModel, folderOf, STEPS, trainingConfig } from './family-rows.js';
import { SPLIT_FAMILIES } from './split-families.js';

/** The one argument, as JSON. */
export interface MatrixJob {
  mesh: MeshOptions;
  config: Partial<DsConfig>;
  /** Prompts by family, which the ranks continue together instead of training. */
  prompts?: Record<string, number[]>;
}

/** Losses or tokens by family, or the message of an error. */
export type MatrixReport = Record<string, number[] | string>;

async function step(engine: Engine, index: number, isPipelined: boolean): Promise<number> {
  const { vocabSize } = engine.module as unknown as { vocabSize: number };
  const batch = batchOf(vocabSize, index, engine.device);
  if (isPipelined) {
    return (await (engine as PipelineEngine).trainBatch([batch].values())).item();
  }
  const loss = engine.forward(...batch);
  const value = loss.item();
  engine.backward(loss);
  engine.step();
  return value;
}

async function trainLosses(family: string, { mesh, config }: MatrixJob): Promise<number[]> {
  const model = await familyModel(family);
  const { engine } = await initialize({ model, config: trainingConfig(config) });
  const losses: number[] = [];
  for (let i = 0; i < STEPS; ++i) losses.push(await step(engine, i, (mesh.pp ?? 1) > 1));
  engine.destroy();
  return losses;
}

const NEW_TOKENS = 24;

async function generateTokens(family: string, prompt: number[]): Promise<number[]> {
  const engine = await initInference(folderOf(family), {
    dtype: 'fp32',
    tensor_parallel: { tp_size: 2 },
    max_out_tokens: 64,
    device: 'cpu',
  });
  const greedy = { temperature: 0, ignoreEos: true, maxNewTokens: NEW_TOKENS } as const;
  const [text] = await engine.generate({ prompt, ...greedy });
  await engine.destroy();
  return [...(text?.tokens ?? [])];
}

async function main(job: MatrixJob): Promise<void> {
  const world = await initDistributed({ mesh: job.mesh, device: 'cpu' });
  const report: MatrixReport = {};
  const { prompts } = job;
  for (const family of prompts ? Object.keys(prompts) : SPLIT_FAMILIES) {
    try {
      report[family] = prompts
        ? await generateTokens(family, prompts[family] as number[])
        : await trainLosses(family, job);
    } catch (error) {
      report[family] = (error as Error).message;
    }
  }
  await world.destroy();
  console.log(JSON.stringify(report));
}

if (process.argv[2]) void main(JSON.parse(process.argv[2]) as MatrixJob);
