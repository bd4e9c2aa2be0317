// Flattens namespaces of functions. A chat has one list of functions, in which the function NAME of
// NAMESPACE is called NAMESPACE__NAME.
import type { JsonObject, JsonValue } from '../../../types/json.js';
import { formatValue } from '../../runtime/format-value.js';
import { isObject } from '../../runtime/is-object.js';
import { invalidError } from '../api-error.js';

/** A function that a namespace contains. */
interface NamespacedName {
  namespace: string;
  name: string;
}

/** Functions of namespaces, by their names in the chat. */
export type NamespacedNames = ReadonlyMap<string, NamespacedName>;

/** Returns the name of a function in the chat. */
export const chatName = (namespace: JsonValue | undefined, name: JsonValue): JsonValue =>
  typeof namespace === 'string' && typeof name === 'string' ? `${namespace}__${name}` : name;

/** Replaces each namespace in `tools` by its functions. Throws 400 for an invalid namespace. */
export function flattenNamespaces(tools: readonly JsonValue[]): {
  tools: JsonValue[];
  names: NamespacedNames;
} {
  const names = new Map<string, NamespacedName>();
  const flat = tools.flatMap((tool, i) => {
    if (!isObject<JsonObject>(tool) || tool.type !== 'namespace') return [tool];
    const { name: namespace, tools: functions } = tool;
    const location = `tools[${i}]`;
    if (typeof namespace !== 'string' || namespace === '')
      throw invalidError(`${location}.name`, 'a name', formatValue(namespace));
    if (!Array.isArray(functions))
      throw invalidError(`${location}.tools`, 'a list of functions', formatValue(functions));
    return functions.map((item) => {
      if (!isObject<JsonObject>(item)) return item;
      const { name = null } = item;
      const joined = chatName(namespace, name);
      if (typeof name === 'string') names.set(joined as string, { namespace, name });
      return { ...item, name: joined };
    });
  });
  return { tools: flat, names };
}
