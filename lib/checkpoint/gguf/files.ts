// Opens models in several GGUF files, as llama-gguf-split writes them. The first file contains the
// metadata. Each file contains the table of its own tensors.
import { DsError } from '../../errors.js';
import { InputFile } from '../../runtime/input-file.js';
import { required } from '../../runtime/required.js';
import { type GgufHeader, type GgufValue, readGgufHeader } from './header.js';

const MAX_FILES = 1000;
const HINT = 'Download all files of the model into one folder, and name the first one.';

/** The open files of a model, and one header with the tensors of all files. */
interface GgufFiles {
  readonly files: readonly InputFile[];
  readonly header: GgufHeader;
}

/**
 * Opens `path` and, if the model is split, its other files. The caller closes them. Throws
 * DS_CHECKPOINT if a file is damaged or belongs to another model, DS_IO if a file cannot be read.
 */
export async function openGgufFiles(path: string): Promise<GgufFiles> {
  const files: InputFile[] = [];
  const add = async (name: string): Promise<GgufHeader> => {
    const file = await InputFile.open(name);
    files.push(file);
    return readGgufHeader(name, file.bytes, (at, into) => file.readNow(at, into));
  };
  try {
    const first = await add(path);
    const headers = [first];
    for (const name of namesBehind(path, first)) {
      headers.push(await add(name).catch((error) => Promise.reject(withHint(error))));
    }
    return { files, header: headers.length === 1 ? first : joinHeaders(path, files, headers) };
  } catch (error) {
    for (const file of files) await file.close();
    throw error;
  }
}

const numberedFiles = (number: number): string => String(number).padStart(5, '0');

const endOf = (number: number, count: number): string =>
  `-${numberedFiles(number)}-of-${numberedFiles(count)}.gguf`;

/** Returns whether this is the name of the second or a later file of a split model. */
export const isFurtherGguf = (name: string): boolean =>
  /-\d{5}-of-\d{5}\.gguf$/.test(name) && !/-00001-of-\d{5}\.gguf$/.test(name);

/**
 * Returns the names of the files after the first. Throws DS_CHECKPOINT if `path` is a later file.
 */
function namesBehind(path: string, { metadata }: GgufHeader): string[] {
  // llama-gguf-split writes 0 into a file that it merged.
  const count = metadata.get('split.count') ?? 1;
  if (count === 0 || count === 1) return [];
  if (typeof count !== 'number' || !Number.isInteger(count) || count < 0 || count > MAX_FILES) {
    throw mismatchError(`${path}: split.count`, `a number up to ${MAX_FILES}`, count);
  }
  const number = metadata.get('split.no') ?? 0;
  if (number !== 0) throw mismatchError(`${path}: split.no`, '0, the first file', number);
  const end = endOf(1, count);
  if (!path.endsWith(end)) throw mismatchError(path, `a name that ends in ${end}`, path);
  const stem = path.slice(0, -end.length);
  return Array.from({ length: count - 1 }, (_, i) => `${stem}${endOf(i + 2, count)}`);
}

/**
 * Returns one header for all files. Throws DS_CHECKPOINT if the files belong to different models.
 */
function joinHeaders(
  path: string,
  files: readonly InputFile[],
  headers: readonly GgufHeader[],
): GgufHeader {
  const tensors = headers.flatMap((header, file) => {
    const { metadata } = header;
    const place = required(files[file]).path;
    const number = metadata.get('split.no') ?? null;
    if (number !== file) throw mismatchError(`${place}: split.no`, `${file}`, number);
    const count = metadata.get('split.count') ?? null;
    if (count !== headers.length)
      throw mismatchError(`${place}: split.count`, `${headers.length}`, count);
    return header.tensors.map((tensor) => ({ ...tensor, file }));
  });
  const { metadata } = required(headers[0]);
  const total = metadata.get('split.tensors.count') ?? tensors.length;
  if (total !== tensors.length) {
    throw mismatchError(
      `${path}: split.tensors.count`,
      `${tensors.length}, the number of tensors`,
      total,
    );
  }
  const names = new Set<string>();
  for (const { name } of tensors) {
    if (names.has(name)) throw mismatchError(path, 'tensors with distinct names', name);
    names.add(name);
  }
  return {
    metadata,
    tensors,
    read: (tensor) => required(headers[tensor.file ?? 0]).read(tensor),
  };
}

/** Adds HINT to a DS_IO error of a later file, for example if the file is missing. */
const withHint = (error: unknown): unknown =>
  error instanceof DsError && error.code === 'DS_IO'
    ? new DsError({
        code: error.code,
        op: error.op,
        expected: error.expected,
        got: error.got,
        hint: HINT,
        cause: error,
      })
    : error;

const mismatchError = (op: string, expected: string, got: GgufValue | null): DsError =>
  new DsError({ code: 'DS_CHECKPOINT', op, expected, got: JSON.stringify(got), hint: HINT });
