// Tests the lines of `ds validate`, and the JSON of --json.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { validateFile } from '../../lib/launch/validate.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-validate-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(text: string): string {
  const path = join(folder, 'ds_config.json');
  writeFileSync(path, text);
  return path;
}

test('messages are file:line:column: kind: key and sentence, in the order of the file', () => {
  const path = file(
    '{\n "sead": 1,\n "bfloat16": {},\n "train_batch_size": "4",\n "graph_harvesting": true }',
  );
  const { valid, messages } = validateFile(path, { worldSize: 1 });
  expect(valid).toBe(true);
  expect(messages).toEqual([
    `${path}:2:2: warning: sead is unknown and ignored. Did you mean "seed"?`,
    `${path}:3:2: note: bfloat16 is deprecated: write bf16.`,
    `${path}:4:2: note: train_batch_size is read as 4, not as "4".`,
    `${path}:5:2: note: graph_harvesting has no effect: steps are not captured as graphs.`,
  ]);
  const strict = validateFile(path, { worldSize: 1, strict: true });
  expect(strict).toMatchObject({ valid: false, output: '' });
  expect(strict.messages).toContainEqual(
    `${path}:2:2: error: sead: expected a key of this file, got "sead", which is unknown. Did you mean "seed"?`,
  );
});

test('the error of the batch sizes names the derived one and the world size', () => {
  const path = file('{ "train_batch_size": 32,\n "train_micro_batch_size_per_gpu": 5 }');
  expect(validateFile(path, { worldSize: 2 }).messages).toEqual([
    `${path}:1:3: error: train_batch_size: expected train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size, got 32 != 5 x 3 (derived) x 2. It must be a multiple of 10: 30 would fit.`,
  ]);
});

test.each([
  '"sequence_parallel_size": 2',
  '"tensor_parallel": { "autotp_size": 2 }',
  '"pipeline": { "stages": 2 }',
])('with 4 ranks and 2 ranks per model, 2 data ranks divide the batches: %s', (cut) => {
  const batch = '"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2';
  const path = file(`{ ${batch}, "gradient_accumulation_steps": 2, ${cut} }`);
  expect(validateFile(path, { worldSize: 4 })).toMatchObject({ valid: true, messages: [] });
});

test('ranks that the cuts do not divide are an error, as of training', () => {
  const path = file('{ "train_batch_size": 8,\n "tensor_parallel": { "autotp_size": 2 } }');
  const message = `${path}: error: --world-size: expected a multiple of 2, the ranks that share one model by this file, got 3.`;
  expect(validateFile(path, { worldSize: 3 })).toMatchObject({ valid: false, messages: [message] });
  const json = JSON.parse(validateFile(path, { worldSize: 3, json: true }).output);
  expect(json).toMatchObject({ valid: false, errors: [{ code: 'DS_CONFIG', got: '3' }] });
  // The world size is not given.
  expect(validateFile(path, { worldSize: 1 })).toMatchObject({ valid: true, messages: [] });
});

test.each([
  ['{ "seed": 1, }}', ':1:15: error: expected nothing after the end, got "}".'],
  ['', ': error: expected one JSON object, got an empty file.'],
])('a file that does not parse: %j', (text, message) => {
  const path = file(text);
  expect(validateFile(path, { worldSize: 1 }).messages).toEqual([`${path}${message}`]);
});

test('a file that is not there', () => {
  const { valid, messages } = validateFile(join(folder, 'absent.json'), { worldSize: 1 });
  expect(valid).toBe(false);
  expect(messages).toEqual([expect.stringMatching(/^error: .*ENOENT/)]);
});

test('--json prints one object with places', () => {
  const path = file('{ "train_batch_size": 4, "sead": 1 }');
  const { output, messages } = validateFile(path, { worldSize: 2, json: true });
  expect(messages).toEqual([]);
  expect(JSON.parse(output)).toMatchObject({
    valid: true,
    config: { train_batch_size: 4, train_micro_batch_size_per_gpu: 2 },
    origins: {
      train_batch_size: { from: 'file', at: `${path}:1:3` },
      train_micro_batch_size_per_gpu: { from: 'derived' },
      seed: { from: 'default' },
    },
    notices: [{ kind: 'unknown', path: 'sead', file: path, line: 1, column: 26 }],
    errors: [],
  });
  const broken = JSON.parse(
    validateFile(file('{ "seed": 1.5 }'), { worldSize: 1, json: true }).output,
  );
  expect(broken).toMatchObject({
    valid: false,
    config: null,
    origins: null,
    errors: [{ code: 'DS_CONFIG', path: 'seed', line: 1, column: 3, got: '1.5' }],
  });
});

test('--explain gives every value with its origin', () => {
  const path = file('{ "train_batch_size": 4 }');
  const lines = validateFile(path, { worldSize: 2, explain: true }).output.split('\n');
  expect(lines).toContain(`train_batch_size = 4  (${path}:1:3)`);
  expect(lines).toContain(
    'train_micro_batch_size_per_gpu = 2  (derived: train_batch_size, world size 2)',
  );
  expect(lines).toContain('gradient_clipping = 1  (default)');
});

test('keys that the plan fills stay "auto", and the other keys are checked', () => {
  const path = file(
    '{ "train_batch_size": 4,\n "zero_optimization": {\n  "stage": "auto",\n  "offload_optimizer": "auto" } }',
  );
  const { valid, messages, output } = validateFile(path, { worldSize: 1 });
  expect(valid).toBe(true);
  expect(messages).toEqual([
    `${path}:3:3: note: zero_optimization.stage is left to be filled by the plan of initialize().`,
    `${path}:4:3: note: zero_optimization.offload_optimizer.device is left to be filled by the plan of initialize().`,
    `${path}:4:3: note: zero_optimization.offload_optimizer.ratio is left to be filled by the plan of initialize().`,
  ]);
  expect(JSON.parse(output).zero_optimization).toMatchObject({
    stage: 'auto',
    offload_optimizer: { device: 'auto', ratio: 'auto' },
    offload_param: { device: 'none' },
  });
  expect(validateFile(path, { worldSize: 1, explain: true }).output).toContain(
    'zero_optimization.stage = "auto"  (auto: left to the plan of initialize())',
  );
});

test('a summary counts the findings', () => {
  const path = file('{ "train_batch_size": "4", "sead": 1, "sed": 2 }');
  const summaryOf = (options: object = {}) =>
    validateFile(path, { worldSize: 1, ...options }).summary;
  expect(summaryOf()).toBe(`${path}: valid: 2 warnings, 1 note`);
  expect(summaryOf({ strict: true })).toBe(`${path}: invalid: 2 errors, 1 note`);
  expect(summaryOf({ json: true })).toBe('');
  file('{ "train_batch_size": 4 }');
  expect(summaryOf()).toBe(`${path}: valid`);
});

describe('lists next to an "autotuning" section', () => {
  const validateZero = (zero: string, more = '"autotuning": { "enabled": true }') =>
    validateFile(file(`{ "train_micro_batch_size_per_gpu": [1, 2],\n ${zero}, ${more} }`), {
      worldSize: 2,
    });

  test('are choices of a search, each of which is checked', () => {
    const zero = '"zero_optimization": { "stage": [1, 2], "overlap_comm": [true, false] }';
    const { valid, output } = validateZero(zero);
    expect(valid).toBe(true);
    expect(JSON.parse(output)).toMatchObject({
      train_micro_batch_size_per_gpu: [1, 2],
      zero_optimization: { stage: [1, 2], overlap_comm: [true, false] },
    });
  });

  test('with a wrong value are an error with its place', () => {
    const { valid, messages } = validateZero('"zero_optimization": { "stage": [1, 4] }');
    expect(valid).toBe(false);
    expect(messages.filter((message) => message.includes('error'))).toEqual([
      expect.stringMatching(/:2:25: error: zero_optimization\.stage: expected 0, 1, 2, 3, got 4/),
    ]);
  });

  test('without the section are errors', () => {
    const { valid, messages } = validateZero(
      '"zero_optimization": { "stage": [1, 2] }',
      '"seed": 1',
    );
    expect([valid, messages.length]).toEqual([false, 2]);
  });
});
