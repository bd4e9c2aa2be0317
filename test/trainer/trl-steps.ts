// The model, rows and options of runs that are recorded with TRL and repeated by a test.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { nn, seed, text } from '../../lib/index.js';
import type { JsonObject } from '../../types/json.js';

const golden = join('test', 'golden', 'transformers');
export const TOKENIZER = join(golden, 'tokenizers', 'qwen2');
export const tokenizer = text.Tokenizer.fromPretrained(TOKENIZER);

const config = {
  ...(JSON.parse(
    readFileSync(join(golden, 'models', 'qwen2', 'config.json'), 'utf8'),
  ) as JsonObject),
  vocab_size: 1010,
  pad_token_id: tokenizer.padId ?? tokenizer.eosId,
};

export function modelOf(): nn.models.CausalLM {
  seed(7);
  return nn.models.fromConfig(config);
}

export function scorerOf(): nn.models.TaskModel {
  seed(8);
  return nn.models.fromConfig(config, { task: 'sequence-classification', labels: ['reward'] });
}

const ANSWERS = [' yes', ' no, never', ' four of them', ' the model', ' a rank', ' it is here'];
export const pairs = Array.from({ length: 12 }, (_, i) => ({
  prompt: `Say ${i} and ${(i * 7) % 5}`,
  chosen: ANSWERS[i % 6] as string,
  rejected: ANSWERS[(i * 5 + 1) % 6] as string,
}));
export const answers = pairs.map(({ prompt, chosen, rejected }, i) => ({
  prompt,
  completion: i % 3 ? chosen : rejected,
  label: i % 3 !== 0,
}));

/** Writes what scripts/record-trl.py reads. */
export async function writeInputs(dir: string): Promise<void> {
  mkdirSync(dir, { recursive: true });
  for (const [name, model] of Object.entries({ model: modelOf(), scorer: scorerOf() })) {
    await model.save(join(dir, name));
    cpSync(TOKENIZER, join(dir, name), { recursive: true });
  }
  writeFileSync(join(dir, 'rows.json'), JSON.stringify({ pairs, answers }));
}
