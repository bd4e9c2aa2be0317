// A Trainer's checkpoints on one rank: when, what is in them, which stay, and going on from them.
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type EvaluateEvent,
  nn,
  Trainer,
  type TrainerEvent,
  type TrainerOptions,
} from '../../lib/index.js';
import { SEQ, samples, tinyModel, type Window, weightsOf } from './tiny.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-trainer-'));
});
const open: Trainer<Window>[] = [];
afterEach(async () => {
  for (const one of open.splice(0)) await one.destroy();
  rmSync(dir, { recursive: true, force: true });
});

type Options = Partial<TrainerOptions<Window>>;

function trainer(options: Options): Trainer<Window> {
  const one = new Trainer<Window>({
    ...{ model: tinyModel(0.1), train: samples(10), device: 'cpu', progress: false, lr: 3e-3 },
    ...{ batchSize: 2, epochs: 2, log: { every: 1 }, stopSignals: [], ...options },
  });
  open.push(one);
  return one;
}

const checkpoints = (): string[] =>
  readdirSync(dir)
    .filter((name) => name.startsWith('checkpoint-'))
    .sort((a, b) => Number(a.split('-')[1]) - Number(b.split('-')[1]));

const stateOf = (name: string) =>
  JSON.parse(readFileSync(join(dir, name, 'trainer_state.json'), 'utf8'));

/** Metrics that evaluations give one after the other. */
function scripted(values: readonly number[]) {
  let turn = 0;
  return () => ({
    score: { sum: values[Math.min(turn++, values.length - 1)] as number, count: 1 },
  });
}

/** Evaluated once per evaluation: one batch. */
const judged = samples(2, 70);

test.each([1, 3, 6, 9])(
  'stopped at step %i and resumed is never stopped, to the bit',
  async (at) => {
    const whole = trainer({ accumulation: 1 });
    await whole.train();
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
    const [ours, theirs] = [await second.engine(), await whole.engine()];
    expect(weightsOf(ours.module)).toEqual(weightsOf(theirs.module));
    const { log_history: history } = stateOf('checkpoint-10');
    const { history: unbroken } = await whole.state();
    expect(history).toEqual(unbroken);
  },
);

test('without a checkpoint resume begins afresh; one of another program is refused', async () => {
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

test('the newest checkpoints stay, and the best; what is not theirs is never deleted', async () => {
  const warning = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
  const metrics = scripted([1, 5, 2, 3, 4]);
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
  const stays = expect.stringContaining('stays: save.keep does not delete notes.txt');
  expect(warning).toHaveBeenCalledWith(stays, expect.anything());
  warning.mockRestore();
  // The best one's weights are the model's in the end.
  const best = await nn.models.fromPretrained(join(dir, 'checkpoint-4'));
  expect(weightsOf((await one.engine()).module)).toEqual(weightsOf(best));
});

test('training ends early where evaluations no longer improve by the threshold', async () => {
  const metrics = scripted([3, 2, 1.95, 1.99, 1]);
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

test('trainer_state.json has the fields of transformers', async () => {
  const metrics = scripted([1, 2]);
  await trainer({
    eval: { data: judged, every: 'epoch', metrics },
    save: { dir, every: 'epoch', best: 'score' },
    earlyStop: { patience: 3 },
    log: { every: 5 },
  }).train();
  expect(checkpoints()).toEqual(['checkpoint-5', 'checkpoint-10']);
  const state = stateOf('checkpoint-10');
  expect(state).toMatchObject({
    ...{ best_global_step: 10, best_metric: 2, epoch: 2, global_step: 10, max_steps: 10 },
    ...{ best_model_checkpoint: join(dir, 'checkpoint-10'), num_train_epochs: 2 },
    ...{ num_input_tokens_seen: 2 * 10 * 9, train_batch_size: 2, logging_steps: 5 },
    ...{ eval_steps: null, save_steps: null, is_world_process_zero: true, trial_name: null },
    stateful_callbacks: {
      EarlyStoppingCallback: {
        args: { early_stopping_patience: 3, early_stopping_threshold: 0 },
        attributes: { early_stopping_patience_counter: 0 },
      },
    },
  });
  expect(state.total_flos).toBeGreaterThan(0);
  const kinds = state.log_history.map((one: object) => Object.keys(one).sort().join());
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
])(
  'a log in the step of %s says the tokens and the speed of that step, too',
  async (_, options) => {
    const save = options.save && { dir, every: 2 };
    const one = trainer({ ...options, save, log: { every: 2 }, epochs: 1 });
    const told: [number, number][] = [];
    one.on('log', ({ step, tokens, tokensPerSecond }) => {
      told.push([step, tokens]);
      expect(tokensPerSecond).toBeGreaterThan(0);
    });
    await one.train();
    expect(told).toEqual([2, 4, 5].map((step) => [step, step * 2 * SEQ]));
  },
);

test('weights alone: a folder that loads, and no place to go on from', async () => {
  const one = trainer({ maxSteps: 1, save: { dir, weightsOnly: true } });
  await one.train();
  const path = join(dir, 'checkpoint-1');
  expect(readdirSync(path).sort()).toEqual([
    ...['config.json', 'model.safetensors', 'trainer_state.json'],
  ]);
  const saved = await nn.models.fromPretrained(path);
  expect(weightsOf(saved)).toEqual(weightsOf((await one.engine()).module));
  await expect(trainer({}).train({ resume: path })).rejects.toThrow('one without an engine in it');
});

/** GPT-2's files are laid out unlike its parameters, Llama's as they are. */
const models: readonly [string, () => nn.Module][] = [
  ['GPT-2', () => tinyModel()],
  [
    'Llama',
    () =>
      new nn.models.Llama({
        ...{ vocabSize: 61, maxSeq: 16, layers: 1, heads: 2, kvHeads: 1, channels: 16 },
        hidden: 24,
      }),
  ],
];

test.each(models)(
  'save() writes a folder of %s with its tokenizer, over an older one',
  async (_, model) => {
    const tokenizer = join(dir, 'tokenizer');
    mkdirSync(tokenizer);
    writeFileSync(join(tokenizer, 'tokenizer.json'), JSON.stringify(TOKENIZER));
    writeFileSync(join(tokenizer, 'chat_template.jinja'), '{{ messages }}');
    const one = trainer({ model: model(), tokenizer, maxSteps: 1 });
    const out = join(dir, 'out');
    await one.save(out);
    await one.train();
    await one.save(out);
    expect(readdirSync(out).sort()).toEqual([
      ...['chat_template.jinja', 'config.json', 'model.safetensors', 'tokenizer.json'],
    ]);
    const saved = await nn.models.fromPretrained(out);
    expect(weightsOf(saved)).toEqual(weightsOf((await one.engine()).module));
  },
);

/** Two words. */
const TOKENIZER = {
  version: '1.0',
  truncation: null,
  padding: null,
  added_tokens: [],
  normalizer: null,
  pre_tokenizer: { type: 'Whitespace' },
  post_processor: null,
  decoder: null,
  model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: [] },
};

test('reports hold what events say, by steps', async () => {
  const written: unknown[] = [];
  const monitor = {
    write: (events: readonly object[]) => void written.push(...events),
    flush: async () => {},
    close: () => {},
  };
  const one = trainer({
    ...{ maxSteps: 2, save: dir, report: ['csv', 'tensorboard', monitor], runName: 'first' },
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
