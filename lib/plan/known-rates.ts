// Caches measured processor rates of hosts in a file of the user.
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { makeFolderNow } from '../runtime/make-folder.js';
import type { ProcessorRates } from './processor-rates.js';

/** Maximum number of hosts in the file. */
const REMEMBERED = 32;

/** Coordinates the ranks of a run to find the rates of their processors. */
interface RatesSource {
  /** Whether this is the first rank. Its cached entry counts for all ranks, and only it writes. */
  isFirst: boolean;
  /** Returns the value of the first rank. Every rank calls it once. */
  agree: (own: boolean) => boolean;
  measure: () => ProcessorRates;
  /** The cache file. */
  file: string;
}

/**
 * Returns cached rates, or measures them on all ranks at the same time and caches them. Returns
 * null if the first rank has cached rates and this one does not.
 */
export function ratesOf(key: string, source: RatesSource): ProcessorRates | null {
  const { isFirst, agree, measure, file } = source;
  const known = readKnown(file);
  const found = known[key];
  const isKnown = isRates(found);
  if (agree(isKnown)) return isKnown ? found : null;
  const rates = measure();
  if (!isFirst) return rates;
  const entries = [...Object.entries(known), [key, rates] as const].slice(-REMEMBERED);
  keep(file, Object.fromEntries(entries));
  return rates;
}

/** An invalid file counts as empty, so the rates are measured again. */
function readKnown(file: string): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(readFileSync(file, 'utf8'));
    return typeof found === 'object' && found ? { ...found } : {};
  } catch {
    return {};
  }
}

/** If the folder is not writable, each run measures again. */
function keep(file: string, rates: Record<string, unknown>): void {
  const written = `${file}.${process.pid}`;
  try {
    makeFolderNow(dirname(file));
    writeFileSync(written, `${JSON.stringify(rates, null, 2)}\n`);
    renameSync(written, file);
  } catch {
    rmSync(written, { force: true });
  }
}

function isRates(value: unknown): value is ProcessorRates {
  const { host, link } = (value ?? {}) as Partial<ProcessorRates>;
  return [host, link].every(
    (rate) => typeof rate === 'number' && Number.isFinite(rate) && rate > 0,
  );
}
