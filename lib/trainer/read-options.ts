// Checks the options of a Trainer and fills in defaults, before the Trainer builds anything.
import type { WatchOptions } from '../engine/watch/run-watch.js';
import { Module } from '../nn/index.js';
import { isObject } from '../runtime/is-object.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { refused, refusedValue } from '../runtime/refused.js';
import { requireFinite, requireInteger } from '../runtime/require-number.js';
import { requireOneOf, requireType } from '../runtime/require-type.js';
import { Tokenizer } from '../text/index.js';
import { EVENT_TYPES } from './events.js';
import type {
  BestOptions,
  CheckpointOptions,
  EarlyStopOptions,
  EvalOptions,
  Every,
  LogOptions,
  Precision,
  Report,
  Sampling,
  TrainerCallbacks,
  TrainerData,
  TrainerDataOptions,
  TrainerOptions,
} from './options.js';
import { OWN_OPTIMIZERS } from './own-optimizer.js';
import { readSchedule, requireFall, type Schedule } from './own-schedule.js';

const OPTIONS: OptionNames<TrainerOptions> = {
  ...{ model: true, tokenizer: true, train: true, eval: true },
  ...{ deepspeed: true, strict: true, precision: true },
  ...{ epochs: true, maxSteps: true, batchSize: true, accumulation: true },
  ...{ lr: true, schedule: true, warmup: true, weightDecay: true, betas: true, eps: true },
  ...{ maxGradNorm: true, optimizer: true, lrScheduler: true },
  ...{ loss: true, count: true, labelSmoothing: true, neftuneNoiseAlpha: true },
  ...{ data: true, log: true, save: true, earlyStop: true, report: true, progress: true },
  ...{ watch: true, runName: true, callbacks: true, seed: true },
  ...{ device: true, distributed: true, stopSignals: true },
};
const DATA: OptionNames<TrainerDataOptions<unknown, unknown>> = {
  ...{ sampling: true, dropLast: true, seed: true, workers: true, collate: true, lengths: true },
  sequenceLength: true,
};
const LOG: OptionNames<LogOptions> = { every: true, first: true, nanFilter: true };
const EVAL: OptionNames<EvalOptions<unknown, unknown>> = {
  ...{ data: true, every: true, batchSize: true, maxBatches: true, atStart: true, delay: true },
  ...{ accuracy: true, metrics: true },
};
const SAVE: OptionNames<CheckpointOptions> = {
  ...{ dir: true, every: true, keep: true, best: true, weights: true, weightsOnly: true },
};
const BEST: OptionNames<BestOptions> = { metric: true, greaterIsBetter: true, load: true };
const EARLY: OptionNames<EarlyStopOptions> = { patience: true, threshold: true };

const SAMPLINGS: Readonly<Record<Sampling, true>> = {
  ...{ random: true, sequential: true, group_by_length: true },
};
const PRECISIONS: Readonly<Record<Precision, true>> = { fp32: true, fp16: true, bf16: true };

/** Options without sample types, with defaults; null means disabled. */
export interface RunSettings
  extends Pick<
    TrainerOptions,
    'device' | 'distributed' | 'stopSignals' | 'optimizer' | 'lrScheduler'
  > {
  /** Names of the options that the caller has given. */
  given: ReadonlySet<string>;
  model: Module & { readonly hiddenSize?: number };
  tokenizer: Tokenizer | null;
  eval: EvalPlan | null;
  deepspeed: NonNullable<TrainerOptions['deepspeed']>;
  strict: boolean;
  precision: Precision | null;
  epochs: number;
  maxSteps: number | null;
  batchSize: number;
  accumulation: number;
  lr: number;
  schedule: Schedule;
  warmup: number;
  weightDecay: number;
  betas: readonly [number, number];
  eps: number;
  maxGradNorm: number;
  labelSmoothing: number;
  /** Null disables NEFTune. */
  neftuneNoiseAlpha: number | null;
  data: DataPlan;
  log: Required<LogOptions>;
  save: SaveSettings | null;
  earlyStop: Required<EarlyStopOptions> | null;
  report: readonly Report[];
  /** Null records nothing. */
  watch: WatchOptions | null;
  progress: boolean;
  runName: string;
  callbacks: readonly TrainerCallbacks[];
  seed: number;
}

/** When and how far is evaluated. */
type EvalPlan = Required<Omit<EvalOptions<unknown, unknown>, 'data' | 'metrics'>>;

/** Order and distribution of samples. */
type DataPlan = Required<
  Omit<TrainerDataOptions<unknown, unknown>, 'collate' | 'lengths' | 'sequenceLength'>
> &
  Pick<TrainerDataOptions<unknown, unknown>, 'sequenceLength'>;

/** TrainerOptions with its defaults. */
export interface TrainerSettings<Sample, Batch> extends RunSettings {
  train: TrainerData<Sample, Batch> | null;
  eval: (EvalPlan & Pick<EvalOptions<Sample, Batch>, 'data' | 'metrics'>) | null;
  data: DataPlan & Pick<TrainerDataOptions<Sample, Batch>, 'collate' | 'lengths'>;
  loss: TrainerOptions<Sample, Batch>['loss'];
  count: TrainerOptions<Sample, Batch>['count'];
}

/** CheckpointOptions with its defaults; `keep` null keeps all. */
export interface SaveSettings {
  dir: string;
  every: Every | 'best';
  keep: number | null;
  best: Required<BestOptions> | null;
  weights: boolean;
  weightsOnly: boolean;
}

/**
 * Returns `given` with defaults. Throws DS_ARGUMENT with the name of an unknown or invalid option,
 * and for options that exclude each other. Throws DS_DATA for a folder without a tokenizer.
 */
export function readTrainerOptions<Sample, Batch>(
  given: TrainerOptions<Sample, Batch>,
): TrainerSettings<Sample, Batch> {
  const options = readOptions('Trainer', given, OPTIONS);
  const seed = requireInteger('Trainer seed', options.seed ?? 42, 0);
  const save = readSave(options.save);
  const named = Object.entries(options).filter(([, value]) => value !== undefined);
  const settings: TrainerSettings<Sample, Batch> = {
    given: new Set(named.map(([name]) => name)),
    model: requireModel(options.model),
    tokenizer: readTokenizer(options.tokenizer),
    train: requireData('Trainer train', options.train),
    eval: readEval(options),
    deepspeed: options.deepspeed ?? {},
    strict: requireType('Trainer strict', options.strict ?? false, 'boolean'),
    precision: options.precision ?? null,
    ...readLengths(options),
    ...readOptimization(options),
    ...readCalls(options),
    data: readData(options.data, seed),
    log: readLog(options.log),
    save,
    earlyStop: readEarlyStop(options.earlyStop),
    report: readReport(options.report, save),
    watch: readWatch(options.watch, save),
    progress: requireType('Trainer progress', options.progress ?? true, 'boolean'),
    runName: requireType('Trainer runName', options.runName ?? 'trainer', 'string'),
    callbacks: readCallbacks(options.callbacks),
    seed,
    ...{ device: options.device, distributed: options.distributed },
    stopSignals: options.stopSignals,
  };
  if (settings.precision !== null) {
    requireOneOf('Trainer precision', settings.precision, Object.keys(PRECISIONS));
  }
  requireTogether(settings as unknown as TrainerSettings<never, never>);
  return settings;
}

/** The folder of the run is that of its checkpoints. */
function readWatch(given: unknown, save: SaveSettings | null): WatchOptions | null {
  if (given === undefined || given === false) return null;
  const place = save ? { dir: save.dir } : {};
  if (given === true) return place;
  if (!isObject(given)) {
    throw refusedValue('Trainer watch', 'true, false or options of engine.watch()', given);
  }
  return { ...place, ...given };
}

type Given = TrainerOptions<never, never>;

function readLengths(options: object) {
  const { epochs = 3, maxSteps = null, batchSize = 8, accumulation = 1 } = options as Given;
  if (!(requireFinite('Trainer epochs', epochs, 0) > 0)) {
    throw refusedValue('Trainer epochs', 'a positive number', epochs);
  }
  if (maxSteps !== null) requireInteger('Trainer maxSteps', maxSteps, 1);
  requireInteger('Trainer batchSize', batchSize, 1);
  requireInteger('Trainer accumulation', accumulation, 1);
  return { epochs, maxSteps, batchSize, accumulation };
}

function readOptimization(options: object) {
  const { lr = 5e-5, schedule = 'linear', warmup = 0, weightDecay = 0 } = options as Given;
  const {
    betas = [0.9, 0.999],
    eps = 1e-8,
    maxGradNorm = 1,
    labelSmoothing = 0,
    neftuneNoiseAlpha = null,
  } = options as Given;
  requireFinite('Trainer lr', lr, 0);
  requireSteps('Trainer warmup', warmup);
  requireFinite('Trainer weightDecay', weightDecay, 0);
  if (!Array.isArray(betas) || betas.length !== 2) {
    throw refusedValue('Trainer betas', 'two numbers, such as [0.9, 0.999]', betas);
  }
  for (const beta of betas) requireFinite('Trainer betas', beta, 0, 1);
  requireFinite('Trainer eps', eps, 0);
  requireFinite('Trainer maxGradNorm', maxGradNorm, 0);
  requireFinite('Trainer labelSmoothing', labelSmoothing, 0, 1);
  if (neftuneNoiseAlpha !== null) {
    requireFinite('Trainer neftuneNoiseAlpha', neftuneNoiseAlpha, 0);
  }
  const numbers = {
    ...{ lr, warmup, weightDecay, betas, eps, maxGradNorm },
    ...{ labelSmoothing, neftuneNoiseAlpha },
  };
  readSchedule(schedule);
  const { lr: own, deepspeed, optimizer, lrScheduler } = options as Given;
  // Other rates and schedules are known when training begins.
  const isOurs = typeof optimizer !== 'function' && lrScheduler === undefined;
  if (isOurs && (own !== undefined || deepspeed === undefined)) requireFall(schedule, lr);
  return { ...numbers, schedule };
}

function readCalls<Sample, Batch>(options: TrainerOptions<Sample, Batch>) {
  const { optimizer, lrScheduler, loss, count } = options;
  if (typeof optimizer === 'string') {
    requireOneOf('Trainer optimizer', optimizer, Object.keys(OWN_OPTIMIZERS));
  }
  const build = typeof optimizer === 'string' ? undefined : optimizer;
  for (const [name, value] of Object.entries({ optimizer: build, lrScheduler, loss, count })) {
    if (value !== undefined) requireType(`Trainer ${name}`, value, 'function');
  }
  return { optimizer, lrScheduler, loss, count };
}

function readData<Sample, Batch>(
  given: TrainerDataOptions<Sample, Batch> | undefined,
  ofTrainer: number,
): TrainerSettings<Sample, Batch>['data'] {
  const options = readOptions('Trainer data', given, DATA);
  const { sampling = 'random', dropLast = false, seed = ofTrainer, workers = 0 } = options;
  requireOneOf('Trainer data.sampling', sampling, Object.keys(SAMPLINGS));
  requireType('Trainer data.dropLast', dropLast, 'boolean');
  requireInteger('Trainer data.seed', seed, 0);
  requireInteger('Trainer data.workers', workers, 0);
  const { collate, lengths, sequenceLength } = options;
  if (sequenceLength !== undefined)
    requireInteger('Trainer data.sequenceLength', sequenceLength, 1);
  if (collate !== undefined) requireType('Trainer data.collate', collate, 'function');
  return { sampling, dropLast, seed, workers, collate, lengths, sequenceLength };
}

function readLog(given: LogOptions | undefined): Required<LogOptions> {
  const { every = 10, first = false, nanFilter = false } = readOptions('Trainer log', given, LOG);
  requireEvery('Trainer log.every', every);
  requireType('Trainer log.first', first, 'boolean');
  requireType('Trainer log.nanFilter', nanFilter, 'boolean');
  return { every, first, nanFilter };
}

function readEval<Sample, Batch>(
  trainer: TrainerOptions<Sample, Batch>,
): TrainerSettings<Sample, Batch>['eval'] {
  const { eval: given } = trainer;
  if (given === undefined) return null;
  const isData = isServable(given);
  const options = isData
    ? { data: given as TrainerData<Sample, Batch> }
    : readOptions('Trainer eval', given as EvalOptions<Sample, Batch>, EVAL);
  const data = requireData('Trainer eval.data', options.data ?? null);
  if (!data) throw refusedValue('Trainer eval.data', SERVABLE, undefined);
  if (typeof data === 'object' && (data as { length?: number }).length === 0) {
    throw refused('Trainer eval.data', 'data to judge by, or no `eval`', 'no samples');
  }
  const { every = 'epoch', batchSize = trainer.batchSize ?? 8, metrics } = options;
  const {
    maxBatches = Number.POSITIVE_INFINITY,
    atStart = false,
    delay = 0,
    accuracy = false,
  } = options;
  requireEvery('Trainer eval.every', every);
  requireInteger('Trainer eval.batchSize', batchSize, 1);
  if (maxBatches !== Number.POSITIVE_INFINITY) {
    requireInteger('Trainer eval.maxBatches', maxBatches, 1);
  }
  requireType('Trainer eval.atStart', atStart, 'boolean');
  requireFinite('Trainer eval.delay', delay, 0);
  requireType('Trainer eval.accuracy', accuracy, 'boolean');
  if (metrics !== undefined) requireType('Trainer eval.metrics', metrics, 'function');
  return { data, every, batchSize, maxBatches, atStart, delay, accuracy, metrics };
}

function readSave(given: CheckpointOptions | string | undefined): SaveSettings | null {
  if (given === undefined) return null;
  const options = readOptions(
    'Trainer save',
    typeof given === 'string' ? { dir: given } : given,
    SAVE,
  );
  const { dir, every = 500, keep = null, weights = true, weightsOnly = false } = options;
  requireType('Trainer save.dir', dir, 'string');
  if (every !== 'best') requireEvery('Trainer save.every', every, ', or "best"');
  if (keep !== null) requireInteger('Trainer save.keep', keep, 1);
  requireType('Trainer save.weights', weights, 'boolean');
  requireType('Trainer save.weightsOnly', weightsOnly, 'boolean');
  if (weightsOnly && !weights) {
    throw refusedValue('Trainer save.weights', 'true where save.weightsOnly is', false);
  }
  return { dir, every, keep, best: readBest(options.best), weights, weightsOnly };
}

function readBest(given: string | BestOptions | undefined): Required<BestOptions> | null {
  if (given === undefined) return null;
  const op = 'Trainer save.best';
  const options = readOptions(op, typeof given === 'string' ? { metric: given } : given, BEST);
  const metric = requireType(`${op}.metric`, options.metric, 'string').replace(/^eval_/, '');
  const { greaterIsBetter = !metric.endsWith('loss'), load = true } = options;
  requireType(`${op}.greaterIsBetter`, greaterIsBetter, 'boolean');
  requireType(`${op}.load`, load, 'boolean');
  return { metric, greaterIsBetter, load };
}

function readEarlyStop(given: EarlyStopOptions | undefined): Required<EarlyStopOptions> | null {
  if (given === undefined) return null;
  const { patience, threshold = 0 } = readOptions('Trainer earlyStop', given, EARLY);
  requireInteger('Trainer earlyStop.patience', patience, 1);
  requireFinite('Trainer earlyStop.threshold', threshold, 0);
  return { patience, threshold };
}

function readReport(given: unknown, save: SaveSettings | null): readonly Report[] {
  const op = 'Trainer report';
  if (given === undefined) return [];
  if (!Array.isArray(given)) throw refusedValue(op, 'a list, such as ["tensorboard"]', given);
  for (const one of given) {
    const isMonitor = typeof (one as { write?: unknown } | null)?.write === 'function';
    if (isMonitor) continue;
    if (one === 'tensorboard' || one === 'csv') {
      if (save) continue;
      throw refusedValue(
        op,
        'monitors of your own where there is no save.dir for their files',
        one,
      );
    }
    const hint =
      one === 'wandb'
        ? 'Nothing is sent to Weights & Biases: `wandb sync` takes the files of "tensorboard".'
        : '';
    throw refusedValue(op, '"tensorboard", "csv" or a Monitor', one, hint);
  }
  return given;
}

function readCallbacks(given: unknown): readonly TrainerCallbacks[] {
  if (given === undefined) return [];
  const op = 'Trainer callbacks';
  if (!Array.isArray(given)) throw refusedValue(op, 'a list, such as [{ log(event) {} }]', given);
  for (const callbacks of given) {
    readOptions(op, callbacks, EVENT_TYPES);
    for (const [type, callback] of Object.entries(callbacks)) {
      if (callback !== undefined) requireType(`${op} ${type}`, callback, 'function');
    }
  }
  return given;
}

function readTokenizer(given: Tokenizer | string | undefined): Tokenizer | null {
  if (given === undefined || given instanceof Tokenizer) return given ?? null;
  if (typeof given === 'string') return Tokenizer.fromPretrained(given);
  throw refusedValue('Trainer tokenizer', 'a text.Tokenizer, or its folder', given);
}

function requireModel(model: unknown): Module & { readonly hiddenSize?: number } {
  if (model instanceof Module && typeof model.forward === 'function') return model;
  throw refusedValue('Trainer model', 'an object of a class that extends nn.Module', model);
}

const SERVABLE =
  'a dataset (length and get(), or iterate()), an async iterable of batches, or a function';

function isServable(value: unknown): boolean {
  if (typeof value === 'function') return true;
  if (typeof value !== 'object' || value === null) return false;
  return 'get' in value || 'iterate' in value || Symbol.asyncIterator in value;
}

function requireData<Data>(op: string, data: Data | null | undefined): Data | null {
  if (data === undefined || data === null) return null;
  if (isServable(data)) return data;
  const isList = Array.isArray(data);
  const hint = isList ? 'For an array: { length: list.length, get: (i) => list[i] }.' : '';
  throw refusedValue(op, SERVABLE, data, hint);
}

function requireEvery(op: string, value: unknown, further = ''): void {
  if (value === 'epoch') return;
  if (typeof value === 'number' && isSteps(value) && value > 0) return;
  throw refusedValue(
    op,
    `a number of updates, a share of all below 1, or "epoch"${further}`,
    value,
  );
}

function requireSteps(op: string, value: unknown): void {
  if (typeof value === 'number' && isSteps(value)) return;
  throw refusedValue(op, 'a number of updates, or a share of all below 1', value);
}

const isSteps = (value: number): boolean =>
  value >= 0 && (value < 1 || Number.isSafeInteger(value));

/** Checks combinations of options; each option by itself is valid. */
function requireTogether({
  eval: evaluation,
  save,
  earlyStop,
  deepspeed,
  loss,
}: TrainerSettings<never, never>): void {
  if (evaluation?.accuracy && loss) {
    const expected = 'a loss that the model makes';
    const hint = 'Count the right answers in `eval.metrics`.';
    throw refusedValue('Trainer eval.accuracy', expected, '`loss`', hint);
  }
  const best = save?.best ?? null;
  if (best && !evaluation) {
    throw refusedValue('Trainer save.best', '`eval` data to find the best by', best.metric);
  }
  const isKnown = best?.metric === 'loss' || (best?.metric === 'accuracy' && evaluation?.accuracy);
  if (best && !isKnown && !evaluation?.metrics) {
    const expected = '"loss", "accuracy" by `eval.accuracy`, or a name that `eval.metrics` gives';
    throw refusedValue('Trainer save.best', expected, best.metric);
  }
  if (best?.load && save?.weightsOnly) {
    const expected = 'false with a `save.best` that is loaded at the end';
    throw refusedValue('Trainer save.weightsOnly', expected, true, 'Or set best: { load: false }.');
  }
  if (save?.every === 'best' && !best) {
    throw refusedValue('Trainer save.every', '`save.best` for the value "best"', 'best');
  }
  if (earlyStop && !best) {
    throw refusedValue('Trainer earlyStop', '`save.best` with a metric', earlyStop);
  }
  const isPath = typeof deepspeed === 'string';
  if (!isPath && (typeof deepspeed !== 'object' || Array.isArray(deepspeed))) {
    throw refusedValue(
      'Trainer deepspeed',
      'the path of a ds_config.json, or its object',
      deepspeed,
    );
  }
}
