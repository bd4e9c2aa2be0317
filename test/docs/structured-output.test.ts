// The program of docs/structured-output.md runs on a tiny model.
import { runOnTinyModel } from './tiny-model-page.js';

test('the program of the page prints an object of the schema', async () => {
  const printed = await runOnTinyModel('docs/structured-output.md', 512);
  expect(printed).toMatch(/^(\{ name: .*, age: \d+ \}\n)?$/s);
});
