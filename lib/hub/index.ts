// Models of the Hugging Face hub by name: download, cache, list, remove.
export type { FileSet } from './choice.js';
export { type CachedModelInfo, type CachedRevision, models, remove } from './inventory.js';
export type { RevisionOptions } from './local-folder.js';
export { type PullOptions, pull } from './pull.js';
