// Plain JSON data: what configuration, checkpoints and state dictionaries are made of.

/** What JSON can say. */
export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;

/** An object of JSON. */
export interface JsonObject {
  [key: string]: JsonValue;
}
