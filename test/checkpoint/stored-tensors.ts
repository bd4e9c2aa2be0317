// Reads the files of a checkpoint as docs/checkpoints.md describes them, without the library.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const BYTES: Record<string, number> = { F32: 4, F16: 2, BF16: 2, I32: 4, I64: 8, U8: 1 };

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

interface Stored {
  shape: number[];
  parts: [file: number, from: number, numel: number][];
}

/** The bytes of every tensor of the checkpoint in `folder` as a whole, in base64, by name. */
export function storedTensors(folder: string): Record<string, string> {
  const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8'));
  const files = manifest.files.map(({ name }: { name: string }) => {
    const bytes = readFileSync(join(folder, name));
    const end = 8 + Number(bytes.readBigUInt64LE(0));
    const header: Record<string, Entry> = JSON.parse(bytes.toString('utf8', 8, end));
    return { header, data: bytes.subarray(end) };
  });
  const tensors: Record<string, string> = {};
  const sections = [manifest.model, manifest.optimizer] as Record<string, Stored>[];
  for (const [name, { shape, parts }] of sections.flatMap((item) => Object.entries(item))) {
    const fullValue = shape.reduce((a, b) => a * b, 1);
    let all = Buffer.alloc(0);
    for (const [file, from, count] of parts) {
      const { header, data } = files[file];
      const entry = header[count === fullValue ? name : `${name}[${from}:${from + count}]`];
      const [start, end] = entry.data_offsets;
      if (all.length === 0) all = Buffer.alloc(fullValue * (BYTES[entry.dtype] as number));
      data.copy(all, from * (BYTES[entry.dtype] as number), start, end);
    }
    tensors[name] = all.toString('base64');
  }
  return tensors;
}
