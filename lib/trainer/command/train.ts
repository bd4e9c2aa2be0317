// Runs one rank of `ds train`: opens model and rows, trains, saves, and prints a sample.

import { setTimeout as pause } from 'node:timers/promises';
import { type CheckpointWorld, onAllRanks } from '../../checkpoint/index.js';
import { requireWritable } from '../../checkpoint/make-folder.js';
import type { Distributed } from '../../comm/index.js';
import { isExperiment } from '../../config/autotuning-rules.js';
import { DATA } from '../../engine/ranks.js';
import { checkpointWorld } from '../../engine/saving/store-world.js';
import { jobOf } from '../../initialize.js';
import type { CausalLM, TaskModel } from '../../models/index.js';
import { DecoderTask } from '../../models/tasks/decoder-task.js';
import type { Module } from '../../nn/index.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import type { TextBatch, TextSample, Tokenizer } from '../../text/index.js';
import { resolveBeforeLength } from '../configuration.js';
import type { EndEvent, LogEvent, TrainerEvent } from '../events.js';
import type { TrainingMethod } from '../methods/method.js';
import type { TrainerOptions } from '../options.js';
import { readTrainerOptions } from '../read-options.js';
import { Trainer } from '../trainer.js';
import { writeJson } from '../weight-folder.js';
import type { TrainArguments } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { requireFiniteWeights } from './finite-weights.js';
import { readMethod } from './methods.js';
import { isPolicy, openPolicy } from './policy.js';
import { openPreferences } from './preference-rows.js';
import { openRows, type RowData } from './rows.js';
import { RunReport, type SampleSource } from './run-report.js';
import { continueText, createPrompt, type Prompt, readFirstPrompt } from './sample.js';
import { openTask, readTask } from './task-rows.js';
import { openTokenizer } from './tokenizer.js';
import { getModelSource, loadSavedModel, openModel } from './trained-model.js';
import { type Evaluation, readTrainerPart } from './trainer-options.js';

/** Prints a line on rank 0. */
type PrintLine = (line: string) => void;

/** How a rank communicates with other ranks and with the user. */
interface RankContext {
  world: CheckpointWorld;
  print: PrintLine;
}

/** Where a run reports its progress. */
interface Reporting {
  world: CheckpointWorld;
  report: RunReport;
  /** Model and prompt of samples; null if there is no prompt, and on ranks other than 0. */
  source: SampleSource | null;
}

/** Hint of the error that a rank did not take part in an exchange. */
const RANKS_HINT =
  'All ranks of ds train need the same arguments and files. Look at the output of that rank. DEEPSPEED_TIMEOUT has the minutes.';

/** Milliseconds that a rank with an error waits for the other ranks. */
const LEAVE_MS = 5000;

/** Default number of tokens of a sample. */
const SAMPLE_TOKENS = 48;

/**
 * Runs this rank of the training to its end. Throws DS_ARGUMENT, DS_DATA, DS_CHECKPOINT, DS_IO, and
 * the errors of a Trainer.
 */
export async function train(args: CheckedArguments): Promise<void> {
  const { options } = readTrainerPart(args, args.output_dir);
  const { device: kind, deepspeed: config = {} } = options;
  const job = await jobOf({ device: kind, config });
  const { device } = job.world;
  const world = checkpointWorld(job, RANKS_HINT);
  const report = new RunReport(job.rank === 0);
  const { print } = report;
  let printSample: (() => Promise<void>) | null = null;
  try {
    const material = await readOnAllRanks(args, { job, world, print });
    const { model, tokenizer, rows, prompt, method = null } = material;
    const { train: data, eval: evalOptions } = rows;
    const parts = { train: data, eval: evalOptions, model, tokenizer, distributed: job };
    const trainerOptions = { ...options, ...parts, ...(method && { method }) };
    const tokens = args.sample_tokens ?? SAMPLE_TOKENS;
    const source = prompt && { model: model as CausalLM, tokenizer, prompt, tokens };
    const isComplete = await trainModel(trainerOptions as RowTrainerOptions, args, {
      world,
      report,
      source,
    });
    if (isComplete && prompt) printSample = () => showSample(args, { tokenizer, prompt, device });
  } catch (error) {
    await leaveFailed(job);
    throw error;
  }
  await job.destroy();
  await printSample?.();
}

/**
 * Leaves the job after an error. It waits for a short time, so that other ranks with the same error
 * can report theirs. It does not wait longer, because ranks without an error may wait for this
 * rank.
 */
async function leaveFailed(job: Distributed): Promise<void> {
  await Promise.race([job.destroy().catch(() => {}), pause(LEAVE_MS)]);
}

/** Model, tokenizer and data of a rank. */
interface Material {
  model: CausalLM | TaskModel;
  tokenizer: Tokenizer;
  rows: Pick<RowData, 'train' | 'eval'>;
  /** The training method. Absent: the model learns next tokens, or labels. */
  method?: TrainingMethod;
  /** Prompt of the sample; null without a sample, and on ranks other than 0. */
  prompt: Prompt | null;
}

/**
 * Opens model, tokenizer and rows on all ranks. If a rank fails, for example because the output is
 * not writable, all ranks fail.
 */
async function readOnAllRanks(
  args: CheckedArguments,
  { job, world, print }: RankContext & { job: Distributed },
): Promise<Material> {
  const isFirst = job.rank === 0;
  const { options, evaluation } = readTrainerPart(args, args.output_dir);
  const materials: Material[] = [];
  await onAllRanks(world, 'preparing to train', async () => {
    if (isFirst) await requireWritable(args.output_dir);
    const tokenizer = await openTokenizer(args);
    const name = readMethod(args);
    if (name) {
      const open = isPolicy(name) ? openPolicy : openPreferences;
      const { model, method, train, lines, ...rest } = await open(args, name, {
        tokenizer,
        evaluation,
        device: job.world.device,
      });
      print(describeRun(args, model, job));
      lines.forEach(print);
      requireTrainerOptions({ ...options, method, model, tokenizer }, evaluation, job);
      const rows = { train: train as never, eval: rest.eval as never };
      materials.push({ model, tokenizer, rows, method, prompt: null });
      return null;
    }
    const task = readTask(args);
    if (task) {
      const { model, train, lines, ...rest } = await openTask(args, task, {
        tokenizer,
        evaluation,
      });
      print(describeRun(args, model, job));
      lines.forEach(print);
      requireTrainerOptions({ ...options, model, tokenizer }, evaluation, job);
      materials.push({ model, tokenizer, rows: { train: train as never, ...rest }, prompt: null });
      return null;
    }
    const model = await openModel(args);
    print(describeRun(args, model, job));
    requireTrainerOptions({ ...options, model, tokenizer }, evaluation, job);
    const rows = await openRows(args, evaluation, { tokenizer, model });
    rows.lines.forEach(print);
    const prompt = isFirst ? await choosePrompt(args, tokenizer, model) : null;
    materials.push({ model, tokenizer, rows, prompt });
    return null;
  });
  return required(materials[0]);
}

/**
 * Throws the errors that a Trainer would throw for these options. It runs before rows are read,
 * because that can take long.
 */
function requireTrainerOptions(
  options: Omit<TrainerOptions<unknown, unknown>, 'train'>,
  evaluation: Evaluation | null,
  { mesh }: Distributed,
): void {
  const data = () => [] as never;
  const evalOptions = evaluation ? { ...evaluation, data } : undefined;
  const settings = readTrainerOptions({ ...options, train: data, eval: evalOptions });
  resolveBeforeLength(settings, mesh.size(...DATA));
}

type RowTrainer = Trainer<TextSample, TextBatch>;
type RowTrainerOptions = TrainerOptions<TextSample, TextBatch> & { model: CausalLM | TaskModel };

/**
 * Trains and saves. Returns false if no model was saved: a signal stopped the run, which then saved
 * a checkpoint, or the run is an autotuning experiment. Throws DS_NONFINITE if a saved weight is
 * not finite.
 */
async function trainModel(
  options: RowTrainerOptions,
  args: CheckedArguments,
  { world, report, source }: Reporting,
): Promise<boolean> {
  const { output_dir: dir, use_peft: isAdapter = false } = args;
  const trainer: RowTrainer = new Trainer(options);
  try {
    const end = await runTraining(trainer, args, { report, source });
    const engine = await trainer.engine();
    if (end.reason === 'stopped' || isExperiment(engine.config)) return false;
    await trainer.save(dir);
    if (engine.globalRank === 0)
      await writeJson(dir, 'trainer_state.json', await trainer.stateJson());
    report.print(`saved ${dir}`);
    await requireFiniteWeights({ dir, isAdapter, step: end.step }, world);
    return true;
  } finally {
    await trainer.destroy();
  }
}

function describeRun(
  args: CheckedArguments,
  model: Module,
  { worldSize, world }: Distributed,
): string {
  const modelParameters = model.parameters();
  const count = (parameters: typeof modelParameters) =>
    parameters.reduce((sum, { numel }) => sum + numel, 0);
  const total = count(modelParameters).toLocaleString('en');
  const trained = count(modelParameters.filter(({ requiresGrad }) => requiresGrad)).toLocaleString(
    'en',
  );
  const trainedText = trained === total ? '' : `, ${trained} of them trained`;
  const ranks = worldSize === 1 ? 'one rank' : `${worldSize} ranks`;
  const device = worldSize === 1 ? world.device.name : world.device.kind;
  const name =
    model instanceof DecoderTask
      ? `${model.decoder.constructor.name} with a head for ${model.task}`
      : model.constructor.name;
  const from = getModelSource(args);
  return `trains ${name} of ${from}: ${total} parameters${trainedText}, ${ranks} on ${device}`;
}

/**
 * Trains to the end and returns the last event. Prints a line for each evaluation and checkpoint,
 * and for each log if there is no progress bar.
 */
async function runTraining(
  trainer: RowTrainer,
  args: TrainArguments,
  { report, source }: Omit<Reporting, 'world'>,
): Promise<EndEvent> {
  const { print } = report;
  report.begin(await trainer.watched());
  const engine = await trainer.engine();
  const { resume_from_checkpoint: resume, ignore_data_skip: skip } = args;
  let last: TrainerEvent | null = null;
  let log: LogEvent | null = null;
  for await (const event of trainer.train({ resume, resumeData: skip ? !skip : undefined })) {
    const line = formatEvent(event, args);
    const isShownByBar = event.type === 'log' && !args.disable_tqdm;
    if (line && isShownByBar) report.record(line);
    else if (line) print(line);
    report.sample(event, engine, source);
    last = event;
    if (event.type === 'log') log = event;
  }
  if (log && !Number.isFinite(log.gradNorm)) {
    print(
      `left out ${log.skipped} of ${log.step} updates, the last one as well: gradients were not finite`,
    );
  }
  return last as EndEvent;
}

function formatEvent(event: TrainerEvent, args: TrainArguments): string | null {
  switch (event.type) {
    case 'begin':
      return event.resumedFrom ? `continues from ${event.resumedFrom}, step ${event.step}` : null;
    case 'log': {
      const { step, loss, lr, gradNorm, tokensPerSecond: speed } = event;
      const numbers = `loss ${loss.toFixed(4)}, rate ${lr.toPrecision(3)}, grad norm ${gradNorm.toPrecision(3)}`;
      const metricTexts = Object.entries(event.metrics).map(
        ([name, x]) => `, ${name} ${x.toPrecision(3)}`,
      );
      return `step ${step}: ${numbers}, ${Math.round(speed)} tokens/s${metricTexts.join('')}`;
    }
    case 'evaluate': {
      const numbers = Object.entries(event.metrics).map(([name, x]) => `${name} ${x.toFixed(4)}`);
      return `step ${event.step}: evaluation ${numbers.join(', ')}${event.isBest ? ' (best)' : ''}`;
    }
    case 'save':
      return `step ${event.step}: saved ${event.path}`;
    case 'alert':
      return `step ${event.step}: ${event.level}: ${event.message}`;
    case 'end':
      return `step ${event.step}: ${event.reason === 'stopped' ? formatStopped(args) : ENDS[event.reason]}`;
    default:
      return null;
  }
}

const ENDS = {
  done: 'done',
  early: 'ends early: evaluations no longer improve',
} as const;

function formatStopped({
  save_strategy: strategy,
  save_only_model: weightsOnly,
}: TrainArguments): string {
  const isKept = strategy !== 'no' && !weightsOnly;
  return isKept
    ? 'stopped; --resume_from_checkpoint continues'
    : 'stopped; no checkpoint to continue from';
}

/** Returns the prompt of the sample; null with --no_sample, or if no row contains a prompt. */
async function choosePrompt(
  args: CheckedArguments,
  tokenizer: Tokenizer,
  { vocabSize }: CausalLM,
): Promise<Prompt | null> {
  const { sample = true, train_file: files, dataset_text_field: key, columns } = args;
  if (typeof sample === 'string') return createPrompt(tokenizer, sample, vocabSize);
  return sample ? readFirstPrompt(tokenizer, files, key, columns) : null;
}

/** Opens the saved model as a user would, and prints a sample. */
async function showSample(
  args: CheckedArguments,
  { tokenizer, prompt, device }: { tokenizer: Tokenizer; prompt: Prompt; device: Device },
): Promise<void> {
  const model = await loadSavedModel(args);
  model.to(device);
  const text = continueText(model, tokenizer, prompt, args.sample_tokens ?? SAMPLE_TOKENS);
  console.log(
    `sample: ${prompt.text}\n     -> ${text.replaceAll(/\s+/g, ' ') || '(it ends at once)'}`,
  );
}
