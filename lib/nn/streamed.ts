// Models whose weights come from elsewhere for each forward and go after it.
import type { Module } from './module.js';

const streamed = new WeakSet<Module>();

/**
 * From here on the weights of `module` come and go by themselves, and never change; the function
 * returned ends it.
 */
export function markStreamed(module: Module): () => void {
  streamed.add(module);
  return () => void streamed.delete(module);
}

/** Whether the weights of `module` come for a forward and go. */
export function isStreamed(module: Module): boolean {
  return streamed.has(module);
}
