// Reads structs of Thrift's compact protocol, which Parquet's footer and page headers use. Memory
// and depth are bounded by the input.

/** Fields of a struct by number. */
export type Struct = ReadonlyMap<number, Value>;
export type Value = boolean | number | Uint8Array | readonly Value[] | Struct;

const DEPTH = 32;
const TYPES = {
  stop: 0,
  true: 1,
  false: 2,
  byte: 3,
  i16: 4,
  i32: 5,
  i64: 6,
  double: 7,
  binary: 8,
  list: 9,
  set: 10,
  struct: 12,
};

export class ThriftReader {
  constructor(
    private readonly view: DataView,
    public at: number,
  ) {}

  /**
   * Reads a struct. Throws an Error if the bytes end early, or if a type is one that Parquet does
   * not use.
   */
  struct(depth = 0): Struct {
    if (depth > DEPTH) throw new Error(`structs ${depth} deep`);
    const fields = new Map<number, Value>();
    let id = 0;
    for (;;) {
      const head = this.byte();
      if (head === TYPES.stop) return fields;
      id = head >> 4 ? id + (head >> 4) : this.zigzag();
      fields.set(id, this.value(head & 15, depth));
    }
  }

  private value(type: number, depth: number): Value {
    if (type === TYPES.true || type === TYPES.false) return type === TYPES.true;
    if (type === TYPES.byte) return (this.byte() << 24) >> 24;
    if (type === TYPES.i16 || type === TYPES.i32 || type === TYPES.i64) return this.zigzag();
    if (type === TYPES.double) return this.take(8).view.getFloat64(0, true);
    if (type === TYPES.binary) return this.take(this.varint()).bytes;
    if (type === TYPES.list || type === TYPES.set) return this.list(depth + 1);
    if (type === TYPES.struct) return this.struct(depth + 1);
    throw new Error(`a field of the type ${type}`);
  }

  private list(depth: number): readonly Value[] {
    if (depth > DEPTH) throw new Error(`lists ${depth} deep`);
    const head = this.byte();
    const count = head >> 4 === 15 ? this.varint() : head >> 4;
    if (count > this.view.byteLength - this.at) throw new Error(`a list of ${count}`);
    const type = head & 15;
    const isBoolean = type === TYPES.true || type === TYPES.false;
    return Array.from({ length: count }, () =>
      isBoolean ? this.byte() === TYPES.true : this.value(type, depth),
    );
  }

  private take(count: number): { bytes: Uint8Array; view: DataView } {
    const { buffer, byteOffset, byteLength } = this.view;
    if (count > byteLength - this.at) throw new Error('bytes that end early');
    const from = byteOffset + this.at;
    this.at += count;
    return {
      bytes: new Uint8Array(buffer, from, count),
      view: new DataView(buffer, from, count),
    };
  }

  private byte(): number {
    if (this.at >= this.view.byteLength) throw new Error('bytes that end early');
    return this.view.getUint8(this.at++);
  }

  private varint(): number {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = this.byte();
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      if (scale > 2 ** 62) throw new Error('a number of more than 64 bits');
    }
  }

  /** Reads a signed integer, exact up to 2^53; Parquet's counts and offsets are smaller. */
  private zigzag(): number {
    const value = this.varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}

/** Returns a field as a non-negative integer. Throws an Error with its name. */
export function readCount(struct: Struct, id: number, name: string): number {
  const value = struct.get(id);
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  throw new Error(`${name}: ${formatField(value)}`);
}

/** Returns a field as readCount() does, or null if it is absent. */
export function readOptionalCount(struct: Struct, id: number, name: string): number | null {
  return struct.has(id) ? readCount(struct, id, name) : null;
}

export function readStruct(struct: Struct, id: number, name: string): Struct {
  const value = struct.get(id);
  if (value instanceof Map) return value as Struct;
  throw new Error(`${name}: ${formatField(value)}`);
}

export function readList(struct: Struct, id: number, name: string): readonly Value[] {
  const value = struct.get(id);
  if (Array.isArray(value)) return value;
  throw new Error(`${name}: ${formatField(value)}`);
}

export function readText(value: Value | undefined, name: string): string {
  if (value instanceof Uint8Array) return new TextDecoder('utf-8', { fatal: true }).decode(value);
  throw new Error(`${name}: ${formatField(value)}`);
}

const formatField = (value: Value | undefined): string =>
  value === undefined ? 'absent' : typeof value === 'object' ? 'another type' : String(value);
