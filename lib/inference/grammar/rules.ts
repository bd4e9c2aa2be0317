// Compiles a format to the description of its grammar. Runs in a worker.
import { utf8 } from './characters.js';
import { Description } from './description.js';
import { ebnfNode } from './ebnf.js';
import type { FormatSource } from './format.js';
import { patternNode } from './pattern.js';
import { SchemaCompiler } from './schema.js';

/** Returns the words for NativeGrammar.build(). Throws DS_ARGUMENT, DS_LIMIT. */
export function compileRules(source: FormatSource): Int32Array<ArrayBuffer> {
  const to = new Description();
  switch (source.kind) {
    case 'schema':
      return to.finish(new SchemaCompiler(to, source.schema).compile());
    case 'jsonObject':
      return to.finish(new SchemaCompiler(to, {}).anyObject());
    case 'choice':
      return to.finish(to.texts(source.choice));
    case 'grammar':
      return to.finish(ebnfNode(to, source.grammar));
    case 'regex': {
      const options = {
        op: 'format regex',
        character: (points: Parameters<typeof utf8>[1]) => utf8(to, points),
        isSearch: false,
      };
      return to.finish(patternNode(to, source.regex, options));
    }
  }
}
