// The program of docs/speculation.md runs on a tiny model.
import { runOnTinyModel } from './tiny-model-page.js';

test('the program of the page takes fewer steps than tokens', async () => {
  const printed = await runOnTinyModel('docs/speculation.md', 512);
  const [, accepted, steps] = printed.match(/acceptedTokens: (\d+), steps: (\d+)/) ?? [];
  expect(Number(accepted)).toBeGreaterThan(0);
  expect(Number(steps)).toBeLessThan(100);
});
