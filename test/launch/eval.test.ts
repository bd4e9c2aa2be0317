// `ds eval` as users run it: folders, adapters, quantized folders, text and JSON.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { evaluation, nn, peft } from '../../lib/index.js';
import { TOKENIZER, writeModel } from '../evaluation/models.js';
import { stir } from '../peft/models.js';
import { DS } from './jobs.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-eval-'));
const [model, data, tasks] = ['model', 'rows.jsonl', 'tasks.jsonl'].map((name) =>
  join(dir, name),
) as [string, string, string];

beforeAll(async () => {
  await writeModel(model);
  const texts = ['The stages shard state.', 'A rank waits for all other ranks, and so on and on.'];
  writeFileSync(data, texts.map((text) => JSON.stringify({ text })).join('\n'));
  const question = { context: 'A rank', choices: ['waits', 'runs away from it'], answer: 0 };
  writeFileSync(
    tasks,
    `${JSON.stringify(question)}\n${JSON.stringify({ ...question, answer: 1 })}\n`,
  );
});
afterAll(() => rmSync(dir, { recursive: true }));

function ds(...words: string[]) {
  const env = { ...process.env, DS_NUM_THREADS: '1' };
  return spawnSync(process.execPath, [...DS, 'eval', ...words], { encoding: 'utf8', env });
}

function results(...words: string[]) {
  const { status, stdout, stderr } = ds(...words, '--device', 'cpu', '--json');
  expect([status, stderr]).toEqual([0, '']);
  return JSON.parse(stdout);
}

test('prints loss and accuracies as text', () => {
  const { status, stdout } = ds(model, '--data', data, '--tasks', tasks, '--seq', '8');
  expect(status).toBe(0);
  expect(stdout).toMatch(/^\S+model on cpu, fp32$/m);
  expect(stdout).toMatch(/rows\.jsonl: 2 rows, 1 of them cut, 2 samples, 1\d tokens$/m);
  expect(stdout).toMatch(
    /^ {2}loss {8}\d+\.\d{4}\n {2}perplexity {2}\d+\.\d{4}\n {2}accuracy {4}\d\.\d{4}$/m,
  );
  expect(stdout).toMatch(/tasks\.jsonl: 2 questions$/m);
  expect(stdout).toMatch(/^ {2}acc {9}0\.5000 ± 0\.5000\n {2}acc_norm {4}0\.5000 ± 0\.5000$/m);
});

test('JSON has the results of the functions', async () => {
  const one = await nn.models.fromPretrained(model);
  const loss = await evaluation.evaluate(one, {
    files: data,
    length: 16,
    packing: true,
    batchSize: 1,
    threads: 0,
  });
  const choices = await evaluation.evaluateChoices(one, { files: tasks, delimiter: '\n' });
  const words = ['--seq', '16', '--packing', '--delimiter', '\n', '--batch', '1'];
  const found = results(model, '--data', data, '--tasks', tasks, ...words);
  const { cutRows, ...rest } = loss;
  expect(found).toMatchObject({ model, adapter: null, device: 'cpu', dtype: 'fp32' });
  expect(found.data).toEqual({ files: [data], ...rest, cut_rows: cutRows });
  expect(found.tasks).toEqual({
    files: [tasks],
    questions: 2,
    cut: 0,
    acc: choices.accuracy,
    acc_stderr: choices.accuracyStderr,
    acc_norm: choices.normalizedAccuracy,
    acc_norm_stderr: choices.normalizedAccuracyStderr,
  });
});

test('ds eval reads an adapter and a quantized folder', async () => {
  const adapted = peft.addLora(await nn.models.fromPretrained(model), {
    r: 2,
    loraAlpha: 100,
    baseModelNameOrPath: model,
  });
  stir(adapted);
  const adapter = join(dir, 'adapter');
  await peft.saveAdapter(adapted, adapter);
  const expected = await evaluation.evaluate(adapted, { files: data, threads: 0 });
  for (const words of [[model, '--adapter', adapter], [adapter]]) {
    expect(results(...words, '--data', data).data.loss).toBe(expected.loss);
  }
  const twice = ds(adapter, '--adapter', adapter, '--data', data);
  expect([twice.status, twice.stderr]).toEqual([
    2,
    expect.stringMatching(/folder of the base model/),
  ]);

  const packed = peft.quantize(await nn.models.fromPretrained(model));
  const folder = join(dir, 'nf4');
  await nn.saveWeights(packed, folder);
  const inFourBits = await evaluation.evaluate(packed, {
    files: data,
    tokenizer: TOKENIZER,
    threads: 0,
  });
  const found = results(folder, '--data', data, '--tokenizer', TOKENIZER);
  expect(found.data.loss).toBe(inFourBits.loss);
});

test.each<[words: string[], message: RegExp]>([
  [[], /^ds: eval: expected --data FILE, --tasks FILE, or both, got neither/],
  [['--data', 'absent.jsonl'], /^ds: absent\.jsonl: expected a file or folder/],
  [
    ['--data', 'rows.jsonl', '--seq', '400'],
    /length: expected at most 24, the maximum of the model/,
  ],
  [['--data', 'rows.jsonl', '--dtype', 'fp8'], /^error: option '--dtype/],
])('refuses %j in one line', (words, message) => {
  const at = words.map((word) => (word === 'rows.jsonl' ? data : word));
  const { status, stdout, stderr } = ds(model, ...at);
  expect([status, stdout, stderr.trim().split('\n').length]).toEqual([2, '', 1]);
  expect(stderr).toMatch(message);
});

test('ds eval starts no ranks', () => {
  const args = [...DS, '--num_procs', '2', 'eval', model, '--data', data];
  const { status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect([status, stderr]).toEqual([2, expect.stringContaining('Did you mean "ds eval"?')]);
});
