// One rank that trains every scenario at every stage and reports the values that must agree.
import { createHash } from 'node:crypto';
import { initDistributed } from '../../lib/comm/index.js';
import { type DsConfig, type Engine, initialize } from '../../lib/index.js';
import { seed, type Tensor } from '../../lib/tensor/index.js';
import { observeCreation } from '../../lib/tensor/tensor.js';
import { weightBits } from '../e2e/tiny-training.js';
import { apiScenarios } from './api-scenarios.js';
import { type Scenario, shapes, train } from './shape-scenarios.js';

export interface ShapesJob {
  device: 'cpu' | 'cuda';
}

export interface ShapeResult {
  scenario: string;
  setting: string;
  stage: number;
  inPairs: boolean;
  hash: string;
  values: number[];
  /** Tensors of the run that are not freed when its engine is destroyed. */
  leaked: number;
  error: string | null;
}

type Zero = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean> & {
  stage: 0 | 1 | 2 | 3;
  offload_optimizer?: object;
};

const settings: { name: string; zero: Zero }[] = [
  ...([0, 1, 2, 3] as const).map((stage) => ({ name: `stage ${stage}`, zero: { stage } })),
  {
    name: 'stage 3, nothing kept or fetched ahead',
    zero: {
      stage: 3,
      stage3_prefetch_bucket_size: 0,
      stage3_max_reuse_distance: 0,
      stage3_max_live_parameters: 0,
      stage3_param_persistence_threshold: 0,
    },
  },
  {
    name: 'stage 3, nothing kept, offload',
    zero: {
      stage: 3,
      overlap_comm: false,
      stage3_max_reuse_distance: 0,
      stage3_param_persistence_threshold: 0,
      offload_optimizer: { device: 'cpu', super_offload: true },
    },
  },
  {
    name: 'stage 3, nothing kept, weights offloaded too',
    zero: {
      stage: 3,
      stage3_max_reuse_distance: 0,
      stage3_param_persistence_threshold: 0,
      offload_optimizer: { device: 'cpu', super_offload: false },
      offload_param: { device: 'cpu' },
    },
  },
  {
    name: 'stage 2, offload',
    zero: { stage: 2, offload_optimizer: { device: 'cpu', super_offload: false } },
  },
];

/** Only AdamW supports speculative updates. */
function possible(zero: Zero, { config }: Scenario): Zero {
  const { offload_optimizer: offload } = zero;
  if (!config?.optimizer || !offload) return zero;
  return { ...zero, offload_optimizer: { ...offload, super_offload: false } };
}

async function build(scenario: Scenario, zero: Zero): Promise<Engine> {
  seed(99);
  const model = scenario.model();
  const { engine } = await initialize({
    model,
    modelParameters: scenario.parameters?.(model),
    config: {
      train_micro_batch_size_per_gpu: 4,
      optimizer: { type: 'AdamW', params: { lr: 0.02, weight_decay: 0.1 } },
      bf16: { enabled: true },
      gradient_clipping: 0.5,
      ...scenario.config,
      zero_optimization: possible(zero, scenario),
    },
  });
  return engine;
}

async function run(
  scenario: Scenario,
  setting: { name: string; zero: Zero },
): Promise<ShapeResult> {
  const result: ShapeResult = {
    scenario: scenario.name,
    setting: setting.name,
    stage: setting.zero.stage,
    inPairs: scenario.inPairs ?? false,
    hash: '',
    values: [],
    leaked: 0,
    error: null,
  };
  // Keeps all tensors from garbage collection, which would change the count.
  const output: Tensor[] = [];
  observeCreation((tensor) => output.push(tensor));
  const engine = await build(scenario, setting.zero);
  try {
    result.values = (scenario.train ?? train)(engine);
    const hash = createHash('sha1');
    for (const text of weightBits(engine).values()) hash.update(text);
    result.hash = hash.digest('hex');
  } catch (error) {
    result.error = String((error as Error).stack)
      .split('\n')
      .slice(0, 6)
      .join('\n');
  }
  engine.destroy();
  observeCreation(null);
  result.leaked = output.filter(({ isDisposed }) => !isDisposed).length;
  const { module } = engine;
  for (const tensor of [...module.parameters(), ...module.buffers()]) tensor.dispose();
  return result;
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] ?? '') as ShapesJob;
  const world = await initDistributed(job.device === 'cpu' ? { device: 'cpu' } : {});
  const results: ShapeResult[] = [];
  for (const scenario of [...shapes, ...apiScenarios]) {
    for (const setting of settings) results.push(await run(scenario, setting));
  }
  await world.destroy();
  console.log(JSON.stringify(results));
}

void main();
