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

/** Options without sample types, with defaults; null means disabled. */
export interface RunSettings
  extends Settings<typeof MODEL>,
    Settings<typeof OPTIMIZATION>,
    Omit<Settings<typeof REPORTING>, 'watch'> {
  /** Names of the options that the caller has given. */
  given: ReadonlySet<string>;
  eval: EvalPlan | null;
  data: DataPlan;
  /** Null records nothing. */
  watch: WatchOptions | null;
}

type EvalPlan = Settings<typeof EVALUATION> & { batchSize: number };
type DataPlan = Settings<typeof LOADING> & { seed: number };

/** TrainerOptions with defaults. */
export interface TrainerSettings<Sample, Batch> extends RunSettings {
  train: Settings<ReturnType<typeof declareSampleOptions<Sample, Batch>>>['train'];
  eval: (EvalPlan & EvalSettings<Sample, Batch>) | null;
  data: DataPlan & Pick<TrainerDataOptions<Sample, Batch>, 'collate' | 'lengths'>;
  loss: TrainerOptions<Sample, Batch>['loss'];
  count: TrainerOptions<Sample, Batch>['count'];
}

/**
 * Returns `given` with defaults. Throws DS_ARGUMENT with the name of an unknown or invalid option,
 * and for options that exclude each other. Throws DS_DATA for a folder without a tokenizer.
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
  const { seed, batchSize, data, eval: judged, watch, save } = read;
  const own = Object.entries(readOptions('Trainer', given, declared));
  const has = new Set(own.filter(([, value]) => value !== undefined).map(([name]) => name));
  const settings = {
    ...read,
    given: has,
    lr: has.has('lr') ? read.lr : (read.method?.lr ?? read.lr),
    eval: judged && { ...judged, batchSize: judged.batchSize ?? batchSize },
    data: { ...data, seed: data.seed ?? seed },
    watch: watchOf(watch, save),
  };
  requireSchedulePossible(settings);
  requireJudged(settings);
  requireSaved(settings);
  return settings;
}

/** The folder of the run is that of its checkpoints. */
function watchOf(given: boolean | WatchOptions, save: SaveSettings | null): WatchOptions | null {
  if (given === false) return null;
  return { ...(save && { dir: save.dir }), ...(given === true ? {} : given) };
}

/** Other rates and schedules are known when training begins. */
function requireSchedulePossible({ given, schedule, lr, optimizer }: RunSettings): void {
  if (typeof optimizer === 'function' || given.has('lrScheduler')) return;
  if (given.has('lr') || !given.has('deepspeed')) requireFall(schedule, lr);
}

/** Throws DS_ARGUMENT for a metric that no evaluation computes. */
function requireJudged<Sample, Batch>({
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

/** Throws DS_ARGUMENT for checkpoints and reports that exclude each other. */
function requireSaved({ save, report }: RunSettings): void {
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
