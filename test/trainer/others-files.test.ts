// Tests that foreign files in the output folder of a Trainer stay unchanged, byte for byte.
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Trainer, type TrainerOptions } from '../../lib/index.js';
import { samples, tinyModel, type Window } from './tiny.js';

let dir: string;
const open: Trainer<Window>[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-others-'));
});
afterEach(async () => {
  for (const trainer of open.splice(0)) await trainer.destroy();
  rmSync(dir, { recursive: true, force: true });
});

function trainer(options: Partial<TrainerOptions<Window>>): Trainer<Window> {
  const one = new Trainer<Window>({
    model: tinyModel(),
    train: samples(10),
    device: 'cpu',
    progress: false,
    batchSize: 2,
    epochs: 1,
    stopSignals: [],
    ...options,
  });
  open.push(one);
  return one;
}

/** Every file below `folder` with its content. */
function contentOf(folder: string): Record<string, string> {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  const paths = files.map((entry) => join(entry.parentPath, entry.name)).sort();
  return Object.fromEntries(paths.map((path) => [path, readFileSync(path, 'latin1')]));
}

/** A folder as transformers writes it. */
function foreignCheckpoint(name: string): string {
  const path = join(dir, name);
  mkdirSync(path);
  const state = { global_step: 1, log_history: [], stateful_callbacks: {} };
  writeFileSync(join(path, 'trainer_state.json'), JSON.stringify(state));
  for (const file of ['config.json', 'model.safetensors', 'tokenizer.json']) {
    writeFileSync(join(path, file), `theirs: ${file}`);
  }
  return path;
}

test("transformers' checkpoints are neither deleted, nor resumed from, nor written over", async () => {
  const foreign = foreignCheckpoint('checkpoint-1');
  const before = contentOf(foreign);
  const one = trainer({ save: { dir, every: 2, keep: 1 } });
  const end = await one.train({ resume: true });
  expect(end.step).toBe(5);
  expect(readdirSync(dir).sort()).toEqual(['checkpoint-1', 'checkpoint-5']);
  expect(contentOf(foreign)).toEqual(before);
  const over = trainer({ save: { dir, every: 1 }, maxSteps: 1 });
  rmSync(join(dir, 'checkpoint-5'), { recursive: true });
  await expect(over.train()).rejects.toThrow(/checkpoint-1: expected nothing of this name/);
  expect(contentOf(foreign)).toEqual(before);
});

test('a link to a checkpoint is not followed', async () => {
  await trainer({ save: { dir, every: 1000 }, maxSteps: 1 }).train();
  const elsewhere = join(dir, 'kept');
  renameSync(join(dir, 'checkpoint-1'), elsewhere);
  symlinkSync(elsewhere, join(dir, 'checkpoint-1'));
  const before = contentOf(elsewhere);
  await trainer({ save: { dir, every: 2, keep: 1 } }).train();
  expect(contentOf(elsewhere)).toEqual(before);
});

test('a new run does not mix with an older one; a resumed run keeps its files', async () => {
  await trainer({ save: { dir, every: 2 } }).train();
  const before = contentOf(dir);
  await expect(trainer({ save: dir }).train()).rejects.toThrow(
    /a folder without checkpoints of another run, to begin at step 0, got checkpoint-5\. train\(\{ resume: true \}\)/,
  );
  expect(contentOf(dir)).toEqual(before);
  const back = trainer({ save: { dir, every: 3, keep: 1 }, maxSteps: 3 });
  await back.train({ resume: join(dir, 'checkpoint-2') });
  // 4 and 5 are from the older run; 2 exceeds the limit.
  expect(readdirSync(dir).sort()).toEqual(['checkpoint-3', 'checkpoint-4', 'checkpoint-5']);
});

test('a checkpoint of a killed process is written again', async () => {
  await trainer({ save: { dir, every: 1000 }, maxSteps: 1 }).train();
  const path = join(dir, 'checkpoint-1');
  writeFileSync(join(path, '.unfinished'), '');
  rmSync(join(path, 'trainer_state.json'));
  const end = await trainer({ save: { dir, every: 1000 }, maxSteps: 1 }).train({ resume: true });
  expect(end.step).toBe(1);
  expect(existsSync(join(path, 'trainer_state.json'))).toBe(true);
  expect(existsSync(join(path, '.unfinished'))).toBe(false);
});

test('save() leaves no temporary files, and keeps other files', async () => {
  const out = join(dir, 'out');
  for (const name of ['.weights', '.passing', '.export']) {
    mkdirSync(join(out, name), { recursive: true });
    writeFileSync(join(out, name, 'notes.txt'), 'mine');
  }
  writeFileSync(join(out, '.config.json'), 'mine, too');
  const before = contentOf(out);
  await trainer({}).save(out);
  expect(contentOf(out)).toMatchObject(before);
  expect(readdirSync(out).sort()).toEqual([
    '.config.json',
    '.export',
    '.passing',
    '.weights',
    'config.json',
    'model.safetensors',
  ]);
});

test('save() does not replace a config.json of another program', async () => {
  const out = join(dir, 'out');
  mkdirSync(out);
  writeFileSync(join(out, 'config.json'), '{ "train_batch_size": 4 }');
  const before = contentOf(out);
  const message =
    /out\/config\.json: expected nothing of this name, .*got a file with the keys train_batch_size/;
  await expect(trainer({}).save(out)).rejects.toThrow(message);
  expect(contentOf(out)).toEqual(before);
});

test('a failed save names the path, and leaves no files', async () => {
  const out = join(dir, 'out');
  mkdirSync(join(out, 'config.json'), { recursive: true });
  await expect(trainer({}).save(out)).rejects.toMatchObject({ code: 'DS_CHECKPOINT' });
  expect(readdirSync(out).filter((name) => name.startsWith('.'))).toEqual([]);
});

test('a model saved to where its tokenizer lies keeps the tokenizer', async () => {
  const out = join(dir, 'out');
  cpSync(join(__dirname, '../../examples/tokenizer'), out, { recursive: true });
  const before = contentOf(out);
  await trainer({ tokenizer: out }).save(out);
  expect(contentOf(out)).toMatchObject(before);
});

test('an unwritable folder is refused before the first step, without leftovers', async () => {
  const run = async (save: string): Promise<string[]> => {
    const seen: string[] = [];
    for await (const { type } of trainer({ save: { dir: save, every: 100 } }).train()) {
      seen.push(type);
      if (type === 'begin') return [...seen, ...readdirSync(save)];
    }
    return seen;
  };
  writeFileSync(join(dir, 'file'), '');
  for (const bad of ['/proc/none', join(dir, 'file'), join(dir, 'file', 'below')]) {
    await expect(run(bad)).rejects.toMatchObject({ code: 'DS_IO' });
  }
  expect(await run(join(dir, 'new', 'folder'))).toEqual(['begin']);
});
