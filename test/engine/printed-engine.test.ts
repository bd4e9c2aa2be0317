// Tests the output of console.log() for an engine.
import { inspect } from 'node:util';
import { cpu } from '../../lib/runtime/device.js';
import { tinyEngine, trainTiny } from '../e2e/tiny-training.js';

test('prints the progress and the model; nested in other objects only its first line', async () => {
  const engine = await tinyEngine({ precision: 'fp32', offload: false }, cpu());
  trainTiny(engine, 0, 2);
  const shown = inspect(engine);
  expect(shown.split('\n')[0]).toMatch(/^Engine\(step 2, AdamW, ZeRO stage 1, cpu\)/);
  expect(shown).toMatch(/GPT2/);
  const [head = '', ...rest] = inspect({ a: { b: { c: { engine } } } }, { depth: 3 }).split('\n');
  expect(`${head}${rest.join('')}`).not.toMatch(/GPT2/);
  expect(`${head}${rest.join('')}`).toMatch(/Engine\(step 2, AdamW, ZeRO stage 1, cpu\)/);
  engine.destroy();
});
