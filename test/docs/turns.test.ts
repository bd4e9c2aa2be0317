// The program about turns of docs/operating.md runs on a tiny model.
import { runOnTinyModel } from './tiny-model-page.js';

test('the program of the page answers both clients', async () => {
  expect(await runOnTinyModel('docs/operating.md', 64)).toMatch(/^\d \d+\n$/);
});
