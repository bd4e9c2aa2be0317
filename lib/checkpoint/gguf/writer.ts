// Writes GGUF files of version 3: metadata, the table of tensors, and the bytes of the tensors.
import { open } from 'node:fs/promises';
import { type PackedType, packedBytes, packedTypeId } from './quantize.js';

/** A metadata number that is stored as f32. Plain numbers are stored as u32. */
export class F32 {
  constructor(readonly value: number) {}
}

/** A metadata value to write. */
export type WrittenValue =
  | F32
  | number
  | boolean
  | string
  | readonly string[]
  | readonly boolean[]
  | Int32Array
  | Float32Array;

/** Metadata to write, by key. */
export type GgufMetadata = ReadonlyMap<string, WrittenValue>;

/** A tensor to write. `shape` has the outermost dimension first. */
export interface WrittenTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly type: PackedType;
}

const ALIGNMENT = 32;
const [U32_TYPE, I32_TYPE, F32_TYPE, BOOL, TEXT, LIST] = [4, 5, 6, 7, 8, 9];

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};

const u64 = (value: number): Buffer => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};

const text = (value: string): Buffer => {
  const bytes = Buffer.from(value, 'utf8');
  return Buffer.concat([u64(bytes.length), bytes]);
};

const f32 = (value: number): Buffer => Buffer.from(Float32Array.of(value).buffer);

/** Encodes a list: the type of its values, their number, their bytes. */
const list = (type: number, length: number, bytes: Buffer): Buffer =>
  Buffer.concat([u32(LIST), u32(type), u64(length), bytes]);

const isTexts = (value: readonly string[] | readonly boolean[]): value is readonly string[] =>
  typeof value[0] === 'string' || value.length === 0;

function encodeValue(value: WrittenValue): Buffer {
  if (value instanceof F32) return Buffer.concat([u32(F32_TYPE), f32(value.value)]);
  if (value instanceof Int32Array || value instanceof Float32Array) {
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    const type = value instanceof Int32Array ? I32_TYPE : F32_TYPE;
    return list(type, value.length, bytes);
  }
  switch (typeof value) {
    case 'number':
      return Buffer.concat([u32(U32_TYPE), u32(value)]);
    case 'boolean':
      return Buffer.concat([u32(BOOL), Buffer.of(value ? 1 : 0)]);
    case 'string':
      return Buffer.concat([u32(TEXT), text(value)]);
    default:
      return isTexts(value)
        ? list(TEXT, value.length, Buffer.concat(value.map(text)))
        : list(BOOL, value.length, Buffer.from(value.map(Number)));
  }
}

const paddingAt = (at: number): number => (ALIGNMENT - (at % ALIGNMENT)) % ALIGNMENT;

const bytesIn = ({ shape, type }: WrittenTensor): number =>
  packedBytes(
    type,
    shape.reduce((product, value) => product * value, 1),
  );

function headerOf(metadata: GgufMetadata, tensors: readonly WrittenTensor[]): Buffer {
  const pairs = [...metadata].flatMap(([key, value]) => [text(key), encodeValue(value)]);
  let offset = 0;
  const table = tensors.flatMap((tensor) => {
    const { name, shape, type } = tensor;
    const dims = [...shape].reverse().map(u64);
    const at = offset;
    offset += bytesIn(tensor) + paddingAt(bytesIn(tensor));
    return [text(name), u32(shape.length), ...dims, u32(packedTypeId(type)), u64(at)];
  });
  const magic = Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors.length)]);
  const header = Buffer.concat([magic, u64(metadata.size), ...pairs, ...table]);
  return Buffer.concat([header, Buffer.alloc(paddingAt(header.length))]);
}

/**
 * Writes a new file at `path`, which must not exist. `chunksOf` yields the encoded bytes of a
 * tensor in chunks of any size. Throws errors of node:fs.
 */
export async function writeGguf(
  path: string,
  { metadata, tensors }: { metadata: GgufMetadata; tensors: readonly WrittenTensor[] },
  chunksOf: (tensor: WrittenTensor) => AsyncIterable<Uint8Array>,
): Promise<void> {
  const file = await open(path, 'wx');
  let at = 0;
  const put = async (bytes: Uint8Array): Promise<void> => {
    for (let done = 0; done < bytes.length; ) {
      const { bytesWritten } = await file.write(bytes, done, bytes.length - done, at);
      done += bytesWritten;
      at += bytesWritten;
    }
  };
  try {
    await put(headerOf(metadata, tensors));
    for (const tensor of tensors) {
      for await (const chunk of chunksOf(tensor)) await put(chunk);
      await put(Buffer.alloc(paddingAt(bytesIn(tensor))));
    }
  } finally {
    await file.close();
  }
}
