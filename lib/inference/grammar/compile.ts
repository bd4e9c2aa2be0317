// Compiles formats in a thread with bounds of time and memory, and caches the results.
import { DsError } from '../../errors.js';
import { ThreadPool } from '../../runtime/thread-pool.js';
import type { FormatSource, ReadFormat } from './format.js';

const SECONDS = 5;
const HEAP_MIB = 512;
/** Maximum number of compiled formats, and their 32-bit words. */
const [MAX_FORMATS, MAX_WORDS] = [256, 2 ** 24];

/** A compiled format. */
export interface CompiledFormat {
  /** Equal for equal formats. */
  readonly key: string;
  /** The description of its grammar: csrc/grammar/program.h. */
  readonly words: Int32Array<ArrayBuffer>;
}

let pool: ThreadPool<FormatSource, Int32Array<ArrayBuffer>> | null = null;
/** The least recently used one first. */
const compiled = new Map<string, CompiledFormat>();
const pending = new Map<string, Promise<CompiledFormat>>();
let words = 0;

/**
 * Compiles a format. Rejects with DS_ARGUMENT and the path of a keyword that is wrong or not
 * supported. Rejects with DS_LIMIT if the format needs too much time or memory.
 */
export async function compileFormat({ source, key }: ReadFormat): Promise<CompiledFormat> {
  const known = compiled.get(key);
  if (known) {
    compiled.delete(key);
    compiled.set(key, known);
    return known;
  }
  const started = pending.get(key) ?? start(source, key);
  pending.set(key, started);
  return started;
}

async function start(source: FormatSource, key: string): Promise<CompiledFormat> {
  try {
    const entry = { folder: __dirname, entry: 'compile-thread', data: {} };
    pool ??= new ThreadPool({ ...entry, threads: 1, timeoutMs: SECONDS * 1000, heapMiB: HEAP_MIB });
    const made = { key, words: await pool.ask(source, lostError) };
    keep(made);
    return made;
  } finally {
    pending.delete(key);
  }
}

function keep(made: CompiledFormat): void {
  compiled.set(made.key, made);
  words += made.words.length;
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
