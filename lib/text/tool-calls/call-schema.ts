// Builds the JSON schema of a call of one of several functions.
import { isObject } from '../../runtime/is-object.js';

/** A function that the model may call, in the form of OpenAI's API. */
export interface FunctionTool {
  type: 'function';
  function: {
    name: string;
    description?: string;
    /** The JSON schema of the arguments. */
    parameters?: object;
    strict?: boolean | null;
  };
}

/** Returns the schema of a call: the name, and the arguments under `key`. */
export function callSchema(tools: readonly FunctionTool[], key = 'arguments'): object {
  const definitions: Record<string, unknown> = {};
  const calls = tools.map(({ function: { name, parameters } }, i) => {
    const path = `call_${i}`;
    const schema = parameters ?? { type: 'object' };
    const isMoved = JSON.stringify(schema).includes('"$ref"');
    if (isMoved) definitions[path] = moveValue(schema, path);
    return {
      type: 'object',
      properties: {
        name: { const: name },
        [key]: isMoved ? { $ref: `#/$defs/${path}` } : schema,
      },
      required: ['name', key],
      additionalProperties: false,
    };
  });
  const [only] = calls;
  const schema = calls.length === 1 && only ? only : { anyOf: calls };
  return Object.keys(definitions).length > 0 ? { ...schema, $defs: definitions } : schema;
}

/** Moves a schema to another path in a document, and adjusts its local references. */
function moveValue(value: unknown, path: string): unknown {
  if (Array.isArray(value)) return value.map((item) => moveValue(item, path));
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, value]) => {
      const isLocal = key === '$ref' && typeof value === 'string' && value.startsWith('#');
      return [key, isLocal ? `#/$defs/${path}${value.slice(1)}` : moveValue(value, path)];
    }),
  );
}
