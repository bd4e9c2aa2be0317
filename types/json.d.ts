// Plain JSON data: what configuration, checkpoints and state dictionaries are made of.

/** What JSON can say. */
export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;

/** An object of JSON. */
export interface JsonObject {
  [key: string]: JsonValue;
}

/**
 * What a value of `Data` has to be for JSON to keep it as it is: data throughout, declared
 * interfaces included, without functions, methods and undefined. For constraints: `<Data extends
 * JsonData<Data>>`.
 */
export type JsonData<Data> =
  | Exclude<JsonValue, JsonValue[] | JsonObject>
  | (object & { [Key in keyof Data]: JsonField<Data[Key]> });

type JsonField<Field> = Field extends JsonValue
  ? Field
  : Field extends undefined | symbol | bigint | ((...given: never[]) => unknown)
    ? never
    : { [Key in keyof Field]: JsonField<Field[Key]> };
