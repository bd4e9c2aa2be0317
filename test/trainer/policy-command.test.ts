// Runs `ds train --method grpo`: processes that learn from rewards of a file.
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
  dir = mkdtempSync(join(tmpdir(), 'ds-policies-'));
  const config = JSON.parse(
    readFileSync(join(golden, 'models', 'qwen2', 'config.json'), 'utf8'),
  ) as JsonObject;
  await nn.models.fromConfig({ ...config, vocab_size: 1010 }).save(join(dir, 'model'));
  cpSync(join(golden, 'tokenizers', 'qwen2'), join(dir, 'model'), { recursive: true });
  const rows = Array.from({ length: 24 }, (_, i) =>
    JSON.stringify({ prompt: `Say ${i}`, solution: `${i}` }),
  );
  writeFileSync(join(dir, 'prompts.jsonl'), rows.join('\n'));
  writeFileSync(
    join(dir, 'own.mjs'),
    `export const brief = ({ completions }) => completions.map(({ tokens }) => -tokens.length);
export default async function even({ completions }) {
  return completions.map(({ tokens }) => tokens.filter((one) => one % 2 === 0).length);
}`,
  );
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (line: string): Promise<Finished> =>
  new Run([...DS, ...line.split(' ')], dir, { DS_NUM_THREADS: '1' }).finished;

const COMMON =
  'train --model model --data prompts.jsonl --device cpu --disable_tqdm --max_steps 2 --lr 1e-3 --logging_steps 1 --max_completion_length 4 --num_generations 4 --per_device_train_batch_size 4';

test('functions of a file and built-in ones are summed with weights', async () => {
  const localText = '--reward_funcs ./own.mjs ./own.mjs#brief accuracy_reward';
  const how = '--reward_weights 1 0.5 2 --loss_type dr_grpo --temperature 0.9 --epsilon_high 0.3';
  const { code, stdout, stderr } = await ds(
    `${COMMON} --method grpo --output out ${localText} ${how} --scale_rewards none --max_staleness 1`,
  );
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(stdout).toMatch(/^learns from prompts\.jsonl: 24 prompts$/m);
  const { log_history: history } = JSON.parse(
    readFileSync(join(dir, 'out', 'trainer_state.json'), 'utf8'),
  ) as { log_history: Record<string, number>[] };
  const names = [
    'reward',
    'rewards/even/mean',
    'rewards/brief/mean',
    'rewards/accuracy_reward/mean',
  ];
  expect(history[1]).toHaveProperty(['sample/staleness_mean'], 1);
  for (const name of names) expect(history[0]).toHaveProperty([name]);
  const [first] = history as [Record<string, number>];
  const [reward, ...means] = names.map((name) => first[name] as number) as [number, ...number[]];
  const [even, brief, accuracy] = means as [number, number, number];
  expect(reward).toBeCloseTo(even + 0.5 * brief + 2 * accuracy, 5);
});

test('adapters learn by RLOO', async () => {
  const { code, stderr } = await ds(
    `${COMMON} --method rloo --output adapters --use_peft --reward_funcs ./own.mjs --beta 0.1`,
  );
  expect([code, stderr.match(/Error|failed/)]).toEqual([0, null]);
  expect(existsSync(join(dir, 'adapters', 'adapter_model.safetensors'))).toBe(true);
});

const args = { train_file: ['a'], output_dir: 'b', model_name_or_path: 'c' };

test.each([
  [{ method: 'grpo', packing: true }, /--packing: expected another method than --method grpo/],
  [{ num_generations: 4 }, /--num_generations: expected --method grpo or rloo, got sft/],
  [{ method: 'dpo', reward_funcs: ['a'] }, /--reward_funcs: expected --method grpo or rloo/],
  [{ method: 'rloo', loss_type: ['grpo'] }, /--loss_type: expected --method dpo or .* grpo/],
])('arguments that exclude each other: %j', (input, message) => {
  expect(() => readMethod({ ...args, ...input })).toThrow(message);
});
