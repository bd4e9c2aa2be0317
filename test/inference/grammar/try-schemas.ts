// Walks random schemas: every finished text must be valid by ajv. Usage: node -r
// ./test/support/run-typescript.cjs test/inference/grammar/try-schemas.ts [SCHEMAS]
import { DsError } from '../../../lib/errors.js';
import { compileRules } from '../../../lib/inference/grammar/rules.js';
import { NativeGrammar } from '../../../lib/runtime/grammar.js';
import { randomSchema } from './random-schemas.js';
import { validator } from './validator.js';
import { Seeded, smallTrie, walk } from './walk.js';

export interface SchemaCounts {
  schemas: number;
  finished: number;
  unfinished: number;
  /** Schemas that match nothing, or need more than rules express. */
  refused: number;
}

/** Throws for a finished text that is not valid, and for a text that no token continues. */
export async function trySchemas(count: number): Promise<SchemaCounts> {
  const trie = await smallTrie();
  const counts = { schemas: 0, finished: 0, unfinished: 0, refused: 0 };
  for (let seed = 0; seed < count; ++seed) {
    const random = new Seeded(seed);
    const schema = randomSchema(random);
    let grammar: NativeGrammar;
    try {
      grammar = await NativeGrammar.build(trie, compileRules({ kind: 'schema', schema }));
    } catch (error) {
      if (!(error instanceof DsError) || error.code !== 'DS_ARGUMENT') throw error;
      counts.refused++;
      continue;
    }
    counts.schemas++;
    const isValid = validator(schema);
    for (let again = 0; again < 3; ++again) {
      const { text, isFinished } = walk(grammar, random);
      if (isFinished) counts.finished++;
      else counts.unfinished++;
      if (!isFinished || isValid(JSON.parse(text))) continue;
      throw new Error(`seed ${seed}: ${JSON.stringify(schema)} ${text}`);
    }
    grammar.dispose();
  }
  return counts;
}

async function main(): Promise<void> {
  const counts = await trySchemas(Number(process.argv[2] ?? 1000));
  console.log(JSON.stringify(counts));
}

if (require.main === module) void main();
