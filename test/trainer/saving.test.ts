// Tests a Trainer's checkpoints on one rank: when they are saved, their content, retention, and
// resume.
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type EvaluateEvent,
  nn,
  type Trainer,
  type TrainerEvent,
  type TrainerOptions,
} from '../../lib/index.js';
import {
  destroyTrainers,
  SEQ,
  samples,
  tinyModel,
  tinyTrainer,
  type Window,
  weightsOf,
} from './tiny.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-trainer-'));
});
afterEach(async () => {
  await destroyTrainers();
  rmSync(dir, { recursive: true, force: true });
});

type Options = Partial<TrainerOptions<Window>>;

const trainer = (options: Options): Trainer<Window> =>
  tinyTrainer({ model: tinyModel(0.1), epochs: 2, ...options });

const checkpoints = (): string[] =>
  readdirSync(dir)
    .filter((name) => name.startsWith('checkpoint-'))
    .sort((a, b) => Number(a.split('-')[1]) - Number(b.split('-')[1]));

const stateOf = (name: string) =>
  JSON.parse(readFileSync(join(dir, name, 'trainer_state.json'), 'utf8'));

/** Metrics of the evaluations, in order. */
function scriptScores(values: readonly number[]) {
  let turn = 0;
  return () => ({
    score: { sum: values[Math.min(turn++, values.length - 1)] as number, count: 1 },
  });
}

/** One batch, read once per evaluation. */
const judged = samples(2, 70);

test.each([1, 3, 6, 9])(
  'stopped at step %i and resumed is never stopped, to the bit',
  async (at) => {
    const fullTrainer = trainer({ accumulation: 1 });
    await fullTrainer.train();
    const abort = new AbortController();
    const first = trainer({ save: { dir, every: 1000 } });
    first.on('step', ({ step }) => {
      if (step === at) abort.abort();
    });
    const end = await first.train({ signal: abort.signal });
    const checkpoint = join(dir, `checkpoint-${at}`);
    expect(end).toMatchObject({ reason: 'stopped', step: at, checkpoint });
    const second = trainer({ save: { dir, every: 1000 } });
    const events: TrainerEvent[] = [];
    for await (const event of second.train({ resume: true })) events.push(event);
    expect(events[0]).toMatchObject({
      type: 'begin',
      step: at,
      maxSteps: 10,
      resumedFrom: checkpoint,
    });
    expect(events.at(-1)).toMatchObject({ reason: 'done', step: 10, epoch: 2 });
    const [resumedEngine, expectedEngine] = [await second.engine(), await fullTrainer.engine()];
    expect(weightsOf(resumedEngine.module)).toEqual(weightsOf(expectedEngine.module));
    const { log_history: history } = stateOf('checkpoint-10');
    const { history: unbroken } = await fullTrainer.state();
    expect(history).toEqual(unbroken);
  },
);

/** The step at which a run stops, and the evaluation that is due then. */
const EVALUATED: readonly [string, number, Options['eval']][] = [
  ['of every third update', 3, { data: judged, every: 3, accuracy: true }],
  ['of the epoch', 5, { data: judged, accuracy: true }],
  ['of the last update', 10, { data: judged, every: 1000, accuracy: true }],
];

test.each(EVALUATED)('the evaluation %s is made by the resumed run', async (_, at, evaluation) => {
  const options: Options = { eval: evaluation };
  const fullTrainer = trainer({ ...options, save: { dir: join(dir, 'whole'), best: 'loss' } });
  const unbroken = await fullTrainer.train();
  const abort = new AbortController();
  const save = { dir, every: 1000, best: 'loss' };
  const first = trainer({ ...options, save });
  first.on('step', ({ step }) => {
    if (step === at) abort.abort();
  });
  expect(await first.train({ signal: abort.signal })).toMatchObject({ step: at });
  const second = trainer({ ...options, save });
  const end = await second.train({ resume: true });
  expect((await second.state()).history).toEqual((await fullTrainer.state()).history);
  const [resumedEngine, expectedEngine] = [await second.engine(), await fullTrainer.engine()];
  expect(weightsOf(resumedEngine.module)).toEqual(weightsOf(expectedEngine.module));
  const { step, metric } = unbroken.best as { step: number; metric: number };
  expect(end.best).toEqual({ step, metric, checkpoint: join(dir, `checkpoint-${step}`) });
});

test('an evaluation after the checkpoint of its step is repeated after a crash', async () => {
  const options: Options = { eval: { data: judged }, save: { dir, every: 5 } };
  const fullTrainer = trainer({ ...options, save: { dir: join(dir, 'whole'), every: 5 } });
  await fullTrainer.train();
  // As after a crash: the checkpoint of the epoch's last update exists, the evaluation does not.
  for await (const event of trainer(options).train()) if (event.type === 'save') break;
  const second = trainer(options);
  const steps: number[] = [];
  second.on('evaluate', ({ step }) => void steps.push(step));
  await second.train({ resume: true });
  expect(steps).toEqual([5, 10]);
  expect((await second.state()).history).toEqual((await fullTrainer.state()).history);
});

test('an evaluated checkpoint is not evaluated again', async () => {
  const options: Options = { eval: { data: judged, every: 5 }, save: { dir, every: 5 } };
  await trainer({ ...options, maxSteps: 5 }).train();
  const evaluated: number[] = [];
  const second = trainer(options);
  second.on('evaluate', ({ step }) => void evaluated.push(step));
  await second.train({ resume: true });
  expect(evaluated).toEqual([10]);
});

/** Batch sizes before and after, the step of the checkpoint, and updates after it. */
const OTHER_SIZES = [
  [2, 4, 4, 4],
  [4, 2, 2, 8],
  [2, 4, 3, 5],
] as const;
const SCHEDULERS: readonly Options[] = [
  {},
  {
    deepspeed: {
      scheduler: {
        type: 'WarmupDecayLR',
        params: { warmup_max_lr: 3e-3, warmup_num_steps: 0, total_num_steps: 'auto' },
      },
    },
  },
];

test.each(
  SCHEDULERS.flatMap((options) => OTHER_SIZES.map((sizes) => [options, ...sizes] as const)),
)(
  'a run %j of batches of %i goes on with batches of %i at step %i to the end of its epochs',
  async (options, before, after, at, left) => {
    const common: Options = { ...options, train: samples(12), save: { dir, every: at } };
    const fullTrainer = trainer({ ...common, batchSize: before, save: undefined });
    await fullTrainer.train();
    const first = trainer({ ...common, batchSize: before });
    for await (const event of first.train()) if (event.type === 'save') break;
    const second = trainer({ ...common, batchSize: after });
    const rates: number[] = [];
    second.on('log', ({ lr }) => void rates.push(lr));
    const end = await second.train({ resume: true });
    expect(end).toMatchObject({ reason: 'done', step: at + left, epoch: 2 });
    expect((await second.state()).tokens).toBe((await fullTrainer.state()).tokens);
    // Each rate is that of its position in a run with only this batch size.
    const alone = trainer({ ...common, batchSize: after, save: undefined });
    const expected: number[] = [];
    alone.on('log', ({ lr }) => void expected.push(lr));
    await alone.train();
    expect(rates).toEqual(expected.slice(-left));
  },
);

test('a requested number of updates stays, for any batch size', async () => {
  const common: Options = { train: samples(12), save: { dir, every: 4 }, maxSteps: 7 };
  for await (const event of trainer({ ...common, batchSize: 2 }).train()) {
    if (event.type === 'save') break;
  }
  const end = await trainer({ ...common, batchSize: 4 }).train({ resume: true });
  expect(end).toMatchObject({ reason: 'done', step: 7 });
});

test('without a checkpoint, resume starts anew; one of another program is refused', async () => {
  const events: TrainerEvent[] = [];
  for await (const event of trainer({ save: dir, maxSteps: 1 }).train({ resume: true })) {
    events.push(event);
  }
  expect(events[0]).toMatchObject({ type: 'begin', step: 0, resumedFrom: null });
  const other = trainer({});
  await (await other.engine()).saveCheckpoint(join(dir, 'other'));
  const one = trainer({});
  await expect(one.train({ resume: join(dir, 'other') })).rejects.toThrow(
    "another program's, without a Trainer's state",
  );
});

test('keeps the newest checkpoints and the best; never deletes other files', async () => {
  const warning = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const metrics = scriptScores([1, 5, 2, 3, 4]);
  const one = trainer({
    eval: { data: judged, every: 2, metrics },
    save: { dir, every: 2, keep: 2, best: 'score' },
  });
  one.on('save', ({ path, step }) => {
    if (step === 6) writeFileSync(join(path, 'notes.txt'), 'mine');
  });
  const end = await one.train();
  expect(end.best).toEqual({ metric: 5, step: 4, checkpoint: join(dir, 'checkpoint-4') });
  expect(checkpoints()).toEqual(['checkpoint-4', 'checkpoint-6', 'checkpoint-10']);
  expect(readdirSync(join(dir, 'checkpoint-6'))).toEqual(['notes.txt']);
  const stays = expect.stringContaining('was kept: save.keep does not delete notes.txt');
  expect(warning).toHaveBeenCalledWith(stays, expect.anything());
  warning.mockRestore();
  // At the end the model has the weights of the best checkpoint.
  const best = await nn.models.fromPretrained(join(dir, 'checkpoint-4'));
  expect(weightsOf((await one.engine()).module)).toEqual(weightsOf(best));
});

test('with one checkpoint to keep, only the best stays if it is the newest', async () => {
  const metrics = scriptScores([1, 2, 0, 3]);
  const one = trainer({
    eval: { data: judged, every: 2, metrics },
    save: { dir, every: 2, keep: 1, best: 'score' },
    maxSteps: 8,
  });
  const there: string[][] = [];
  one.on('step', () => void there.push(checkpoints()));
  await one.train();
  const at = (step: number) => `checkpoint-${step}`;
  expect([there[2], there[4], there[6]]).toEqual([[at(2)], [at(4)], [at(4), at(6)]]);
  expect(checkpoints()).toEqual([at(8)]);
});

test('the best checkpoint moves with the folder of a run', async () => {
  const metrics = scriptScores([1, 5, 2, 3]);
  const options = { eval: { data: judged, every: 2, metrics } };
  const save = { dir: join(dir, 'old'), every: 2, keep: 1, best: 'score' };
  await trainer({ ...options, save, maxSteps: 6 }).train();
  const moved = join(dir, 'new');
  renameSync(save.dir, moved);
  const second = trainer({ ...options, save: { ...save, dir: moved }, maxSteps: 8 });
  const end = await second.train({ resume: true });
  const checkpoint = join(moved, 'checkpoint-4');
  expect(end.best).toEqual({ metric: 5, step: 4, checkpoint });
  expect(readdirSync(moved).sort()).toEqual(['checkpoint-4', 'checkpoint-8']);
  const best = await nn.models.fromPretrained(checkpoint);
  expect(weightsOf((await second.engine()).module)).toEqual(weightsOf(best));
});

test('a run without its best checkpoint warns, and ends with its last weights', async () => {
  const warning = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const metrics = scriptScores([5, 2, 3]);
  const options = { eval: { data: judged, every: 2, metrics } };
  const save = { dir, every: 2, best: 'score' };
  await trainer({ ...options, save, maxSteps: 4 }).train();
  rmSync(join(dir, 'checkpoint-2'), { recursive: true });
  const end = await trainer({ ...options, save, maxSteps: 6 }).train({ resume: true });
  expect(end).toMatchObject({ reason: 'done', best: { metric: 5, step: 2, checkpoint: null } });
  expect(warning).toHaveBeenCalledWith(
    expect.stringContaining('checkpoint-2, the best checkpoint so far, is missing'),
    expect.anything(),
  );
  warning.mockRestore();
});

test('training ends early if evaluations do not improve by the threshold', async () => {
  const metrics = scriptScores([3, 2, 1.95, 1.99, 1]);
  const one = trainer({
    eval: { data: judged, every: 1, metrics },
    save: { dir, every: 'best', best: { metric: 'score', greaterIsBetter: false } },
    earlyStop: { patience: 2, threshold: 0.1 },
  });
  const evaluations: EvaluateEvent[] = [];
  one.on('evaluate', (event) => evaluations.push(event));
  const end = await one.train();
  expect(evaluations.map(({ isBest }) => isBest)).toEqual([true, true, true, false]);
  expect(end).toMatchObject({ reason: 'early', step: 4, best: { metric: 1.95, step: 3 } });
  expect(checkpoints()).toEqual(['checkpoint-1', 'checkpoint-2', 'checkpoint-3']);
});

test('an early-stopped run stays ended, unless the patience is raised', async () => {
  const options = (patience: number): Options => ({
    eval: { data: judged, every: 1, metrics: scriptScores([1]) },
    save: { dir, every: 1, best: 'score' },
    earlyStop: { patience },
  });
  expect(await trainer(options(2)).train()).toMatchObject({ reason: 'early', step: 3 });
  const again = trainer(options(2));
  const end = await again.train({ resume: true });
  expect(end).toMatchObject({ reason: 'early', step: 3, best: { step: 1 } });
  const best = await nn.models.fromPretrained(join(dir, 'checkpoint-1'));
  expect(weightsOf((await again.engine()).module)).toEqual(weightsOf(best));
  const patient = trainer(options(5));
  expect(await patient.train({ resume: true })).toMatchObject({ reason: 'early', step: 6 });
});

test('trainer_state.json has the fields of transformers', async () => {
  const metrics = scriptScores([1, 2]);
  await trainer({
    eval: { data: judged, every: 'epoch', metrics },
    save: { dir, every: 'epoch', best: 'score' },
    earlyStop: { patience: 3 },
    log: { every: 5 },
  }).train();
  expect(checkpoints()).toEqual(['checkpoint-5', 'checkpoint-10']);
  const state = stateOf('checkpoint-10');
  expect(state).toMatchObject({
    best_global_step: 10,
    best_metric: 2,
    epoch: 2,
    global_step: 10,
    max_steps: 10,
    best_model_checkpoint: join(dir, 'checkpoint-10'),
    num_train_epochs: 2,
    num_input_tokens_seen: 2 * 10 * 9,
    train_batch_size: 2,
    logging_steps: 5,
    eval_steps: null,
    save_steps: null,
    is_world_process_zero: true,
    trial_name: null,
    stateful_callbacks: {
      EarlyStoppingCallback: {
        args: { early_stopping_patience: 3, early_stopping_threshold: 0 },
        attributes: { early_stopping_patience_counter: 0 },
      },
    },
  });
  expect(state.total_flos).toBeGreaterThan(0);
  const kinds = state.log_history.map((item: object) => Object.keys(item).sort().join());
  expect(kinds).toEqual([
    'epoch,grad_norm,learning_rate,loss,num_tokens,step',
    'epoch,eval_loss,eval_score,step',
    'epoch,grad_norm,learning_rate,loss,num_tokens,step',
    'epoch,eval_loss,eval_score,step',
  ]);
});

test.each<[string, Options]>([
  ['an evaluation', { eval: { data: judged, every: 2 } }],
  ['a save', { save: { dir: 'here', every: 2 } }],
  [
    'both, the evaluation first',
    { eval: { data: judged, every: 2 }, save: { dir: 'here', every: 2 } },
  ],
])('a log in the step of %s includes the tokens and the speed of that step', async (_, options) => {
  const save = options.save && { dir, every: 2 };
  const one = trainer({ ...options, save, log: { every: 2 }, epochs: 1 });
  const reported: [number, number][] = [];
  one.on('log', ({ step, tokens, tokensPerSecond }) => {
    reported.push([step, tokens]);
    expect(tokensPerSecond).toBeGreaterThan(0);
  });
  await one.train();
  expect(reported).toEqual([2, 4, 5].map((step) => [step, step * 2 * SEQ]));
});

test('weights only: a folder that loads, but no resume', async () => {
  const one = trainer({ maxSteps: 1, save: { dir, weightsOnly: true } });
  await one.train();
  const path = join(dir, 'checkpoint-1');
  expect(readdirSync(path).sort()).toEqual([
    'config.json',
    'model.safetensors',
    'trainer_state.json',
  ]);
  const saved = await nn.models.fromPretrained(path);
  expect(weightsOf(saved)).toEqual(weightsOf((await one.engine()).module));
  await expect(trainer({}).train({ resume: path })).rejects.toThrow('one without an engine in it');
  const again = trainer({ save: { dir, weightsOnly: true } });
  await expect(again.train({ resume: true })).rejects.toThrow(
    /to begin at step 0, got checkpoint-1\. Checkpoints of save\.weightsOnly .* hold no optimizer/,
  );
});

test('reports have the values of the events, by step', async () => {
  const written: unknown[] = [];
  const monitor = {
    write: (events: readonly object[]) => void written.push(...events),
    flush: async () => {},
    close: () => {},
  };
  const one = trainer({
    maxSteps: 2,
    save: dir,
    report: ['csv', 'tensorboard', monitor],
    runName: 'first',
    eval: { data: judged, every: 2 },
  });
  const events: TrainerEvent[] = [];
  for await (const event of one.train()) events.push(event);
  const { loss } = events.find(({ type }) => type === 'log') as { loss: number } & TrainerEvent;
  const run = join(dir, 'runs', 'first');
  const rows = readFileSync(join(run, 'train_loss.csv'), 'utf8').trim().split('\n');
  expect(rows[1]?.trim()).toBe(`1,${loss}`);
  expect(rows).toHaveLength(3);
  expect(existsSync(join(run, 'eval_loss.csv'))).toBe(true);
  expect(readdirSync(run).some((name) => name.startsWith('events.out.tfevents'))).toBe(true);
  expect(written).toContainEqual({ name: 'train/loss', value: loss, step: 1 });
});
