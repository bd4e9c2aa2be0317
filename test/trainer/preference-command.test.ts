// Runs `ds train --method dpo`: processes that teach a model to prefer chosen answers.
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { isPreference } from '../../lib/trainer/command/preference-rows.js';
import type { JsonObject } from '../../types/json.js';
import { DS, type Finished, Run } from '../launch/jobs.js';

const golden = join('test', 'golden', 'transformers');
let dir: string;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-preferences-'));
  const config = JSON.parse(
    readFileSync(join(golden, 'models', 'qwen2', 'config.json'), 'utf8'),
  ) as JsonObject;
  await nn.models.fromConfig({ ...config, vocab_size: 1010 }).save(join(dir, 'model'));
  cpSync(join(golden, 'tokenizers', 'qwen2'), join(dir, 'model'), { recursive: true });
  const rows = Array.from({ length: 24 }, (_, i) =>
    JSON.stringify({ prompt: `Say ${i}`, chosen: ' yes', rejected: ' no' }),
  );
  writeFileSync(join(dir, 'pairs.jsonl'), rows.join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (line: string): Promise<Finished> =>
  new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' }).finished;

const COMMON =
  'train --method dpo --model model --data pairs.jsonl --device cpu --disable_tqdm --max_steps 6 --lr 1e-3';

test('a model learns pairs, beside a copy of itself', async () => {
  const evaluates = '--eval_data pairs.jsonl --eval_strategy steps --eval_steps 3';
  const best = '--metric_for_best_model rewards/accuracies --beta 0.2 --loss_type sigmoid ipo';
  const { code, stdout, stderr } = await ds(`${COMMON} --output out ${evaluates} ${best}`);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/^learns from pairs\.jsonl: 24 pairs$/m);
  expect(stdout).toMatch(/^step 6: evaluation loss [\d.]+, rewards\/chosen .*accuracies 1\.0000/m);
  expect(existsSync(join(dir, 'out', 'model.safetensors'))).toBe(true);
});

test('adapters learn pairs beside the model without them', async () => {
  const { code, stderr } = await ds(`${COMMON} --output adapters --use_peft`);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(existsSync(join(dir, 'adapters', 'adapter_model.safetensors'))).toBe(true);
});

const args = { train_file: ['a'], output_dir: 'b', model_name_or_path: 'c' } as never as Parameters<
  typeof isPreference
>[0];

test.each([
  [{ method: 'grpo' }, /--method: expected .*sft.*dpo/],
  [{ method: 'dpo', packing: true }, /--packing: expected no --method dpo/],
  [{ beta: 0.2 }, /--method dpo beside beta/],
  [{ loss_type: ['hinge'] }, /--method dpo beside loss_type/],
  [{ ref_model_name_or_path: 'd' }, /--method dpo beside ref_model_name_or_path/],
])('arguments that exclude each other: %j', (given, message) => {
  expect(() => isPreference({ ...args, ...given })).toThrow(message);
});

test("SFT's names of its loss change nothing", () => {
  expect(isPreference({ ...args, loss_type: ['chunked_nll'] })).toBe(false);
});
