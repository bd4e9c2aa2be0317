// Walks random schemas: every finished text must be valid by ajv. Usage: node -r
// ./test/support/run-typescript.cjs test/inference/grammar/try-schemas.ts [SCHEMAS] [FIRST]
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
export async function trySchemas(count: number, first = 0): Promise<SchemaCounts> {
  const trie = await smallTrie();
  const counts = { schemas: 0, finished: 0, unfinished: 0, refused: 0 };
  for (let seed = first; seed < first + count; ++seed) {
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

const GROUP = 250;

async function main(): Promise<void> {
  const [count, begin] = [Number(process.argv[2] ?? 1000), Number(process.argv[3] ?? 0)];
  const total = { schemas: 0, finished: 0, unfinished: 0, refused: 0 };
  for (let first = 0; first < count; first += GROUP) {
    const found = await trySchemas(Math.min(GROUP, count - first), begin + first);
    for (const name of Object.keys(total) as (keyof SchemaCounts)[]) total[name] += found[name];
    console.log(JSON.stringify(total));
  }
}

if (require.main === module) void main();
