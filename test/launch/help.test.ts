// The help of every `ds` command: its groups, at 80 columns, with a description of each option.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { defaultText } from '../../lib/runtime/option.js';
import { ALIASES, ARGUMENTS, GROUPS } from '../../lib/trainer/command/arguments.js';
import { readTrainerOptions } from '../../lib/trainer/read-options.js';
import { tinyModel } from '../trainer/tiny.js';

const ROOT = join(__dirname, '..', '..');
const HOOK = join(ROOT, 'test', 'support', 'run-typescript.cjs');
const CLI = join(ROOT, 'lib', 'launch', 'cli.ts');

function helpOf(words: readonly string[]): string {
  const args = ['-r', HOOK, CLI, ...words, '--help'];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
  return stdout;
}

const headingsOf = (help: string): string[] => help.match(/^[A-Z][^\n]*:$/gm) ?? [];

test.each<[command: string, headings: readonly string[]]>([
  [
    '',
    [
      'A new project:',
      'Training:',
      'Models:',
      'Inference:',
      'Configuration and memory:',
      'This machine:',
      'Arguments:',
      'Ranks and devices:',
      'Several nodes:',
      'Script and processes:',
      'Search and output:',
      'Options:',
      'Examples:',
    ],
  ],
  ['init', ['Arguments:', 'Options:', 'Templates:']],
  [
    'train',
    ['Arguments from a file:', ...Object.keys(GROUPS).map((heading) => `${heading}:`), 'Examples:'],
  ],
  ['pull', ['Arguments:', 'Options:', 'Environment:']],
  ['models', ['Options:', 'Commands:']],
  ['models remove', ['Arguments:', 'Options:']],
  [
    'eval',
    [
      'Arguments:',
      'Rows:',
      'Rows with labels:',
      'Multiple-choice questions:',
      'Model:',
      'Output:',
      'Options:',
    ],
  ],
  ['merge', ['Arguments:', 'Options:']],
  ['export', ['Arguments:', 'Options:']],
  ['consolidate', ['Arguments:', 'Options:']],
  ['serve', ['Arguments:', 'Model:', 'Server:', 'Limits:', 'Options:', 'Examples:']],
  ['chat', ['Arguments:', 'Model:', 'Sampling:', 'Options:']],
  ['validate', ['Arguments:', 'Environment:', 'Output:', 'Options:']],
  [
    'plan',
    [
      'Model and batch:',
      'Machines:',
      'Parallelism and adapters:',
      'One configuration:',
      'Output:',
      'Options:',
      'Examples:',
    ],
  ],
  ['elastic', ['Arguments:', 'Options:']],
  ['completion', ['Arguments:', 'Options:']],
  ['env', ['Options:']],
  ['watch', ['Arguments:', 'Options:']],
  ['io', ['Arguments:', 'Measurement:', 'Output:', 'Options:']],
])('ds %s --help', (command, headings) => {
  const help = helpOf(command.split(' ').filter(Boolean));
  expect(headingsOf(help)).toEqual(headings);
  const lines = help.split('\n');
  expect(lines.filter((line) => line.length > 80)).toEqual([]);
  // A description follows in the line, or in the next one.
  const options = lines.flatMap((line, i) => (/^ {2}-/.test(line) ? [[line, lines[i + 1]]] : []));
  const isDescribed = ([line = '', next = '']: (string | undefined)[]): boolean =>
    / {2,}\S/.test(line.trim()) || /^ {10,}\S/.test(next);
  expect(options.filter((option) => !isDescribed(option))).toEqual([]);
  expect(options.length).toBeGreaterThan(0);
});

test('commands of the launcher itself are not listed', () => {
  expect(helpOf([])).not.toMatch(/launch-node|consolidate/);
});

test('the help of ds train has every argument and every other name', () => {
  const help = helpOf(['train']);
  for (const name of Object.keys(ARGUMENTS)) expect(help).toMatch(new RegExp(`^  --${name} `, 'm'));
  for (const name of Object.keys(ALIASES)) expect(help).toContain(`--${name}`);
});

test("defaults in the help of ds train are the Trainer's", () => {
  const settings = readTrainerOptions({ model: tinyModel(), save: 'folder' });
  const { epochs, batchSize, accumulation, lr, schedule, warmup, weightDecay, seed } = settings;
  const { betas, eps, maxGradNorm, labelSmoothing, log, save } = settings;
  const expected = {
    num_train_epochs: epochs,
    per_device_train_batch_size: batchSize,
    learning_rate: lr,
    gradient_accumulation_steps: accumulation,
    warmup_steps: warmup,
    seed,
    weight_decay: weightDecay,
    adam_beta1: betas[0],
    adam_beta2: betas[1],
    adam_epsilon: eps,
    max_grad_norm: maxGradNorm,
    label_smoothing_factor: labelSmoothing,
    logging_steps: log.every,
    logging_first_step: log.first,
    save_steps: save?.every,
  };
  const defaultOf = (name: string) => defaultText(ARGUMENTS[name]!) as string;
  for (const [name, value] of Object.entries({ ...expected, lr_scheduler_type: schedule })) {
    expect([name, JSON.parse(defaultOf(name))]).toEqual([name, value]);
  }
});
