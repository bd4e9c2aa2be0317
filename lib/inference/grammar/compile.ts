// Compiles formats in a worker thread with limits of time and memory, and caches the results.
import { DsError } from '../../errors.js';
import { ThreadPool } from '../../runtime/thread-pool.js';
import type { FormatSource, ReadFormat } from './format.js';

const SECONDS = 5;
const HEAP_MIB = 512;
/** Maximum number of cached formats, and of their 32-bit words. */
const [MAX_FORMATS, MAX_WORDS] = [256, 2 ** 24];

/** A compiled format. */
interface CompiledFormat {
  /** Equal for equal formats. */
  readonly key: string;
  /** The serialized grammar (csrc/grammar/program.h). */
  readonly words: Int32Array<ArrayBuffer>;
}

let pool: ThreadPool<FormatSource, Int32Array<ArrayBuffer>> | null = null;
/** The least recently used format comes first. */
const compiled = new Map<string, CompiledFormat>();
const pending = new Map<string, Promise<CompiledFormat>>();
let words = 0;

/**
 * Compiles a format. Rejects with DS_ARGUMENT and the path of an invalid or unsupported keyword.
 * Rejects with DS_LIMIT if the format needs too much time or memory.
 */
export async function compileFormat({ source, key }: ReadFormat): Promise<CompiledFormat> {
  const cached = compiled.get(key);
  if (cached) {
    compiled.delete(key);
    compiled.set(key, cached);
    return cached;
  }
  const started = pending.get(key) ?? startCompile(source, key);
  pending.set(key, started);
  return started;
}

async function startCompile(source: FormatSource, key: string): Promise<CompiledFormat> {
  try {
    const entry = { folder: __dirname, entry: 'compile-thread', data: {} };
    pool ??= new ThreadPool({ ...entry, threads: 1, timeoutMs: SECONDS * 1000, heapMiB: HEAP_MIB });
    const result = { key, words: await pool.ask(source, lostError) };
    cacheFormat(result);
    return result;
  } finally {
    pending.delete(key);
  }
}

function cacheFormat(format: CompiledFormat): void {
  compiled.set(format.key, format);
  words += format.words.length;
  for (const [key, old] of compiled) {
    if (compiled.size <= MAX_FORMATS && words <= MAX_WORDS) return;
    compiled.delete(key);
    words -= old.words.length;
  }
}

function lostError(got: string): DsError {
  const expected = `a format that compiles in ${SECONDS} s and ${HEAP_MIB} MiB`;
  const hint = 'Use fewer alternatives, properties or repetitions.';
  return new DsError({ code: 'DS_LIMIT', op: 'format', expected, got, hint });
}
