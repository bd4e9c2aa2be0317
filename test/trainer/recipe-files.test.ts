// Public recipe files: arguments that cannot act are answered by name, and the rest trains a tiny
// model on local rows.
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { checkArguments } from '../../lib/trainer/command/check-arguments.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import { train } from '../../lib/trainer/command/train.js';
import type { JsonObject } from '../../types/json.js';
import { refusal } from '../support/refusal.js';
import { RECIPES, type Recipe } from './recipe-files.js';

const golden = join('test', 'golden', 'transformers');
let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-recipes-'));
  const file = join(golden, 'models', 'qwen2', 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8')) as JsonObject;
  await nn.models.fromConfig({ ...config, vocab_size: 1010 }).save(join(dir, 'model'));
  cpSync(join(golden, 'tokenizers', 'qwen2'), join(dir, 'model'), { recursive: true });
  const write = (name: string, row: (i: number) => object): void => {
    const rows = Array.from({ length: 8 }, (_, i) => JSON.stringify(row(i)));
    writeFileSync(join(dir, name), rows.join('\n'));
  };
  write('pairs.jsonl', (i) => ({ prompt: `Say ${i}`, chosen: ' yes', rejected: ' no' }));
  write('answers.jsonl', (i) => ({ prompt: `Say ${i}`, completion: ' yes', label: i % 2 === 0 }));
  write('rows.jsonl', (i) => ({ prompt: `Say ${i}`, completion: ' yes' }));
});
afterAll(() => rmSync(dir, { recursive: true }));

const names = Object.keys(RECIPES);

/** A recipe as a file of arguments; JSON is YAML too. */
function writeRecipe(name: string, recipe: object): string {
  const path = join(dir, `${names.indexOf(name)}.yaml`);
  writeFileSync(path, JSON.stringify(recipe));
  return path;
}

test.each(names)('%s: arguments without effect are reported', async (name) => {
  const { method, arguments: all, left } = RECIPES[name] as Recipe;
  const path = writeRecipe(name, { method, ...all });
  const error = await refusal(() => readArguments(['--config', path]));
  const named = [...error.message.matchAll(/\.yaml:\d+:\d+: (\w+): /g)].map(([, one]) => one);
  expect(named.sort()).toEqual([...left].sort());
});

/** Values that depend on the size of the model and the rows. */
const TINY = { max_length: 32, max_prompt_length: 16, dataset_num_proc: 0, max_steps: 1 };
const ROWS: Readonly<Record<string, string>> = { kto: 'answers.jsonl', gkd: 'rows.jsonl' };

test.each(names)('%s: a tiny model trains', async (name) => {
  const { method, arguments: all, left } = RECIPES[name] as Recipe;
  const kept = Object.entries(all).filter(([key]) => !left.includes(key));
  const tiny = Object.entries(TINY).filter(([key]) => key === 'max_steps' || key in all);
  const rows = join(dir, ROWS[method] ?? 'pairs.jsonl');
  const output = join(dir, `out-${names.indexOf(name)}`);
  const path = writeRecipe(name, {
    method,
    ...Object.fromEntries(kept),
    ...Object.fromEntries(tiny),
    model_name_or_path: join(dir, 'model'),
    train_file: rows,
    validation_file: rows,
    output_dir: output,
    device: 'cpu',
    disable_tqdm: true,
    watch: false,
    ...(method === 'gkd' && { teacher_model_name_or_path: join(dir, 'model') }),
    ...(method !== 'gkd' ? {} : { sample: false }),
  });
  const { args } = await readArguments(['--config', path]);
  const log = jest.spyOn(console, 'log').mockImplementation(() => {});
  try {
    await train(checkArguments(args));
  } finally {
    log.mockRestore();
  }
  const file = args.use_peft ? 'adapter_model.safetensors' : 'model.safetensors';
  expect(existsSync(join(output, file))).toBe(true);
});
