// `ds pull` and `ds models`: downloads a model into the cache; lists and removes cached models.
import { formatDecimalBytes } from '../hub/download-progress.js';
import { readHubSettings } from '../hub/environment.js';
import { type CachedModelInfo, models, pull, remove } from '../hub/index.js';
import { required } from '../runtime/required.js';
import type { ModelsFlags, PullFlags, RemoveFlags } from './model-options.js';

/** Returns a table of the cache, or JSON. Throws DS_IO if the cache cannot be read. */
export async function modelsCommand({ json }: ModelsFlags): Promise<string> {
  const cached = await models();
  if (json) return JSON.stringify(cached, null, 2);
  const { cache } = readHubSettings();
  if (cached.length === 0) return `no models in ${cache}`;
  const rows = cached.flatMap(formatModel);
  const widths = [0, 1, 2].map((i) => Math.max(...rows.map((row) => required(row[i]).length)));
  const lines = rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  );
  const bytes = cached.reduce((all, info) => all + info.bytes + info.unfinished, 0);
  const count = cached.length === 1 ? 'one model' : `${cached.length} models`;
  return [...lines, '', `${count}, ${formatDecimalBytes(bytes)}, in ${cache}`].join('\n');
}

/** Formats one row per revision; the first row has the name and the size of the model. */
function formatModel({ name, bytes, unfinished, changed, revisions }: CachedModelInfo): string[][] {
  const size = formatDecimalBytes(bytes);
  const date = changed > 0 ? new Date(changed).toISOString().slice(0, 10) : '';
  const unfinishedText = unfinished > 0 ? `, ${formatDecimalBytes(unfinished)} unfinished` : '';
  const revisionTexts = revisions.map(({ commit, refs, files }) => {
    const names = refs.length > 0 ? ` (${refs.join(', ')})` : '';
    return `${commit.slice(0, 8)}${names}, ${files} ${files === 1 ? 'file' : 'files'}`;
  });
  const [first = 'no revision', ...others] = revisionTexts;
  return [
    [name, size, date, first + unfinishedText],
    ...others.map((other) => ['', '', '', other]),
  ];
}

/** Removes a model or a revision. Returns a description. Throws as hub.remove() does. */
export async function removeCommand(name: string, { revision }: RemoveFlags): Promise<string> {
  const freed = await remove(name, { revision });
  const what = revision === undefined ? name : `revision ${revision} of ${name}`;
  return `removed ${what}: ${formatDecimalBytes(freed)} freed`;
}

/** Downloads a model and resolves with its folder. Throws as hub.pull() does. */
export async function pullCommand(name: string, flags: PullFlags): Promise<string> {
  const { revision, include, quiet } = flags;
  const controller = new AbortController();
  // On a signal, close connections and write the journal of each file.
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
