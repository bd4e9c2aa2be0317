// Measures the training throughput of GPT-2 and Llama on random tokens, as the PyTorch scripts in
// bench/peers do.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Distributed, joinLaunched } from '../lib/comm/index.js';
import type { Engine } from '../lib/engine/engine.js';
import { PipelineEngine } from '../lib/engine/pipeline-engine.js';
import { type DsConfig, initialize } from '../lib/index.js';
import type { CausalLM } from '../lib/models/index.js';
import { parallelize } from '../lib/parallel/index.js';
import { formatRoles, type RoleTimes, sumByRole } from '../lib/profiler/roles.js';
import type { TraceFile } from '../lib/profiler/trace-events.js';
import type { Device } from '../lib/runtime/device.js';
import { Tensor } from '../lib/tensor/index.js';
import * as checkpointing from '../lib/tensor/recompute/index.js';
import type { OptimizerState, UpdateGroup } from '../lib/zero/optimizer-state.js';
import type { WeightShard } from '../lib/zero/partition.js';
import { NvmeState } from '../lib/zero/state/placement/nvme.js';
import { StreamedState } from '../lib/zero/state/placement/streamed.js';
import { EventCommTimer } from './comm-timer.js';
import type { Options } from './main.js';
import { benchModel } from './models.js';
import { median, quantile } from './report.js';

/** Tokens that are the same on every rank: ranks that share a model read one batch. */
function tokensLike(count: number, vocabulary: number): Int32Array {
  let state = 1;
  return Int32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * vocabulary);
  });
}

/** How ranks share a model between them, by --tp and --pp; all others are data ranks. */
const axesOf = ({ tp, pp }: Options) => ({
  ...(tp ? { tp: Number(tp) } : {}),
  ...(pp ? { pp: Number(pp) } : {}),
});

type ZeroConfig = Exclude<DsConfig['zero_optimization'], boolean | undefined>;

function elementsOf(updateGroups: readonly UpdateGroup[]): number {
  return updateGroups
    .flatMap(({ partitions }) => partitions)
    .reduce((sum, { numel }) => sum + numel, 0);
}

function zeroSection(options: Options): ZeroConfig {
  const { stage, offload, deferred, overlap } = options;
  return {
    stage: Number(stage ?? (offload ? 2 : 0)) as 0 | 1 | 2 | 3,
    overlap_comm: overlap === undefined ? null : overlap === 'true',
    ...(offload
      ? {
          offload_optimizer: {
            ...(options.nvme ? { device: 'nvme', nvme_path: options.nvme } : { device: 'cpu' }),
            super_offload: deferred ? false : null,
            ratio: Number(options.ratio ?? 1),
            gpu_share: (options.share ?? 'auto') === 'auto' ? null : Number(options.share),
          },
        }
      : {}),
    ...weightsSection(options),
    ...(options['sub-group'] ? { sub_group_size: Number(options['sub-group']) } : {}),
    ...(options.live ? { stage3_max_live_parameters: Number(options.live) } : {}),
  };
}

/** Weights in a folder on a disk but for --max-in-cpu elements, or in host memory. */
function weightsSection(options: Options): Pick<ZeroConfig, 'offload_param'> {
  const { 'nvme-weights': nvme_path, 'offload-param': inMemory } = options;
  const max_in_cpu = Number(options['max-in-cpu'] ?? 0);
  if (nvme_path) return { offload_param: { device: 'nvme', nvme_path, max_in_cpu } };
  return inMemory ? { offload_param: { device: 'cpu' } } : {};
}

/** GB moved between memory and disk; null without state or weights on disk. */
function diskOf(state: OptimizerState, weights: readonly WeightShard[]): object | null {
  const places = weights.map(({ storage }) => storage.bytes.disk);
  const bytes = { state: state.bytes.disk, weights: places.reduce((a, b) => a + b, 0) };
  if (bytes.state + bytes.weights === 0) return null;
  const placements = state.updateGroups.map((share) => share.state.placement);
  const nvme = placements.find((placement) => placement instanceof NvmeState);
  return {
    state_gib: bytes.state / 2 ** 30,
    weights_gib: bytes.weights / 2 ** 30,
    ...(nvme instanceof NvmeState ? { state_file: nvme.disk } : {}),
  };
}

function configOf(
  options: Options,
  { batch, accumulation }: { batch: number; accumulation: number },
): DsConfig {
  return {
    train_micro_batch_size_per_gpu: batch,
    gradient_accumulation_steps: accumulation,
    gradient_clipping: Number(options.clip ?? 1),
    optimizer: { type: 'AdamW', params: { lr: 1e-4, weight_decay: 0.1 } },
    ...(options.precision === 'fp32' ? {} : precisionOf(options)),
    zero_optimization: zeroSection(options),
    ...(options.pp ? { pipeline: pipelineOf(options) } : {}),
  } as DsConfig;
}

/** Config of the weights' dtype; --bf16-moments stores the moments in bf16 too. */
function precisionOf(options: Options): Partial<DsConfig> {
  const { precision = 'bf16', fp8 } = options;
  const narrow = options['bf16-moments'];
  return {
    [precision]: { enabled: true, ...(narrow && { bf16_optimizer_states: true }) },
    ...(fp8 && { fp8: { enabled: true, recipe: fp8 } as DsConfig['fp8'] }),
  };
}

const pipelineOf = ({ pp, schedule = '1f1b', partition = 'best' }: Options) => ({
  stages: Number(pp),
  schedule,
  partition,
});

/** Dtype of the adapters and of the frozen weights; null without adapters. */
function adaptersOf({ lora, qlora, adapters = 'f32' }: Options): string | null {
  if (lora === undefined && qlora === undefined) return null;
  return `${adapters} over ${qlora === undefined ? 'the weights' : 'NF4'}`;
}

/** One update of `engine` by as many micro-batches as it accumulates. */
function updateOf(engine: Engine, tokens: Tensor, targets: Tensor): () => Promise<Tensor> {
  if (engine instanceof PipelineEngine) {
    const repeated = (function* () {
      for (;;) yield { tokens, targets };
    })();
    return () => engine.trainBatch(repeated);
  }
  return async () => {
    for (let micro = 1; ; ++micro) {
      const loss = engine.forward<Tensor>(tokens, targets);
      engine.backward(loss);
      engine.step();
      if (micro === engine.gradientAccumulationSteps()) return loss;
    }
  };
}

/** keepAttention by the value of --checkpoint; others leave the choice to the engine. */
const KEPT = new Map<string | undefined, boolean>([
  ['attention', true],
  ['projections', true],
  ['again', false],
]);

/** The model by its name, or this rank's part of it. */
async function modelOf(options: Options, seq: number, job: Distributed): Promise<CausalLM> {
  checkpointing.configure({
    numberCheckpoints: options.segments ? Number(options.segments) : null,
    cpuCheckpointing: options['cpu-checkpointing'] === 'true',
    keepAttention: KEPT.get(options.checkpoint) ?? null,
    keepProjections:
      options.checkpoint === 'projections' || Number(options['keep-projections'] ?? 0),
    keepLastSegment: options['keep-last-segment'] === 'true',
    earlyHead: options['early-head'] === 'true',
  });
  const model = benchModel(options, seq);
  if (!options.tp) return model;
  const sequenceParallel = options.sequence === 'true';
  return parallelize(model, await job.mesh.axis('tp'), null, { sequenceParallel });
}

/** Without overlap, collectives run in the order of compute, but for weights of the host's. */
function isBesideCompute({ config }: Engine): boolean {
  const { overlap_comm, offload_optimizer } = config.zero_optimization;
  return overlap_comm === true || offload_optimizer.device !== 'none';
}

/** Peaks, and where optimizer state lies. */
function memoryOf({ device, parts }: Engine): object {
  const { peakInUse, peakReserved } = device.memory;
  const { bytes } = parts.state;
  return {
    peak_device_gib: peakInUse / 2 ** 30,
    peak_device_reserved_gib: peakReserved / 2 ** 30,
    optimizer_state_gib: { device: bytes.device / 2 ** 30, host: bytes.host / 2 ** 30 },
    disk: diskOf(parts.state, parts.stage.partitions),
    peak_host_rss_gib: process.resourceUsage().maxRSS / 2 ** 20,
  };
}

/** Seconds of the parts of a start. */
class Start {
  /** By part, in order. */
  readonly seconds: Record<string, number> = {};
  private last = performance.now();

  /** A part has ended. */
  add(part: string): void {
    const now = performance.now();
    this.seconds[part] = (now - this.last) / 1000;
    this.last = now;
  }
}

/** Runs the warm-up steps; one rank prints when the first step has ended. */
async function warmUp(
  update: () => Promise<Tensor>,
  steps: number,
  { world, rank }: Distributed,
  start: Start,
): Promise<void> {
  for (let i = 0; i < steps; ++i) {
    await update();
    if (i > 0) continue;
    world.device.synchronize();
    start.add('first step');
    if (rank === 0) console.error(`seconds: ${JSON.stringify(start.seconds)}`);
  }
  world.device.synchronize();
}

/** Times of the measured steps, and the last loss. */
interface Timed {
  /** Milliseconds of a step, the wait for the last one included. */
  mean: number;
  /** From the call of each to that of the next. */
  intervals: number[];
  loss: Tensor | undefined;
}

async function timedSteps(
  update: () => Promise<Tensor>,
  steps: number,
  device: Device,
): Promise<Timed> {
  let loss: Tensor | undefined;
  const marks = [performance.now()];
  for (let i = 0; i < steps; ++i) {
    loss = await update();
    marks.push(performance.now());
  }
  device.synchronize();
  const mean = (performance.now() - (marks[0] as number)) / steps;
  return { mean, intervals: marks.slice(1).map((mark, i) => mark - (marks[i] as number)), loss };
}

/** Traces steps after the measured ones, into --trace FILE if given, and sums them by role. */
async function traceSteps(
  engine: Engine,
  update: () => Promise<Tensor>,
  options: Options,
): Promise<RoleTimes> {
  const steps = Number(options['trace-steps'] ?? 2);
  const folder = mkdtempSync(join(tmpdir(), 'ds-bench-'));
  try {
    const path = engine.trace(options.trace ?? join(folder, 'trace.json'), { steps });
    for (let i = 0; i < steps; ++i) await update();
    return sumByRole(JSON.parse(readFileSync(path, 'utf8')) as TraceFile);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** TFLOP/s of dense bf16 products of an H100 or H200: NVIDIA's number, and the rate that lasts. */
const RATES = { peak: 989, sustained: 652 } as const;

/** Parameters outside of token and position tables; a tied table counts, as it is the head. */
function multipliedParameters(model: CausalLM): number {
  const names = new Map(model.namedParameters());
  const isTied = model.tiedNames().size > 0;
  let count = model.numParameters();
  for (const [name, { numel }] of names) {
    const isTokens = /(embed_tokens|wte)\.weight$/.test(name);
    if (/wpe\.weight$/.test(name) || (isTokens && !isTied)) count -= numel;
  }
  return count;
}

/**
 * FLOPs a token of forward and backward, 6 (N - embeddings) + 12 L C T, and their share of a GPU's
 * rates (MFU). Source: torchtitan, nanoGPT. Recomputation does not count; experts count as dense.
 */
function utilization(
  model: CausalLM,
  { seq, perGpu }: { seq: number; perGpu: number },
): Record<string, number> {
  const { layers, channels } = model.config as { layers: number; channels: number };
  const flops = 6 * multipliedParameters(model) + 12 * layers * channels * seq;
  const tflops = (flops * perGpu) / 1e12;
  return {
    gflop_per_token: flops / 1e9,
    tflops_per_gpu: tflops,
    mfu_of_989: tflops / RATES.peak,
    mfu_of_sustained_652: tflops / RATES.sustained,
  };
}

/**
 * Times steps back to back, as in training. The mean includes the wait for the last step.
 * bench/help.ts lists the options. Under the launcher every rank trains and rank 0 reports.
 */
export async function trainBench(options: Options): Promise<object | null> {
  const mesh = axesOf(options);
  const job = await joinLaunched({ mesh, ...(options.device ? { device: options.device } : {}) });
  const { device } = job.world;
  const [batch, seq] = [Number(options.batch ?? 16), Number(options.seq ?? 1024)];
  const accumulation = Number(options.accumulate ?? 1);
  const steps = Number(options.steps ?? 10);
  if (options.cap) device.setMemoryCap(Number(options.cap) * 2 ** 30);
  const config = configOf(options, { batch, accumulation });
  const name = options.model ?? '124M';
  const start = new Start();
  const model = await modelOf(options, seq, job);
  start.add('model');
  const commTimer = options['comm-times'] ? new EventCommTimer(device) : undefined;
  const { engine } = await initialize({ model, config, device, commTimer });
  start.add('engine');
  const shape = [batch, seq];
  const draw = (): Tensor =>
    Tensor.from(tokensLike(batch * seq, model.vocabSize), { shape, device }).keep();
  const [tokens, targets] = [draw(), draw()];
  const update = updateOf(engine, tokens, targets);
  engine.recordPhases();
  await warmUp(update, Number(options['warm-up'] ?? 4), job, start);
  commTimer?.reset();
  const { mean, intervals, loss } = await timedSteps(update, steps, device);
  const comm = commTimer?.times();
  if (comm && !isBesideCompute(engine)) comm.exposed = comm.total;
  const last = { phases: engine.phaseTimes(), loss: loss?.item() };
  const roles = await traceSteps(engine, update, options);
  await job.destroy();
  if (engine.globalRank > 0) return null;
  const { updateGroups } = engine.parts.state;
  const perSecond = (batch * seq * accumulation * engine.dpWorldSize * 1000) / mean;
  console.error(formatRoles(roles));
  return {
    model: name,
    params: model.numParameters(),
    trained: model.numParameters({ trainable: true }),
    batch,
    seq,
    world_size: engine.worldSize,
    ...mesh,
    sequence: options.sequence === 'true',
    schedule: options.pp ? (options.schedule ?? '1f1b') : null,
    stage: engine.zeroOptimizationStage(),
    overlap_comm: engine.config.zero_optimization.overlap_comm,
    accumulation,
    precision: options.precision ?? 'bf16',
    fp8: options.fp8 ?? null,
    layers: model.config.layers,
    adapters: adaptersOf(options),
    offload: options.offload === 'true',
    state: updateGroups
      .map(({ state, schedule }) => `${state.names}, ${schedule.constructor.name}`)
      .join('; '),
    gpu_share:
      elementsOf(updateGroups.filter(({ state }) => state.placement instanceof StreamedState)) /
      elementsOf(updateGroups),
    sub_group_size: engine.config.zero_optimization.sub_group_size,
    checkpoint: options.checkpoint ?? false,
    segments: options.segments ?? null,
    cpu_checkpointing: options['cpu-checkpointing'] === 'true',
    keep_projections: Number(options['keep-projections'] ?? 0),
    keep_last_segment: options['keep-last-segment'] === 'true',
    early_head: options['early-head'] === 'true',
    tokens_per_second: perSecond,
    ...utilization(model, { seq, perGpu: perSecond / engine.worldSize }),
    roles,
    start_seconds: start.seconds,
    step_ms: {
      mean,
      median: median(intervals),
      p90: quantile(intervals, 0.9),
      phases: last.phases,
    },
    communication: comm && {
      collectives: comm.collectives / steps,
      total_ms: comm.total / steps,
      exposed_ms: comm.exposed / steps,
      hidden_share: 1 - comm.exposed / comm.total,
    },
    ...memoryOf(engine),
    loss: last.loss,
  };
}
