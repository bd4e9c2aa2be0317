// Caches the measured processor rates of hosts in a file in the user's home folder.
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { makeFolderNow } from '../runtime/make-folder.js';
import type { ProcessorRates } from './processor-rates.js';

/** Maximum number of hosts in the file. */
const MAX_HOSTS = 32;

/** Coordinates the ranks of a run to find the rates of their processors. */
interface RatesSource {
  /**
   * Whether this is the first rank. It decides for all ranks whether to measure, and only it writes
   * the file.
   */
  isFirst: boolean;
  /** Returns the value of the first rank. Every rank calls it once. */
  broadcast: (isCached: boolean) => boolean;
  measure: () => ProcessorRates;
  /** The cache file. */
  file: string;
}

/**
 * Returns cached rates, or measures them on all ranks at the same time and caches them. Returns
 * null if only the first rank has cached rates: then no rank measures.
 */
export function loadOrMeasureRates(key: string, source: RatesSource): ProcessorRates | null {
  const { isFirst, broadcast, measure, file } = source;
  const cached = readCache(file);
  const entry = cached[key];
  const isCached = isRates(entry);
  if (broadcast(isCached)) return isCached ? entry : null;
  const rates = measure();
  if (!isFirst) return rates;
  const entries = [...Object.entries(cached), [key, rates] as const].slice(-MAX_HOSTS);
  writeCache(file, Object.fromEntries(entries));
  return rates;
}

/** Reads the cache file. An invalid file counts as empty, so the rates are measured again. */
function readCache(file: string): Record<string, unknown> {
  try {
    const content: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return typeof content === 'object' && content ? { ...content } : {};
  } catch {
    return {};
  }
}

/** Writes the cache file. If the folder is not writable, each run measures again. */
function writeCache(file: string, rates: Record<string, unknown>): void {
  const temporary = `${file}.${process.pid}`;
  try {
    makeFolderNow(dirname(file));
    writeFileSync(temporary, `${JSON.stringify(rates, null, 2)}\n`);
    renameSync(temporary, file);
  } catch {
    rmSync(temporary, { force: true });
  }
}

function isRates(value: unknown): value is ProcessorRates {
  const { host, link } = (value ?? {}) as Partial<ProcessorRates>;
  return [host, link].every(
    (rate) => typeof rate === 'number' && Number.isFinite(rate) && rate > 0,
  );
}
