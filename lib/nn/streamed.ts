// Marks models with weights that are loaded for each forward and freed after it.
import type { Module } from './module.js';

const streamed = new WeakSet<Module>();

/**
 * Marks `module` as streamed: its weights are loaded for each forward and freed after it, and never
 * change. The returned function removes the mark.
 */
export function markStreamed(module: Module): () => void {
  streamed.add(module);
  return () => void streamed.delete(module);
}

/** Returns whether the weights of `module` are loaded for each forward. */
export function isStreamed(module: Module): boolean {
  return streamed.has(module);
}
