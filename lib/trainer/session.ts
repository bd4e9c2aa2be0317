// Session: the parts of a Trainer (engine, data, reports, state), and how they are opened and
// closed.

import { type CheckpointWorld, onAllRanks } from '../checkpoint/index.js';
import type { Distributed } from '../comm/index.js';
import { AXIS } from '../comm/mesh-shape.js';
import { isExperiment } from '../config/autotuning-rules.js';
import { requireSameDraws } from '../engine/data-sampling.js';
import type { Engine } from '../engine/engine.js';
import { DATA } from '../engine/ranks.js';
import { checkpointWorld } from '../engine/saving/store-world.js';
import type { RunWatch } from '../engine/watch/run-watch.js';
import { DsError } from '../errors.js';
import { initializeServed, jobOf } from '../initialize.js';
import { DecoderTask } from '../models/tasks/decoder-task.js';
import type { Optimizer } from '../optim/optimizer.js';
import { cpu } from '../runtime/device.js';
import { seed } from '../tensor/index.js';
import {
  computeRunLength,
  createAutoSources,
  type RunLength,
  requireOneStage,
  resolveBeforeLength,
} from './configuration.js';
import type { BatchSource, DataPlace, TrainerData } from './data-source.js';
import { Decisions } from './decisions.js';
import { addEmbeddingNoise } from './embedding-noise.js';
import { type EvalData, openEvalData } from './eval-data.js';
import { evaluate } from './evaluation.js';
import type { Metrics } from './events.js';
import { createCostFunction, Logbook } from './logbook.js';
import type { MethodSource } from './methods/method.js';
import type { Objective } from './micro-batch.js';
import { BatchMover } from './moved-batch.js';
import { createObjective } from './objective.js';
import { createOptimizer, type OwnOptimizerName } from './own-optimizer.js';
import { OwnSchedule, warnIfNoWarmup, warnIfOverruled } from './own-schedule.js';
import type { RunSettings, TrainerSettings } from './read-options.js';
import { StepMetrics } from './step-metrics.js';
import { type TargetCounts, targetCounts } from './target-counts.js';
import { openTrainData } from './train-data.js';
import { TrainerState } from './trainer-state.js';

/** Hint of the error that a rank did not take part in an exchange. */
const RANKS_HINT =
  'Create a Trainer with the same options on every rank, and call the same methods on all ranks.';

/** The parts of a Trainer on one rank. All ranks call them in the same order. */
export interface Session<Batch> {
  settings: TrainerSettings<never, Batch>;
  engine: Engine;
  world: CheckpointWorld;
  objective: Objective<Batch>;
  mover: BatchMover;
  /** Training data; null for a Trainer that only evaluates. */
  data: BatchSource<Batch> | null;
  /** The data of a method that makes batches with the model; null for other data. */
  source: MethodSource | null;
  /** Number of micro-batches of a complete update. */
  accumulation: number;
  /** Opens evaluation data; returns the same object for the same data. */
  evalData(options: {
    data: TrainerData<never, Batch>;
    batchSize: number;
  }): Promise<EvalData<Batch>>;
  /** Returns all evaluation data that were opened. */
  openedEvalData(): Promise<EvalData<Batch>>[];
  length: RunLength;
  state: TrainerState;
  decisions: Decisions;
  counts: TargetCounts;
  book: Logbook;
  /** The recording of the run; null if the run is not recorded. */
  watch: RunWatch | null;
  /** Ends the noise on embeddings; null without noise. */
  endNoise: (() => void) | null;
}

/**
 * Joins the job, opens the data, and builds the engine. The length of the data determines the
 * length of the run. Throws the errors of initialize(), and DS_ARGUMENT if neither the data nor
 * `maxSteps` give a length.
 */
export async function openSession<Sample, Batch>(
  given: TrainerSettings<Sample, Batch>,
): Promise<Session<Batch>> {
  const settings = given as unknown as TrainerSettings<never, Batch>;
  const { model, tokenizer } = settings;
  if (model instanceof DecoderTask)
    model.padTokenId ??= tokenizer?.padId ?? tokenizer?.eosId ?? null;
  const objective = createObjective<Batch>(model, settings);
  requireOneStage(settings.deepspeed);
  const job = await jobOf({ ...settings, config: settings.deepspeed });
  const file = resolveBeforeLength(settings, job.mesh.size(...DATA));
  const place = createDataPlace(job, settings, file.train_micro_batch_size_per_gpu);
  const source = await settings.method?.openSource({
    data: settings.train as never,
    settings,
    place,
    config: file,
  });
  const data =
    (settings.train && (source as BatchSource<Batch> | null | undefined)) ??
    (settings.train && (await openTrainData(settings.train, settings, place, file)));
  const cleanUps: CleanUp[] = [() => (data ?? source)?.close?.()];
  try {
    return await createSession({ settings, objective, job, file, place, data, source }, cleanUps);
  } catch (error) {
    await runCleanUps(cleanUps).catch(() => {}); // The error that occurred first is more useful.
    throw error;
  }
}

/** The inputs of createSession(). */
interface SessionInputs<Batch> extends Pick<Session<Batch>, 'settings' | 'objective' | 'data'> {
  job: Distributed;
  /** The configuration, resolved before the length of the run is known. */
  file: ReturnType<typeof resolveBeforeLength>;
  place: DataPlace;
  source: MethodSource | null | undefined;
}

/**
 * Updates that the option `profile` traces. The first updates are skipped, because they allocate
 * memory and select matrix algorithms.
 */
const PROFILED = { after: 3, steps: 3 } as const;

/**
 * Builds the engine and creates the session. Adds the clean-up of each part to `cleanUps`: the
 * caller runs it if this fails.
 */
async function createSession<Batch>(
  { settings, objective, job, file, place, data, source = null }: SessionInputs<Batch>,
  cleanUps: CleanUp[],
): Promise<Session<Batch>> {
  const { model, neftuneNoiseAlpha: noise } = settings;
  const cost = createCostFunction(model);
  const batches = data?.length ?? null;
  if (data && batches === null && settings.maxSteps === null) throw noLengthError();
  const length = computeRunLength(settings, batches, file.gradient_accumulation_steps);
  seed(settings.seed);
  const engine = await buildEngine(settings, job, length, {
    optimizer: file.optimizer !== null,
    scheduler: file.scheduler?.type ?? null,
    bf16States: file.bf16.bf16_optimizer_states,
  });
  cleanUps.push(() => engine.destroy());
  if (settings.profile !== null) engine.trace(settings.profile, PROFILED);
  await requireSameDraws(job, engine, data);
  if (data?.stateDict && data.loadStateDict) engine.companions.set('trainData', data as never);
  const state = new TrainerState();
  const isMeasured = isExperiment(engine.config);
  const reported = isMeasured ? { ...settings, report: [] } : settings;
  const world = checkpointWorld(job, RANKS_HINT);
  const watch = isMeasured ? null : await openWatch(settings, engine, world);
  const { dataGroup } = engine.parts.ranks;
  cleanUps.push(() => objective.close?.());
  await objective.open?.({ engine, job, dataGroup });
  const metrics = objective.hasStepMetrics
    ? new StepMetrics(dataGroup, objective.deriveMetrics?.bind(objective))
    : null;
  source?.begin({ engine, job, world, progress: state, maxSteps: length.maxSteps });
  return {
    settings,
    engine,
    objective,
    data,
    source,
    length,
    state,
    world,
    watch,
    mover: new BatchMover(engine.device),
    accumulation: engine.gradientAccumulationSteps(),
    ...openEvalDataOnce((evalData, size) =>
      openEvalData(evalData, settings, { ...place, batchSize: size }),
    ),
    decisions: new Decisions(settings, length, isMeasured),
    counts: targetCounts(dataGroup),
    book: new Logbook({ engine, settings: reported, state, length, costOf: cost, watch, metrics }),
    endNoise: noise === null ? null : addEmbeddingNoise(model, noise),
  };
}

/** Returns the metrics of `data`. A method that has its own evaluation computes them. */
export async function evaluateSession<Batch>(
  session: Session<Batch>,
  data: TrainerData<never, Batch>,
  plan: { batchSize: number; maxBatches?: number } & Parameters<typeof evaluate<Batch>>[2],
): Promise<Metrics> {
  const { batchSize, maxBatches = Number.POSITIVE_INFINITY } = plan;
  const { source } = session;
  if (source?.evaluate)
    return source.evaluate(data as TrainerData<unknown, unknown>, { batchSize, maxBatches });
  return evaluate(session, await session.evalData({ data, batchSize }), plan);
}

/**
 * Closes all parts of the session, even if one fails; then throws the first error. The model keeps
 * its weights, as after engine.destroy().
 */
export async function closeSession<Batch>(session: Session<Batch>): Promise<void> {
  const { engine, data, source, mover, counts, book } = session;
  const opened = await Promise.allSettled(session.openedEvalData());
  const evalData = opened.flatMap((result) =>
    result.status === 'fulfilled' ? [result.value] : [],
  );
  await runCleanUps([
    () => (data ?? source)?.close?.(),
    ...evalData.map((data) => () => data.close()),
    () => book.close(),
    () => counts.dispose(),
    () => mover.dispose(),
    () => session.endNoise?.(),
    () => session.objective.close?.(),
    () => engine.destroy(),
  ]);
}

/**
 * Opens the recording of the run; returns null without the option `watch`. Rejects on all ranks if
 * rank 0 cannot record or serve the page.
 */
async function openWatch(
  { watch, runName }: RunSettings,
  engine: Engine,
  world: CheckpointWorld,
): Promise<RunWatch | null> {
  if (!watch) return null;
  const opened: RunWatch[] = [];
  await onAllRanks(world, 'opening the watch page', async () => {
    opened.push(await engine.watch({ name: runName, ...watch }));
    return null;
  });
  return opened[0] ?? null;
}

/** Cleans up one part; may return a promise. */
type CleanUp = () => unknown;

/** Runs all clean-ups in turn, even if one fails. Then rejects with the first error. */
async function runCleanUps(cleanUps: readonly CleanUp[]): Promise<void> {
  const failures: unknown[] = [];
  for (const cleanUp of cleanUps) {
    try {
      await cleanUp();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

/**
 * Returns rank, batch size and device of the data. The device is the host, because the Trainer
 * counts targets there.
 */
function createDataPlace(
  { mesh }: Distributed,
  { data }: RunSettings,
  batchSize: number,
): DataPlace {
  const [rank, worldSize] = [mesh.place(...DATA), mesh.size(...DATA)];
  const tokenRanks = mesh.size(AXIS.sequence);
  return { rank, worldSize, batchSize, device: cpu(), seed: data.seed, tokenRanks };
}

async function buildEngine(
  settings: RunSettings,
  job: Distributed,
  length: RunLength,
  has: { optimizer: boolean; scheduler: string | null; bf16States: boolean },
): Promise<Engine> {
  const { model, deepspeed: config, strict, stopSignals } = settings;
  const auto = createAutoSources(settings, length);
  const { optimizer: given = 'AdamW' } = settings;
  const own = { name: given as OwnOptimizerName, fp32OptimizerStates: !has.bf16States };
  const byName = has.optimizer ? undefined : () => createOptimizer(model, settings, own);
  const optimizer = typeof given === 'function' ? given : byName;
  const { lrScheduler = has.scheduler ? undefined : createSchedules(settings, length) } = settings;
  const notice =
    job.rank === 0 && !settings.lrScheduler && warnIfIneffective(settings, has.scheduler);
  if (notice) process.emitWarning(notice, { type: 'DsNotice', code: 'DS_NOTICE' });
  const clients = { optimizer, lrScheduler, stopSignals, distributed: job };
  const { engine } = await initializeServed({ model, config, auto, strict, ...clients });
  return engine;
}

/** Returns a warning if an option of the learning rate has no effect; else null. */
function warnIfIneffective(
  { schedule, warmup, given }: RunSettings,
  scheduler: string | null,
): string | null {
  if (scheduler === null) return warnIfNoWarmup(schedule, warmup);
  return given.has('schedule') ? warnIfOverruled(schedule, scheduler) : null;
}

/** Returns a function that creates a schedule for each parameter group, from the group's rate. */
function createSchedules({ schedule }: RunSettings, { maxSteps, warmupSteps }: RunLength) {
  return ({ groups }: Optimizer) =>
    groups.map(({ lr }) => new OwnSchedule(schedule, { lr, warmupSteps, totalSteps: maxSteps }));
}

/**
 * Returns the functions that open evaluation data. Data are opened at their first evaluation; after
 * a failure, they are opened again.
 */
function openEvalDataOnce<Batch>(
  open: (data: TrainerData<never, Batch>, batchSize: number) => Promise<EvalData<Batch>>,
): Pick<Session<Batch>, 'evalData' | 'openedEvalData'> {
  const opened = new Map<unknown, Promise<EvalData<Batch>>>();
  return {
    evalData: ({ data, batchSize }) => {
      const present = opened.get(data);
      if (present) return present;
      const made = open(data, batchSize);
      opened.set(data, made);
      made.catch(() => opened.delete(data));
      return made;
    },
    openedEvalData: () => [...opened.values()],
  };
}

function noLengthError(): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'Trainer maxSteps',
    expected: 'maxSteps for data without a length',
    got: 'none',
    hint: 'Give `maxSteps` (--max_steps), or data with a `length` (without --streaming).',
  });
}
