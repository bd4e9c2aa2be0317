// `ds eval --task`: classifiers, their adapters, decoders, and mistakes.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, nn, peft, seed, Trainer, text } from '../../lib/index.js';
import { TOKENIZERS } from '../models/head-rows.js';
import { stir } from '../peft/models.js';
import { DS } from './jobs.js';

const TASK = 'sequence-classification';
const FROM = join(TOKENIZERS, 'wordpiece');
const tokenizer = text.Tokenizer.fromPretrained(FROM);
const SIZES = { layers: 1, heads: 2, channels: 16, maxSeq: 32, vocabSize: tokenizer.vocabSize };
const ROWS = [
  { text: 'a good film', label: 'good' },
  { text: 'an awful plot was not great', label: 'bad' },
  { text: 'the dog', label: 'bad' },
  { text: 'happy acting', label: 'good' },
  { text: 'the film was very bad', label: 'bad' },
];

const dir = mkdtempSync(join(tmpdir(), 'ds-eval-task-'));
const path = (name: string): string => join(dir, name);
jest.spyOn(process, 'emitWarning').mockImplementation(() => {});

beforeAll(async () => {
  seed(5);
  const body = new nn.models.Bert({ ...SIZES, hidden: 24, dropout: 0, task: 'embedding' });
  await body.save(path('base'));
  const gpt = new nn.models.Llama({ ...SIZES, hidden: 24, kvHeads: 1, tied: true });
  await gpt.save(path('decoder'));
  for (const name of ['base', 'decoder']) cpSync(FROM, path(name), { recursive: true });
  const labels = ['bad', 'good'];
  const model = await nn.models.fromPretrained(path('base'), { task: TASK, labels });
  stir(model);
  await model.save(path('whole'));
  cpSync(FROM, path('whole'), { recursive: true });
  const adapted = await nn.models.fromPretrained(path('base'), { task: TASK, labels });
  peft.addLora(adapted, { r: 2, taskType: 'SEQ_CLS', modulesToSave: adapted.unsavedModules() });
  stir(adapted);
  await peft.saveAdapter(adapted, path('adapter'));
  const decoder = await nn.models.fromPretrained(path('decoder'), { task: TASK, labels });
  stir(decoder);
  await decoder.save(path('decoder-whole'));
  cpSync(FROM, path('decoder-whole'), { recursive: true });
  writeFileSync(path('rows.jsonl'), ROWS.map((row) => JSON.stringify(row)).join('\n'));
  writeFileSync(path('odd.jsonl'), JSON.stringify({ text: 'a', label: 'fine' }));
  const pairs = ROWS.map(({ text, label }) => ({ one: text, two: 'a dog', mood: label }));
  writeFileSync(path('pairs.jsonl'), pairs.map((row) => JSON.stringify(row)).join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function ds(line: string) {
  const env = { ...process.env, DS_NUM_THREADS: '1' };
  const words = [...DS, 'eval', ...line.split(' '), '--device', 'cpu'];
  return spawnSync(process.execPath, words, { cwd: dir, encoding: 'utf8', env });
}

/** Accuracy and the F1 of "good", from the labels that classify() gives. */
function expected(model: nn.models.TaskModel) {
  const found = model.classify(
    ROWS.map(({ text }) => text),
    { tokenizer },
  );
  const pairs = found.map(({ label }, i) => [label, ROWS[i]?.label] as const);
  const count = (test: (pair: readonly [string, string | undefined]) => boolean): number =>
    pairs.filter(test).length;
  const hits = count(([a, b]) => a === 'good' && b === 'good');
  return {
    accuracy: count(([a, b]) => a === b) / ROWS.length,
    f1: (2 * hits) / (count(([a]) => a === 'good') + count(([, b]) => b === 'good')),
  };
}

test.each(['whole', 'adapter', 'decoder-whole'])(
  'ds eval --task gives the metrics of the predictions of %s',
  async (name) => {
    const { status, stdout, stderr } = ds(
      `${name} --task ${TASK} --data rows.jsonl --batch 2 --json`,
    );
    expect([status, stderr.match(/Error/)]).toEqual([0, null]);
    const found = JSON.parse(stdout);
    const model = await nn.models.fromPretrained(path(name), { task: TASK });
    expect(found).toMatchObject({
      model: name,
      device: 'cpu',
      labels: ['bad', 'good'],
      task: TASK,
      data: { files: ['rows.jsonl'], rows: ROWS.length },
    });
    const { accuracy, f1 } = expected(model);
    expect(found.data.accuracy).toBeCloseTo(accuracy, 12);
    expect(found.data.f1).toBeCloseTo(f1, 12);
  },
);

test('loss and metrics equal those of a Trainer, for any batch size', async () => {
  const labels = ['bad', 'good'];
  const rows = await text.LabelledDataset.open({ files: path('rows.jsonl'), tokenizer, labels });
  const model = await nn.models.fromPretrained(path('whole'), { task: TASK });
  const files = path('rows.jsonl');
  const found = await evaluation.evaluateTask(model, { files, batchSize: 2 });
  expect(await evaluation.evaluateTask(model, { files, batchSize: 5 })).toMatchObject({
    metrics: found.metrics,
    loss: expect.closeTo(found.loss, 6),
  });
  const trainer = new Trainer({ model, tokenizer, train: rows, eval: rows, maxSteps: 1, lr: 1e-9 });
  const { loss, ...metrics } = (await trainer.evaluate()) as Record<string, number>;
  await trainer.destroy();
  expect(found.metrics).toEqual(metrics);
  expect(found.loss).toBeCloseTo(loss as number, 6);
});

test('prints text, and reads other keys', () => {
  const keys = '--text-key one --text-pair-key two --label-key mood';
  const { status, stdout } = ds(`whole --task ${TASK} --data pairs.jsonl ${keys}`);
  expect(status).toBe(0);
  expect(stdout).toMatch(/^whole on cpu, fp32\npairs\.jsonl: 5 rows, sequence-classification\n/);
  expect(stdout).toMatch(/^ {2}loss {18}\d\.\d{4}\n {2}accuracy {14}\d\.\d{4}$/m);
  expect(stdout).toMatch(/^ {2}matthews_correlation {2}-?\d\.\d{4}$/m);
});

test.each([
  [`whole --task ${TASK}`, /eval --task: expected --data FILE, rows with labels/],
  [`whole --task ${TASK} --data rows.jsonl --packing`, /--task <task>' cannot be used with/],
  [`whole --task ${TASK} --data odd.jsonl`, /odd\.jsonl:1: expected one of 2 labels: bad, good/],
  [`whole --task ${TASK} --data rows.jsonl --text-pair-key b`, /expected --text-key KEY/],
  [`whole --task ${TASK} --data rows.jsonl --seq 99`, /maxLength: expected at most 32/],
  ['whole --data rows.jsonl --label-key mood', /--label-key: expected --label-key with --task/],
  ['whole --task sentiment --data rows.jsonl', /Allowed choices are sequence-classification/],
])('ds eval %s is refused', (line, message) => {
  const { status, stderr } = ds(line);
  expect(status).not.toBe(0);
  expect(stderr.replaceAll(/\s+/g, ' ')).toMatch(message);
  expect(stderr).not.toMatch(/^\s+at /m);
});

test('a language model is refused', async () => {
  const model = await nn.models.fromPretrained(path('decoder'));
  const call = evaluation.evaluateTask(model as never, { files: path('rows.jsonl') });
  await expect(call).rejects.toThrow(/evaluateTask model: expected a model with a head/);
});

test('a classifier without --task is refused with this option', () => {
  for (const [folder, hint] of [
    ['whole', /An encoder generates no text\..*`ds eval --task` measures a classifier/],
    ['decoder-whole', /the head of another task: .*`ds eval --task` measures it/],
  ] as const) {
    const { status, stderr } = ds(`${folder} --data rows.jsonl`);
    expect(status).not.toBe(0);
    expect(stderr).toMatch(hint);
  }
});
