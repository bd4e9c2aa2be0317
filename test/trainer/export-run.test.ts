// exportRun(): runs, checkpoints and models as folders of Hugging Face.
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { consolidate, nn, peft, text } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { exportRun } from '../../lib/trainer/export-run.js';
import { tinyLlama } from '../peft/models.js';
import { refusal } from '../support/refusal.js';
import { destroyTrainers, tinyTrainer, weightsOf } from './tiny.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-export-'));
const run = join(dir, 'run');
const TOKENIZER = join(packageRoot(), 'examples', 'tokenizer');
let count = 0;
const fresh = (): string => join(dir, `out-${count++}`);
const writtenWeights = async (folder: string) => weightsOf(await nn.models.fromPretrained(folder));

/** A bf16 run with checkpoints at steps 2 and 4, without final weights. */
beforeAll(async () => {
  const tokenizer = text.Tokenizer.fromPretrained(TOKENIZER);
  const save = { dir: run, every: 2 };

  await tinyTrainer({ save, tokenizer, precision: 'bf16', maxSteps: 4 }).train();
  await destroyTrainers();
});
afterAll(() => rmSync(dir, { recursive: true }));

test('of a run without final weights, the newest checkpoint is exported in fp32', async () => {
  const out = fresh();
  const found = await exportRun(run, out, {});
  expect(found).toMatchObject({ source: join(run, 'checkpoint-4'), path: out, format: 'hf' });
  expect(found.files.sort()).toEqual(readdirSync(out).sort());
  const other = fresh();
  await consolidate(join(run, 'checkpoint-4'), other);
  expect(await writtenWeights(out)).toEqual(await writtenWeights(other));
  expect(readFileSync(join(out, 'tokenizer.json'))).toEqual(
    readFileSync(join(TOKENIZER, 'tokenizer.json')),
  );
  expect(existsSync(join(other, 'tokenizer.json'))).toBe(false);
});

test('a tag names a checkpoint of a run', async () => {
  const found = await exportRun(run, fresh(), { tag: 'checkpoint-2', dtype: 'bf16' });
  expect(found.source).toBe(join(run, 'checkpoint-2'));
  const model = await nn.models.fromPretrained(found.path);
  expect(new Set(model.parameters().map(({ dtype }) => dtype))).toEqual(new Set(['bf16']));
  expect(weightsOf(model)).not.toEqual(
    await writtenWeights((await exportRun(run, fresh(), { dtype: 'bf16' })).path),
  );
});

test('final weights count before checkpoints, and keep their dtype', async () => {
  const done = join(dir, 'done');
  cpSync(run, done, { recursive: true });
  for (const file of ['config.json', 'model.safetensors', 'tokenizer.json']) {
    cpSync(join(run, 'checkpoint-2', file), join(done, file));
  }
  const found = await exportRun(done, fresh(), { maxShardBytes: 1000 });
  expect(found.source).toBe(done);
  expect(found.files).toEqual(
    expect.arrayContaining(['tokenizer.json', 'model.safetensors.index.json']),
  );
  expect(await writtenWeights(found.path)).toEqual(await writtenWeights(join(run, 'checkpoint-2')));
  const { dtype } = (await nn.models.fromPretrained(found.path)).parameters()[0] as {
    dtype: string;
  };
  expect([dtype, found.bytes > 1000]).toEqual(['bf16', true]);
});

test('refuses an adapter, a folder with files and a folder without weights', async () => {
  const adapter = join(dir, 'adapter');
  await peft.saveAdapter(peft.addLora(tinyLlama()), adapter);
  const alone = await refusal(() => exportRun(adapter, fresh(), {}));
  expect(alone.message).toMatch(/expected whole weights, got an adapter.*ds merge BASE ADAPTER/);
  const taken = await refusal(() => exportRun(run, TOKENIZER, {}));
  expect(taken.message).toMatch(/does not exist yet/);
  writeFileSync(join(dir, 'nothing.txt'), '');
  expect((await refusal(() => exportRun(join(dir, 'none'), fresh(), {}))).code).toBe(
    'DS_CHECKPOINT',
  );
});
