// `ds pull`: downloads a model of the hub and prints its folder.
import { pull } from '../hub/index.js';
import type { PullFlags } from './model-options.js';

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
