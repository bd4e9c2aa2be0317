// An adapter of a classifier keeps the names of its labels: in our folder, and beside PEFT's files.
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DsError } from '../../lib/errors.js';
import { nn, peft, seed, text } from '../../lib/index.js';
import { mergeFolder } from '../../lib/models/merge-folder.js';
import { stir } from '../peft/models.js';
import { TOKENIZERS } from './head-rows.js';

const FROM = join(TOKENIZERS, 'wordpiece');
const { vocabSize } = text.Tokenizer.fromPretrained(FROM);
const LABELS = ['bad', 'fine', 'good'];
const TEXTS = ['a good film', 'the dog', 'an awful plot was not great'];

const dir = mkdtempSync(join(tmpdir(), 'ds-adapted-'));
const [base, adapter] = [join(dir, 'base'), join(dir, 'adapter')];
const scores: Record<string, number>[] = [];
const warned = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
const notices = (): string[] => warned.mock.calls.map(([text]) => String(text));

beforeAll(async () => {
  seed(5);
  const sizes = { layers: 1, heads: 2, channels: 16, hidden: 24, maxSeq: 32, dropout: 0 };
  const body = new nn.models.Bert({ ...sizes, vocabSize, task: 'embedding' });
  await body.save(base);
  cpSync(FROM, base, { recursive: true });
  const task = 'sequence-classification';
  const model = await nn.models.fromPretrained(base, { task, labels: LABELS });
  peft.addLora(model, { r: 2, taskType: 'SEQ_CLS', modulesToSave: model.unsavedModules() });
  stir(model);
  scores.push(...model.classify(TEXTS).map((found) => found.scores));
  await peft.saveAdapter(model, adapter);
});
beforeEach(() => warned.mockClear());
afterAll(() => rmSync(dir, { recursive: true }));

const open = (folder: string, task: 'auto' | 'sequence-classification' = 'auto') =>
  nn.models.fromPretrained(folder, { task: task as 'sequence-classification' });

test.each(['auto', 'sequence-classification'] as const)(
  'task %j opens the adapter with its labels and its head',
  async (task) => {
    const model = await open(adapter, task);
    expect(model.labels).toEqual(LABELS);
    expect(model.classify(TEXTS).map((found) => found.scores)).toEqual(scores);
    expect(model.parameters().some(({ requiresGrad }) => requiresGrad)).toBe(false);
    // The adapter has the head that the base lacks.
    expect(notices()).toEqual([]);
  },
);

test('a head that neither the base nor the adapter has is reported', async () => {
  const folder = join(dir, 'partial');
  const task = 'sequence-classification';
  const model = await nn.models.fromPretrained(base, { task, labels: LABELS });
  expect(model.unsavedModules()).toEqual(['classifier', 'bert.pooler.dense']);
  await peft.saveAdapter(
    peft.addLora(model, { r: 2, taskType: 'SEQ_CLS', modulesToSave: ['classifier'] }),
    folder,
  );
  warned.mockClear();
  await open(folder);
  const pooler = 'no values for bert.pooler.dense.weight, bert.pooler.dense.bias: this head';
  expect(notices()).toEqual([expect.stringContaining(pooler)]);
});

test('without labels in its weights, an adapter has those of a config.json beside it', async () => {
  const folder = join(dir, 'config');
  const model = await nn.models.fromPretrained(base, {
    task: 'sequence-classification',
    labels: LABELS.length,
  });
  peft.addLora(model, { r: 2, taskType: 'SEQ_CLS', modulesToSave: ['classifier'] });
  const plain = model.describe.bind(model);
  model.describe = () => ({ ...plain(), config: { ...plain().config, id2label: null } });
  await peft.saveAdapter(model, folder);
  await expect(open(folder)).rejects.toThrow(/classifier/);
  const id2label = { 2: 'good', 0: 'bad', 1: 'fine' };
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ model_type: 'bert', id2label }));
  expect((await open(folder)).labels).toEqual(LABELS);
});

test('names of labels in another order are refused', async () => {
  const reversed = [...LABELS].reverse();
  const task = 'sequence-classification';
  const model = await nn.models.fromPretrained(base, { task, labels: reversed });
  const error = await peft.loadAdapter(model, adapter).then(
    () => null,
    (error: unknown) => error,
  );
  expect(error).toBeInstanceOf(DsError);
  expect(error).toMatchObject({ code: 'DS_CHECKPOINT', got: reversed.join(', ') });
  expect(String((error as Error).message)).toContain('bad, fine, good');
  const numbered = await nn.models.fromPretrained(base, { task, labels: 3 });
  await peft.loadAdapter(numbered, adapter);
  expect(numbered.labels[0]).toBe('LABEL_0');
});

test('ds merge writes the labels', async () => {
  const out = join(dir, 'merged');
  await mergeFolder({ base, adapter }, out);
  const model = await open(out);
  expect(model.labels).toEqual(LABELS);
  model.classify(TEXTS).forEach((found, i) => {
    for (const label of LABELS) {
      expect(found.scores[label]).toBeCloseTo(scores[i]?.[label] as number, 5);
    }
  });
});
