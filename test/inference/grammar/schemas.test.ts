// Tests random schemas: every finished text is valid by ajv, and no text is stuck.
import { trySchemas } from './try-schemas.js';

const COUNT = 60;

test('finished texts are valid, and none is stuck', async () => {
  const { finished, refused } = await trySchemas(COUNT);
  expect(finished).toBeGreaterThan(COUNT);
  expect(refused).toBeLessThan(COUNT / 8);
});
