// Parses `ds validate --auto lr=1e-5,...`: the values that replace "auto", by their names in
// initialize() or in a Trainer.
import type { AutoSources } from '../config/index.js';
import { refuse } from './argument-error.js';

type Training = NonNullable<AutoSources['training']>;

const NUMBERS = [
  'lr',
  'minLr',
  'eps',
  'weightDecay',
  'warmupSteps',
  'totalSteps',
  'maxGradNorm',
  'perDeviceBatchSize',
  'accumulationSteps',
  'hiddenSize',
  'beta1',
  'beta2',
];

const SWITCHES = ['fp16', 'bf16'];

/** Our names of keys in Hugging Face's TrainingArguments and model configurations. */
const TRAINER_NAMES: Partial<Record<string, string>> = {
  learning_rate: 'lr',
  adam_beta1: 'beta1',
  adam_beta2: 'beta2',
  adam_epsilon: 'eps',
  max_steps: 'totalSteps',
  max_grad_norm: 'maxGradNorm',
  per_device_train_batch_size: 'perDeviceBatchSize',
  gradient_accumulation_steps: 'accumulationSteps',
};

/**
 * Parses "lr=1e-5,fp16=true" into sources. Names may have dashes, underscores or capitals. Throws
 * DS_ARGUMENT for an unknown name, and for a value that is not a number (for `fp16` and `bf16`: not
 * true or false).
 */
export function parseAuto(text: string): AutoSources {
  const values: Record<string, number | boolean> = {};
  for (const entry of text.split(',')) {
    const [key = '', value = ''] = entry.split('=').map((part) => part.trim());
    const name = findName(key);
    values[name] = SWITCHES.includes(name) ? parseSwitch(key, value) : parseNumber(key, value);
  }
  const { hiddenSize, beta1, beta2, ...training } = values as Record<string, number>;
  const betas =
    beta1 === undefined && beta2 === undefined ? {} : { betas: [beta1 ?? 0.9, beta2 ?? 0.999] };
  return { model: { hiddenSize }, training: { ...training, ...betas } as Training };
}

function findName(key: string): string {
  const snakeCase = key.replaceAll('-', '_').toLowerCase();
  const name = TRAINER_NAMES[snakeCase] ?? snakeCase;
  const isSameName = (known: string) =>
    known.toLowerCase() === name.replaceAll('_', '').toLowerCase();
  const match = [...NUMBERS, ...SWITCHES].find(isSameName);
  if (match) return match;
  return refuse('--auto', `one of ${[...NUMBERS, ...SWITCHES].join(', ')}`, `"${key}"`);
}

function parseNumber(key: string, value: string): number {
  const number = Number(value);
  if (value !== '' && Number.isFinite(number)) return number;
  return refuse(`--auto ${key}`, 'a number', value === '' ? 'nothing' : `"${value}"`);
}

function parseSwitch(key: string, value: string): boolean {
  if (value === 'true' || value === 'false') return value === 'true';
  return refuse(`--auto ${key}`, 'true or false', value === '' ? 'nothing' : `"${value}"`);
}
