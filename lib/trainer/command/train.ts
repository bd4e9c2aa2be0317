// Runs one rank of `ds train`: reads model and rows, trains, saves, and prints a sample.

import { setTimeout as pause } from 'node:timers/promises';
import { type CheckpointWorld, onAllRanks } from '../../checkpoint/index.js';
import { requireWritable } from '../../checkpoint/make-folder.js';
import type { Distributed } from '../../comm/index.js';
import { isExperiment } from '../../config/autotuning-rules.js';
import { DATA } from '../../engine/ranks.js';
import { checkpointWorld } from '../../engine/saving/store-world.js';
import { jobOf } from '../../initialize.js';
import type { CausalLM, TaskModel } from '../../models/index.js';
import type { Module } from '../../nn/index.js';
import type { Device } from '../../runtime/device.js';
import { required } from '../../runtime/required.js';
import { type TextBatch, type TextSample, Tokenizer } from '../../text/index.js';
import { firstReading } from '../configuration.js';
import type { EndEvent, LogEvent, TrainerEvent } from '../events.js';
import type { TrainingMethod } from '../methods/method.js';
import type { TrainerOptions } from '../options.js';
import { readTrainerOptions } from '../read-options.js';
import { Trainer } from '../trainer.js';
import { writeJson } from '../weight-folder.js';
import type { TrainArguments } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { requireFinite } from './finite-weights.js';
import { tokenizerFolder } from './hub-model.js';
import { methodIn } from './methods.js';
import { isPolicy, openPolicy } from './policy.js';
import { openPreferences } from './preference-rows.js';
import { openRows, type RowData } from './rows.js';
import { RunReport, type SampleSource } from './run-report.js';
import { continueText, firstPrompt, type Prompt, promptOf } from './sample.js';
import { openTask, taskIn } from './task-rows.js';
import { openModel, savedModel, sourceOf } from './trained-model.js';
import { type Evaluation, trainerPart } from './trainer-options.js';

/** Prints a line on the first rank. */
type Say = (line: string) => void;

/** How a rank speaks with the others and the user. */
interface Meeting {
  world: CheckpointWorld;
  say: Say;
}

/** Output and records of a run. */
interface Reporting {
  world: CheckpointWorld;
  report: RunReport;
  /** Of samples; null without a prompt, and on other ranks. */
  source: SampleSource | null;
}

/** The fix if a rank does not make a call. */
const TOGETHER =
  'All ranks of ds train need the same arguments and files. Look at the output of that rank. DEEPSPEED_TIMEOUT has the minutes.';

/** Milliseconds for which a rank with an error waits for the others. */
const LEAVE_MS = 5000;

/** Tokens of a sample. */
const SAMPLE_TOKENS = 48;

/** Throws DS_ARGUMENT, DS_DATA, DS_CHECKPOINT, DS_IO, and the errors of a Trainer. */
export async function train(args: CheckedArguments): Promise<void> {
  const { options } = trainerPart(args, args.output_dir);
  const { device: kind, deepspeed: config = {} } = options;
  const job = await jobOf({ device: kind, config });
  const { device } = job.world;
  const world = checkpointWorld(job, TOGETHER);
  const report = new RunReport(job.rank === 0);
  const { say } = report;
  let after: (() => Promise<void>) | null = null;
  try {
    const material = await readTogether(args, { job, world, say });
    const { model, tokenizer, rows, prompt, method = null } = material;
    const { train: data, eval: judged } = rows;
    const parts = { train: data, eval: judged, model, tokenizer, distributed: job };
    const all = { ...options, ...parts, ...(method && { method }) };
    const tokens = args.sample_tokens ?? SAMPLE_TOKENS;
    const source = prompt && { model: model as CausalLM, tokenizer, prompt, tokens };
    const isWhole = await trainModel(all as RowTrainerOptions, args, { world, report, source });
    if (isWhole && prompt) after = () => showSample(args, { tokenizer, prompt, device });
  } catch (error) {
    await leaveFailed(job);
    throw error;
  }
  await job.destroy();
  await after?.();
}

/**
 * Leaves the job after an error. Ranks without an error may wait for this one, so this rank waits
 * only until ranks with the same error have reported theirs.
 */
async function leaveFailed(job: Distributed): Promise<void> {
  await Promise.race([job.destroy().catch(() => {}), pause(LEAVE_MS)]);
}

/** Model and data of a rank. */
interface Material {
  model: CausalLM | TaskModel;
  tokenizer: Tokenizer;
  rows: Pick<RowData, 'train' | 'eval'>;
  /** What is learned, if not next tokens or labels. */
  method?: TrainingMethod;
  /** Prompt of the sample, on the first rank. */
  prompt: Prompt | null;
}

/**
 * Reads the files of the arguments on all ranks. If one rank fails, for example because the output
 * is not writable, all ranks fail.
 */
async function readTogether(
  args: CheckedArguments,
  { job, world, say }: Meeting & { job: Distributed },
): Promise<Material> {
  const isFirst = job.rank === 0;
  const { options, evaluation } = trainerPart(args, args.output_dir);
  const found: Material[] = [];
  await onAllRanks(world, 'preparing to train', async () => {
    if (isFirst) await requireWritable(args.output_dir);
    const tokenizer = Tokenizer.fromPretrained(await tokenizerFolder(args));
    const name = methodIn(args);
    if (name) {
      const open = isPolicy(name) ? openPolicy : openPreferences;
      const { model, method, train, lines, ...rest } = await open(args, name, {
        tokenizer,
        evaluation,
        device: job.world.device,
      });
      say(describeRun(args, model, job));
      lines.forEach(say);
      requireTrainer({ ...options, method, model, tokenizer }, evaluation, job);
      const rows = { train: train as never, eval: rest.eval as never };
      found.push({ model, tokenizer, rows, method, prompt: null });
      return null;
    }
    const task = taskIn(args);
    if (task) {
      const { model, train, lines, ...rest } = await openTask(args, task, {
        tokenizer,
        evaluation,
      });
      say(describeRun(args, model, job));
      lines.forEach(say);
      requireTrainer({ ...options, model, tokenizer }, evaluation, job);
      found.push({ model, tokenizer, rows: { train: train as never, ...rest }, prompt: null });
      return null;
    }
    const model = await openModel(args);
    say(describeRun(args, model, job));
    requireTrainer({ ...options, model, tokenizer }, evaluation, job);
    const rows = await openRows(args, evaluation, { tokenizer, maxSeq: model.maxSeq });
    rows.lines.forEach(say);
    const prompt = isFirst ? await promptFor(args, tokenizer, model) : null;
    found.push({ model, tokenizer, rows, prompt });
    return null;
  });
  return required(found[0]);
}

/** Throws the errors of a Trainer with these options before rows are read, which can take long. */
function requireTrainer(
  options: Omit<TrainerOptions<unknown, unknown>, 'train'>,
  evaluation: Evaluation | null,
  { mesh }: Distributed,
): void {
  const data = () => [] as never;
  const judged = evaluation ? { ...evaluation, data } : undefined;
  const settings = readTrainerOptions({ ...options, train: data, eval: judged });
  firstReading(settings, mesh.size(...DATA));
}

type RowTrainer = Trainer<TextSample, TextBatch>;
type RowTrainerOptions = TrainerOptions<TextSample, TextBatch> & { model: CausalLM | TaskModel };

/**
 * Trains and saves. Returns false if a signal stopped the run, which then left a checkpoint, and if
 * the run was an autotuning experiment. Throws DS_NONFINITE if the saved weights are not finite.
 */
async function trainModel(
  options: RowTrainerOptions,
  args: CheckedArguments,
  { world, report, source }: Reporting,
): Promise<boolean> {
  const { output_dir: dir, use_peft: isAdapter = false } = args;
  const trainer: RowTrainer = new Trainer(options);
  try {
    const end = await run(trainer, args, { report, source });
    const engine = await trainer.engine();
    if (end.reason === 'stopped' || isExperiment(engine.config)) return false;
    await trainer.save(dir);
    if (engine.globalRank === 0)
      await writeJson(dir, 'trainer_state.json', await trainer.stateJson());
    report.say(`saved ${dir}`);
    await requireFinite({ dir, isAdapter, step: end.step }, world);
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
  const all = model.parameters();
  const count = (parameters: typeof all) => parameters.reduce((sum, { numel }) => sum + numel, 0);
  const total = count(all).toLocaleString('en');
  const trained = count(all.filter(({ requiresGrad }) => requiresGrad)).toLocaleString('en');
  const which = trained === total ? '' : `, ${trained} of them trained`;
  const ranks = worldSize === 1 ? 'one rank' : `${worldSize} ranks`;
  const device = worldSize === 1 ? world.device.name : world.device.kind;
  const name = model.constructor.name;
  const from = sourceOf(args);
  return `trains ${name} of ${from}: ${total} parameters${which}, ${ranks} on ${device}`;
}

/** Trains to the end. A line for each evaluation and save; for each log where no bar is drawn. */
async function run(
  trainer: RowTrainer,
  args: TrainArguments,
  { report, source }: Omit<Reporting, 'world'>,
): Promise<EndEvent> {
  const { say } = report;
  report.begin(await trainer.watched());
  const engine = await trainer.engine();
  const { resume_from_checkpoint: resume, ignore_data_skip: skip } = args;
  let last: TrainerEvent | null = null;
  let log: LogEvent | null = null;
  for await (const event of trainer.train({ resume, resumeData: skip ? !skip : undefined })) {
    const line = lineOf(event, args);
    const isShownByBar = event.type === 'log' && !args.disable_tqdm;
    if (line && isShownByBar) report.record(line);
    else if (line) say(line);
    report.sample(event, engine, source);
    last = event;
    if (event.type === 'log') log = event;
  }
  if (log && !Number.isFinite(log.gradNorm)) {
    say(
      `left out ${log.skipped} of ${log.step} updates, the last one as well: gradients were not finite`,
    );
  }
  return last as EndEvent;
}

function lineOf(event: TrainerEvent, args: TrainArguments): string | null {
  switch (event.type) {
    case 'begin':
      return event.resumedFrom ? `continues from ${event.resumedFrom}, step ${event.step}` : null;
    case 'log': {
      const { step, loss, lr, gradNorm, tokensPerSecond: speed } = event;
      const numbers = `loss ${loss.toFixed(4)}, rate ${lr.toPrecision(3)}, grad norm ${gradNorm.toPrecision(3)}`;
      const own = Object.entries(event.metrics).map(([name, x]) => `, ${name} ${x.toPrecision(3)}`);
      return `step ${step}: ${numbers}, ${Math.round(speed)} tokens/s${own.join('')}`;
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
      return `step ${event.step}: ${event.reason === 'stopped' ? stoppedText(args) : ENDS[event.reason]}`;
    default:
      return null;
  }
}

const ENDS = {
  done: 'done',
  early: 'ends early: evaluations no longer improve',
} as const;

function stoppedText({
  save_strategy: strategy,
  save_only_model: weightsOnly,
}: TrainArguments): string {
  const isKept = strategy !== 'no' && !weightsOnly;
  return isKept
    ? 'stopped; --resume_from_checkpoint continues'
    : 'stopped; no checkpoint to continue from';
}

/** Null with --no_sample, or if the rows contain no prompt. */
async function promptFor(
  args: CheckedArguments,
  tokenizer: Tokenizer,
  { vocabSize }: CausalLM,
): Promise<Prompt | null> {
  const { sample = true, train_file: files, dataset_text_field: key } = args;
  if (typeof sample === 'string') return promptOf(tokenizer, sample, vocabSize);
  return sample ? firstPrompt(tokenizer, files, key) : null;
}

/** Loads the saved model, as a user does, and prints a sample. */
async function showSample(
  args: CheckedArguments,
  { tokenizer, prompt, device }: { tokenizer: Tokenizer; prompt: Prompt; device: Device },
): Promise<void> {
  const model = await savedModel(args);
  model.to(device);
  const text = continueText(model, tokenizer, prompt, args.sample_tokens ?? SAMPLE_TOKENS);
  console.log(
    `sample: ${prompt.text}\n     -> ${text.replaceAll(/\s+/g, ' ') || '(it ends at once)'}`,
  );
}
