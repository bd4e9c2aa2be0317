// Tests that errors of adapter options are short, however long the options of a file are.
import { peft } from '../../lib/index.js';
import { tinyLlama } from './models.js';

const long = 'x'.repeat(100_000);
const many = Array.from({ length: 10_000 }, (_, i) => `name${i}`);

test.each<[string, object]>([
  ['a long name', { targetModules: [long] }],
  ['many names', { targetModules: many }],
  ['a long expression', { targetModules: long }],
  ['an invalid long expression', { targetModules: `(${long}` }],
  ['many layers', { targetModules: ['q_proj'], layersToTransform: many.map((_, i) => i + 100) }],
  ['a long excluded name', { excludeModules: [long], targetModules: ['none'] }],
  ['a long name to save', { targetModules: ['q_proj'], modulesToSave: [long] }],
  ['many names to save', { targetModules: ['q_proj'], modulesToSave: many }],
  ['a long pattern of ranks', { targetModules: ['q_proj'], rankPattern: { [long]: 0 } }],
  ['a long bias', { bias: long }],
  ['long initial weights', { initLoraWeights: long }],
  ['a long option', { [long]: 1 }],
])('%s', (_, options) => {
  let message = '';
  try {
    peft.addLora(tinyLlama(), options);
  } catch (error) {
    expect((error as { code: string }).code).toBe('DS_ARGUMENT');
    ({ message } = error as Error);
  }
  expect(message).toMatch(/^addLora/);
  expect(message.length).toBeLessThan(3000);
});
