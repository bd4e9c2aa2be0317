// Tests random schemas: every finished text is valid by ajv, and no text is stuck. DS_TEST_SCHEMAS
// sets the number of schemas.
import { DsError } from '../../../lib/index.js';
import { compileRules } from '../../../lib/inference/grammar/rules.js';
import { NativeGrammar } from '../../../lib/runtime/grammar.js';
import { randomSchema } from './random-schemas.js';
import { validator } from './validator.js';
import { Seeded, smallTrie, walk } from './walk.js';

const COUNT = Number(process.env.DS_TEST_SCHEMAS ?? 60);

test('finished texts are valid, and none is stuck', async () => {
  const trie = await smallTrie();
  const counts = { schemas: 0, finished: 0, unfinished: 0, impossible: 0 };
  for (let seed = 0; seed < COUNT; ++seed) {
    const random = new Seeded(seed);
    const schema = randomSchema(random);
    let grammar: NativeGrammar;
    try {
      const words = compileRules({ kind: 'schema', schema });
      grammar = await NativeGrammar.build(trie, words);
    } catch (error) {
      // A schema may match nothing, or ask for more than rules express; both are errors.
      if (!(error instanceof DsError) || error.code !== 'DS_ARGUMENT') throw error;
      counts.impossible++;
      continue;
    }
    counts.schemas++;
    const isValid = validator(schema);
    for (let again = 0; again < 3; ++again) {
      const { text, isFinished } = walk(grammar, random);
      if (isFinished) {
        counts.finished++;
        const value: unknown = JSON.parse(text);
        if (!isValid(value)) throw new Error(`seed ${seed}: ${JSON.stringify(schema)} ${text}`);
      } else counts.unfinished++;
    }
    grammar.dispose();
  }
  if (process.env.DS_TEST_SCHEMAS) process.stderr.write(`${JSON.stringify(counts)}\n`);
  expect(counts.finished).toBeGreaterThan(COUNT);
  expect(counts.impossible).toBeLessThan(COUNT / 8);
}, 3_600_000);
