// Reads the options of a Trainer, and checks their combinations.
import type { WatchOptions } from '../engine/watch/run-watch.js';
import { TASK_METRICS } from '../models/tasks/metrics.js';
import { TaskModel } from '../models/tasks/task-model.js';
import { valueError } from '../runtime/input-errors.js';
import { readDeclared, type Settings } from '../runtime/option.js';
import { readOptions } from '../runtime/options.js';
import type { LOADING, TrainerDataOptions } from './data-options.js';
import type { EVALUATION, EvalSettings } from './evaluation-options.js';
import { declareSampleOptions, MODEL, OPTIMIZATION, type TrainerOptions } from './options.js';
import { requireFall } from './own-schedule.js';
import { REPORTING, type SaveSettings } from './report-options.js';

/** The options that do not depend on the type of samples, with default values. null means off. */
export interface RunSettings
  extends Settings<typeof MODEL>,
    Settings<typeof OPTIMIZATION>,
    Omit<Settings<typeof REPORTING>, 'watch'> {
  /** Names of the options that the caller gave. */
  given: ReadonlySet<string>;
  eval: EvalPlan | null;
  data: DataPlan;
  /** Options of the recording; null: the run is not recorded. */
  watch: WatchOptions | null;
}

type EvalPlan = Settings<typeof EVALUATION> & { batchSize: number };
type DataPlan = Settings<typeof LOADING> & { seed: number };

/** The options of a Trainer with default values. */
export interface TrainerSettings<Sample, Batch> extends RunSettings {
  train: Settings<ReturnType<typeof declareSampleOptions<Sample, Batch>>>['train'];
  eval: (EvalPlan & EvalSettings<Sample, Batch>) | null;
  data: DataPlan & Pick<TrainerDataOptions<Sample, Batch>, 'collate' | 'lengths'>;
  loss: TrainerOptions<Sample, Batch>['loss'];
  count: TrainerOptions<Sample, Batch>['count'];
}

/**
 * Returns `given` with default values. Throws DS_ARGUMENT if an option is unknown or invalid, or if
 * options contradict each other; the error names them. Throws DS_DATA if a folder has no tokenizer.
 */
export function readTrainerOptions<Sample, Batch>(
  given: TrainerOptions<Sample, Batch>,
): TrainerSettings<Sample, Batch> {
  const declared = {
    ...MODEL,
    ...declareSampleOptions<Sample, Batch>(),
    ...OPTIMIZATION,
    ...REPORTING,
  };
  const read = readDeclared('Trainer', given, declared);
  const { seed, batchSize, data, eval: evaluation, watch, save } = read;
  const own = Object.entries(readOptions('Trainer', given, declared));
  const has = new Set(own.filter(([, value]) => value !== undefined).map(([name]) => name));
  const settings = {
    ...read,
    given: has,
    lr: has.has('lr') ? read.lr : (read.method?.lr ?? read.lr),
    eval: evaluation && { ...evaluation, batchSize: evaluation.batchSize ?? batchSize },
    data: { ...data, seed: data.seed ?? seed },
    watch: readWatch(watch, save),
  };
  requireSchedulePossible(settings);
  requireMetric(settings);
  requireSaveOptions(settings);
  return settings;
}

/** Returns the option `watch`. By default, the run is recorded in the folder of its checkpoints. */
function readWatch(given: boolean | WatchOptions, save: SaveSettings | null): WatchOptions | null {
  if (given === false) return null;
  return { ...(save && { dir: save.dir }), ...(given === true ? {} : given) };
}

/**
 * Throws DS_ARGUMENT if the schedule is impossible with the given rate. If the configuration or the
 * caller's optimizer sets the rate, the check follows when training begins.
 */
function requireSchedulePossible({ given, schedule, lr, optimizer }: RunSettings): void {
  if (typeof optimizer === 'function' || given.has('lrScheduler')) return;
  if (given.has('lr') || !given.has('deepspeed')) requireFall(schedule, lr);
}

/** Throws DS_ARGUMENT if no evaluation computes a metric that an option needs. */
function requireMetric<Sample, Batch>({
  eval: evaluation,
  save,
  earlyStop,
  loss,
  method,
  model,
}: TrainerSettings<Sample, Batch>): void {
  if (evaluation?.accuracy && loss) {
    const expected = 'the loss of the model itself';
    const hint = 'Count the right answers in `eval.metrics`.';
    throw valueError('Trainer eval.accuracy', expected, '`loss`', hint);
  }
  const best = save?.best ?? null;
  if (best && !evaluation) {
    throw valueError(
      'Trainer save.best',
      'the option `eval`, with data that decides the best checkpoint',
      best.metric,
    );
  }
  const own = method?.metrics ?? (model instanceof TaskModel ? TASK_METRICS : []);
  const isOfTask = own.includes(best?.metric ?? '');
  const isKnown =
    isOfTask || best?.metric === 'loss' || (best?.metric === 'accuracy' && evaluation?.accuracy);
  if (best && !isKnown && !evaluation?.metrics) {
    const expected = '"loss", "accuracy" by `eval.accuracy`, or a name that `eval.metrics` gives';
    throw valueError('Trainer save.best', expected, best.metric);
  }
  if (earlyStop && !best) {
    throw valueError('Trainer earlyStop', '`save.best` with a metric', earlyStop);
  }
}

/** Throws DS_ARGUMENT if options of checkpoints and reports contradict each other. */
function requireSaveOptions({ save, report }: RunSettings): void {
  const file = report.find((report) => typeof report === 'string');
  if (file && !save) {
    const expected = 'the option save.dir for the files of the monitor, or your own monitors';
    throw valueError('Trainer report', expected, file);
  }
  if (!save) return;
  const { best, weights, weightsOnly } = save;
  if (weightsOnly && !weights) {
    throw valueError('Trainer save.weights', 'true if save.weightsOnly is true', false);
  }
  if (best?.load && weightsOnly) {
    const expected = 'false if `save.best` is loaded at the end';
    throw valueError(
      'Trainer save.weightsOnly',
      expected,
      true,
      'Set save.weightsOnly to false, or best: { load: false }.',
    );
  }
  if (save.every === 'best' && !best) {
    throw valueError('Trainer save.every', 'a `save.best` option for the value "best"', 'best');
  }
}
