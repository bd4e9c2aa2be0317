// Writes the content of a GGUF file again, with other metadata or in several files.
import { readFileSync, rmSync } from 'node:fs';
import {
  F32,
  type GgufTensor,
  type GgufValue,
  readGgufHeader,
  type WrittenValue,
  writeGguf,
} from '../../lib/checkpoint/index.js';

/** The value with the type that its key has in files. */
function storedAs(key: string, value: GgufValue): WrittenValue {
  if (/epsilon|freq_base|scale$/.test(key)) return new F32(value as number);
  if (!Array.isArray(value) || typeof value[0] !== 'number') return value as WrittenValue;
  return key.endsWith('scores') ? Float32Array.from(value) : Int32Array.from(value);
}

/** The metadata and F32 tensors of a file, to write them again. */
export function contentsOf(path: string) {
  const bytes = readFileSync(path);
  const read = (at: number, into: Uint8Array): void => void bytes.copy(into, 0, at);
  const { metadata, tensors } = readGgufHeader(path, bytes.length, read);
  const entries = [...metadata].map(([key, value]): [string, WrittenValue] => [
    key,
    storedAs(key, value),
  ]);
  return {
    entries,
    tensors: tensors.map(({ name, shape }) => ({ name, shape, type: 'F32' as const })),
    async *pieces({ name }: { name: string }) {
      const { start, bytes: size } = tensors.find((tensor) => tensor.name === name) as GgufTensor;
      yield bytes.subarray(start, start + size);
    },
  };
}

/** Splits a file of F32 tensors like llama-gguf-split; `more` changes the metadata of a file. */
export async function splitGguf(
  path: string,
  count: number,
  more: (file: number) => [string, WrittenValue][] = () => [],
): Promise<string> {
  const { entries, tensors, pieces } = contentsOf(path);
  const name = (file: number): string =>
    path.replace('.gguf', `-0000${file + 1}-of-0000${count}.gguf`);
  for (let file = 0; file < count; ++file) {
    const plan = {
      metadata: new Map<string, WrittenValue>([
        ...(file === 0 ? entries : []),
        ['split.no', file],
        ['split.count', count],
        ['split.tensors.count', tensors.length],
        ...more(file),
      ]),
      tensors: tensors.filter((_, i) => i % count === file),
    };
    rmSync(name(file), { force: true });
    await writeGguf(name(file), plan, pieces);
  }
  return name(0);
}
