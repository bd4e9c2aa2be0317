// `ds pull` and `ds models`: downloads a model into the cache; lists and removes its models.
import { decimalBytes } from '../hub/download-progress.js';
import { hubSettings } from '../hub/environment.js';
import { type CachedModelInfo, models, pull, remove } from '../hub/index.js';
import { required } from '../runtime/required.js';
import type { ModelsFlags, PullFlags, RemoveFlags } from './model-options.js';

/** Returns a table of the cache, or JSON. Throws DS_IO. */
export async function modelsCommand({ json }: ModelsFlags): Promise<string> {
  const found = await models();
  if (json) return JSON.stringify(found, null, 2);
  const { cache } = hubSettings();
  if (found.length === 0) return `no models in ${cache}`;
  const rows = found.flatMap(rowsOf);
  const widths = [0, 1, 2].map((i) => Math.max(...rows.map((row) => required(row[i]).length)));
  const lines = rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  );
  const bytes = found.reduce((all, info) => all + info.bytes + info.unfinished, 0);
  const count = found.length === 1 ? 'one model' : `${found.length} models`;
  return [...lines, '', `${count}, ${decimalBytes(bytes)}, in ${cache}`].join('\n');
}

/** One row for each revision; the first one has the name and the size of the model. */
function rowsOf({ name, bytes, unfinished, changed, revisions }: CachedModelInfo): string[][] {
  const size = decimalBytes(bytes);
  const date = changed > 0 ? new Date(changed).toISOString().slice(0, 10) : '';
  const more = unfinished > 0 ? `, ${decimalBytes(unfinished)} unfinished` : '';
  const described = revisions.map(({ commit, refs, files }) => {
    const names = refs.length > 0 ? ` (${refs.join(', ')})` : '';
    return `${commit.slice(0, 8)}${names}, ${files} ${files === 1 ? 'file' : 'files'}`;
  });
  const [first = 'no revision', ...others] = described;
  return [[name, size, date, first + more], ...others.map((other) => ['', '', '', other])];
}

/** Removes a model or a revision. Throws as hub.remove(). */
export async function removeCommand(name: string, { revision }: RemoveFlags): Promise<string> {
  const freed = await remove(name, { revision });
  const what = revision === undefined ? name : `revision ${revision} of ${name}`;
  return `removed ${what}: ${decimalBytes(freed)} freed`;
}

/** Resolves with the folder. Throws as hub.pull(). */
export async function pullCommand(name: string, flags: PullFlags): Promise<string> {
  const { revision, include, quiet } = flags;
  const controller = new AbortController();
  // Connections end, and the journal of each file is written.
  const stop = (): void => controller.abort(new Error('stopped by a signal'));
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  try {
    return await pull(name, {
      revision,
      include,
      signal: controller.signal,
      ...(quiet && { progress: false }),
    });
  } finally {
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }
}
