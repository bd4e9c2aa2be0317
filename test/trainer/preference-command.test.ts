// Runs `ds train --method dpo`: processes that teach a model to prefer chosen answers.
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { readMethod } from '../../lib/trainer/command/methods.js';
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
  const texts = rows.map((_, i) => JSON.stringify({ prompt: `Say ${i}`, completion: ' yes' }));
  writeFileSync(join(dir, 'rows.jsonl'), texts.join('\n'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (line: string): Promise<Finished> =>
  new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' }).finished;

const COMMON =
  'train --method dpo --model model --data pairs.jsonl --device cpu --disable_tqdm --max_steps 6 --lr 1e-3';

test('a model learns pairs, with a copy of itself as the reference', async () => {
  const evaluates = '--eval_data pairs.jsonl --eval_strategy steps --eval_steps 3';
  const best = '--metric_for_best_model rewards/accuracies --beta 0.2 --loss_type sigmoid ipo';
  const { code, stdout, stderr } = await ds(`${COMMON} --output out ${evaluates} ${best}`);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/^learns from pairs\.jsonl: 24 pairs$/m);
  expect(stdout).toMatch(/^step 6: evaluation loss [\d.]+, rewards\/chosen .*accuracies 1\.0000/m);
  expect(existsSync(join(dir, 'out', 'model.safetensors'))).toBe(true);
});

test.each([
  ['kto --use_peft', '48 answers, 24 of them desirable', /kl /],
  ['cpo --loss_type simpo --cpo_alpha 0 --simpo_gamma 0.4', '24 pairs', /nll_loss/],
  ['orpo --max_prompt_length 2 --max_completion_length 1', '24 pairs, 24 with a cut', /log_odds/],
  [
    'reward --center_rewards_coefficient 0.01',
    '24 pairs',
    /a head for sequence-classification of [\s\S]*accuracy 1\.0/,
  ],
])('--method %s', async (line, read, metric) => {
  const [name = '', ...more] = line.split(' ');
  const evaluates = '--eval_data pairs.jsonl --eval_strategy steps --eval_steps 6 --no_watch';
  const words = COMMON.replace('--method dpo', `--method ${name}`);
  const run = await ds(`${words} --output ${name} ${evaluates} ${more.join(' ')}`);
  expect([run.code, run.stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(run.stdout).toContain(`learns from pairs.jsonl: ${read}`);
  expect(run.stdout).toMatch(metric);
});

test('gkd learns from a teacher', async () => {
  const teacher = '--teacher_model_name_or_path model --no_watch --beta 0';
  const words = COMMON.replace('--method dpo', '--method gkd').replace('pairs', 'rows');
  const { code, stderr, stdout } = await ds(`${words} --output gkd ${teacher}`);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/saved gkd/);
});

test('adapters learn pairs, with the base model as the reference', async () => {
  const { code, stderr } = await ds(`${COMMON} --output adapters --use_peft`);
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(existsSync(join(dir, 'adapters', 'adapter_model.safetensors'))).toBe(true);
});

const args = { train_file: ['a'], output_dir: 'b', model_name_or_path: 'c' } as never as Parameters<
  typeof readMethod
>[0];

test.each([
  [{ method: 'ppo' }, /--method: expected .*sft.*dpo/],
  [{ method: 'dpo', packing: true }, /--packing: expected another method than --method dpo/],
  [{ method: 'gkd', packing: true }, /--packing: expected another method than --method gkd/],
  [{ beta: 0.2 }, /--beta: expected --method dpo or kto or orpo or cpo.* or gkd, got sft/],
  [{ loss_type: ['hinge'] }, /--loss_type: expected --method dpo or kto or cpo.*, got sft/],
  [{ ref_model_name_or_path: 'd' }, /--ref_model_name_or_path: expected --method dpo or kto/],
  [{ method: 'reward', beta: 0.2 }, /--beta: expected .*got reward/],
  [{ method: 'orpo', simpo_gamma: 1 }, /--simpo_gamma: expected --method cpo, got orpo/],
])('arguments that exclude each other: %j', (input, message) => {
  expect(() => readMethod({ ...args, ...input })).toThrow(message);
});

test("SFT's names of its loss change nothing", () => {
  expect(readMethod({ ...args, loss_type: ['chunked_nll'] })).toBeNull();
  expect(readMethod({ ...args, method: 'gkd', completion_only_loss: true })).toBe('gkd');
});
