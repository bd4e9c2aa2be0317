// Plain JSON data: what configuration, checkpoints and state dictionaries are made of.

export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;

export interface JsonObject {
  [key: string]: JsonValue;
}
