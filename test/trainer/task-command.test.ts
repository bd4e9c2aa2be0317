// Runs `ds train --task`: processes that turn a folder and rows with labels into a classifier.
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import { readTask } from '../../lib/trainer/command/task-rows.js';
import { DS, type Finished, Run } from '../launch/jobs.js';
import { TOKENIZERS } from '../models/head-rows.js';

const GOOD = ['great film', 'a good plot', 'happy acting', 'the film was very good'];
const BAD = ['awful film', 'a bad plot', 'unhappy acting', 'the film was very bad'];

let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-task-'));
  mkdirSync(join(dir, 'tokenizer'));
  const from = join(TOKENIZERS, 'wordpiece');
  for (const file of ['vocab.txt', 'tokenizer_config.json']) {
    cpSync(join(from, file), join(dir, 'tokenizer', file));
  }
  const { vocabSize } = text.Tokenizer.fromPretrained(from);
  seed(3);
  const sizes = { layers: 1, heads: 2, channels: 24, hidden: 40, maxSeq: 24, dropout: 0 };
  const model = new nn.models.Bert({
    ...sizes,
    vocabSize,
    task: 'masked-lm',
    attentionDropout: 0,
    initializerRange: 0.2,
  });
  await model.save(join(dir, 'bert'));
  cpSync(join(dir, 'tokenizer'), join(dir, 'bert'), { recursive: true });
  const rows = [
    ...GOOD.map((text) => ({ text: text, label: 'good' })),
    ...BAD.map((text) => ({ text: text, label: 'bad' })),
  ];
  writeFileSync(join(dir, 'rows.jsonl'), rows.map((row) => JSON.stringify(row)).join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (line: string): Promise<Finished> =>
  new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' }).finished;

const COMMON =
  'train --model bert --data rows.jsonl --task sequence-classification --device cpu --batch_size 4 --disable_tqdm';

test('a folder and rows become a classifier with the labels of the rows', async () => {
  const best = '--metric_for_best_model f1 --load_best_model_at_end --save_strategy epoch';
  const line = `${COMMON} --output out --eval_data rows.jsonl --epochs 15 --lr 1e-2 ${best} --save_total_limit 1`;
  const { code, stdout, stderr } = await ds(line);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/^trains Bert of bert: [\d,]+ parameters, one rank on cpu$/m);
  expect(stdout).toMatch(/^learns from rows\.jsonl: 8 rows with 2 labels: bad, good$/m);
  expect(stdout).toMatch(
    /^step 30: evaluation loss 0\.\d+, accuracy (0\.[89]|1\.0)\d*, f1 \d.*matthews_correlation/m,
  );
  // The folder has a head of masked tokens, so that of the labels is new.
  expect(stderr).toMatch(/bert has no values for .*classifier\.weight/);
  const model = await nn.models.fromPretrained(join(dir, 'out'), { task: 'auto' });
  expect(model.describe().config).toMatchObject({
    architectures: ['BertForSequenceClassification'],
    id2label: { 0: 'bad', 1: 'good' },
    problem_type: 'single_label_classification',
  });
});

test('adapters and the head train together, on two ranks', async () => {
  const line = `${COMMON} --output adapter --num_procs 2 --lora --r 2 --max_steps 2 --save_strategy no`;
  const { code, stdout, stderr } = await ds(line);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(
    /trains Bert of bert: [\d,]+ parameters, 842 of them trained, 2 ranks on cpu$/m,
  );
  const config = JSON.parse(readFileSync(join(dir, 'adapter', 'adapter_config.json'), 'utf8'));
  expect(config).toMatchObject({
    task_type: 'SEQ_CLS',
    target_modules: ['query', 'value'],
    // The base is for masked tokens: it has no pooler either.
    modules_to_save: ['classifier', 'bert.pooler.dense'],
  });
});

test('rows of another task are refused with their line', async () => {
  const line =
    'train --model bert --data rows.jsonl --output no --device cpu --task token-classification';
  const { code, stderr } = await ds(line);
  expect(code).not.toBe(0);
  expect(stderr.replaceAll(/\s+/g, ' ')).toMatch(
    /rows\.jsonl:1: expected lists of one length, "tokens" and "tags"/,
  );
});

test.each([
  [{ task: 'sequence-classification', packing: true }, /--packing: expected either --task/],
  [{ task: 'embedding' }, /--task: expected a task of rows with labels/],
  [{ task: 'ner' }, /--task: expected "sequence-classification"/],
])('%j is refused', (more, message) => {
  const args = { model_name_or_path: 'bert', train_file: ['rows.jsonl'], output_dir: 'no' };
  expect(() => readTask({ ...args, ...more })).toThrow(message);
});
